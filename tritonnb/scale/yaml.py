"""Writing YAML: the few forms that manifests need, so that no YAML package is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: What YAML 1.1 and 1.2 read as a string without quotes. Words such as `yes` and numbers are excluded below.
_PLAIN = re.compile(r"[A-Za-z/][\w./+=,;@%~()\[\]{}-]*(?:[ :][\w./+=,;@%~()-]+)*")
_OTHER_TYPES = re.compile(r"(?i)(?:true|false|yes|no|on|off|y|n|null|~|\.?(?:nan|inf))")


def write_documents(documents: Sequence[Mapping[str, Any]]) -> str:
    """Write one document or several.

    Examples
    --------
    >>> print(write_documents([{"kind": "Service", "spec": {"ports": [{"port": 8000}], "version": "1"}}]), end="")
    kind: Service
    spec:
      ports:
        - port: 8000
      version: "1"
    """
    return "---\n".join("".join(f"{line}\n" for line in _lines(document)) for document in documents)


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, member in value.items():
            yield from _member(f"{_scalar(str(name))}:", member)
    else:
        for element in value:
            first, *rest = _lines(element) if _is_block(element) else [_scalar(element)]
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _member(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and "\n" in value:
        yield f"{name} |" + ("" if value.endswith("\n") else "-")
        yield from (f"  {line}".rstrip() for line in value.removesuffix("\n").split("\n"))
    elif _is_block(value):
        yield name
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{name} {_scalar(value)}"


def _is_block(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple)) and bool(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _OTHER_TYPES.fullmatch(value) and ": " not in value:
        return value
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
