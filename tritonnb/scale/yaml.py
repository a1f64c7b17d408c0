"""Documents in YAML, written by PyYAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tritonnb.core.errors import UnsupportedError

#: Strings that YAML 1.1, which PyYAML writes, reads as strings, and YAML 1.2 or Go's reader as numbers or booleans.
_AMBIGUOUS = re.compile(r"(?:[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|0o[0-7]+|[yYnN])\Z")


def write_documents(documents: Sequence[Mapping[str, Any]]) -> str:
    """Write documents in the order of their fields, with texts of several lines as blocks, and without anchors.

    Raises
    ------
    UnsupportedError
        If PyYAML is not installed.

    Examples
    --------
    >>> print(write_documents([{"kind": "Service", "spec": {"ports": [{"port": 8000}], "version": "1"}}]), end="")
    kind: Service
    spec:
      ports:
      - port: 8000
      version: '1'
    """
    try:
        import yaml
    except ImportError:
        raise UnsupportedError(
            'YAML: expected the package PyYAML, which is not installed: pip install "tritonnb[export]"'
        ) from None
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    dumper.add_representer(str, _represent_text)
    dumper.add_implicit_resolver("tag:yaml.org,2002:float", _AMBIGUOUS, list("-+.0123456789yYnN"))
    return str(yaml.dump_all(documents, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def _represent_text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)
