"""The form of the v2 protocol's metadata and repository index, as the server returns them as JSON."""

from __future__ import annotations

from typing import TypedDict


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


class _ModelName(TypedDict):
    name: str


class IndexEntry(_ModelName, total=False):
    """A version of a model in the repository index, or a model without versions."""

    version: str
    state: str
    reason: str
