"""The types of values that are written as JSON, and the form of the v2 protocol's metadata and repository index."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

#: A value that `json.dumps` accepts.
JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
JsonDict: TypeAlias = dict[str, JsonValue]

#: An object that was read from JSON, or that nothing checks before it is written: values of any type.
Json: TypeAlias = dict[str, Any]


class ServerMetadata(TypedDict):
    """The server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(TypedDict):
    """An input or output of a model; -1 in its shape is a dimension of any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(TypedDict):
    """A model and its versions that are ready."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


# Not `Required`: Python 3.11 does not see it in the text of an annotation, and OpenAPI lists required names.
class _ModelName(TypedDict):
    name: str


class IndexEntry(_ModelName, total=False):
    """A version of a model in the repository index, or a model without versions."""

    version: str
    state: str
    reason: str
