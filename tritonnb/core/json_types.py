"""The types of values that are written as JSON."""

from __future__ import annotations

from typing import Any, TypeAlias

#: A value that `json.dumps` accepts.
JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
JsonDict: TypeAlias = dict[str, JsonValue]

#: An object that was read from JSON, or that nothing checks before it is written: values of any type.
Json: TypeAlias = dict[str, Any]
