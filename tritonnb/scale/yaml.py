"""Documents in YAML: those of templates, and those that are written. Needs PyYAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from tritonnb.core.errors import UnsupportedError
from tritonnb.core.json_types import Json

_TEMPLATES = Path(__file__).parent / "templates"

#: Strings that YAML 1.1, which PyYAML writes, reads as strings, and YAML 1.2 or Go's reader as numbers or booleans.
_AMBIGUOUS = re.compile(r"(?:[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|0o[0-7]+|[yYnN])\Z")


def read_template(name: str, values: Mapping[str, Any]) -> list[Json]:
    """Read the documents of a template.

    Parameters
    ----------
    name : str
        Of the file.
    values : mapping of str to object
        What takes the place of ``$name``: of a whole text any value, and of a part of one a string. A field or an
        element whose value is None is left out.

    Raises
    ------
    UnsupportedError
        If PyYAML is not installed.
    """
    documents = _import_yaml().safe_load_all((_TEMPLATES / name).read_text("utf-8"))
    return [_filled(document, values) for document in documents]


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        members = ((name, _filled(value, values)) for name, value in node.items())
        return {_filled(name, values): value for name, value in members if value is not None}
    if isinstance(node, list):
        return [value for element in node if (value := _filled(element, values)) is not None]
    if isinstance(node, str):
        return values[node[1:]] if node[:1] == "$" and node[1:] in values else Template(node).substitute(values)
    return node


def fill_template(name: str, values: Mapping[str, str]) -> str:
    """Read a template that is not YAML."""
    return Template((_TEMPLATES / name).read_text("utf-8")).substitute(values)


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
    yaml = _import_yaml()
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    dumper.add_representer(str, _represent_text)
    dumper.add_implicit_resolver("tag:yaml.org,2002:float", _AMBIGUOUS, list("-+.0123456789yYnN"))
    return str(yaml.dump_all(documents, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def _represent_text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


def _import_yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise UnsupportedError(
            'YAML: expected the package PyYAML, which is not installed: pip install "tritonnb[export]"'
        ) from None
    return yaml
