"""`read_config` reads a configuration in any of the forms that Python code may have."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, cast

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import problem_context, read_text
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.json_text import JsonObject, JsonSyntaxError, ParsedJson, read_json
from tritonnb.model_config.normalize import without_defaults

#: A message, the text of a *config.pbtxt*, JSON, the path of a file with either, or a dict like the JSON.
AnyConfig: TypeAlias = Message | str | bytes | os.PathLike[str] | Mapping[str, object]

_FORMS = "a ModelConfig, the text of a config.pbtxt, JSON, a dict, or the path of a file"
#: The field of the gRPC response of the config endpoint that contains the configuration.
_WRAPPER = "config"


def read_config(
    config: AnyConfig, *, name: str = "simulated", check: Callable[[pb.ModelConfig], object] | None = None
) -> pb.ModelConfig:
    """Read a configuration.

    Parameters
    ----------
    config : ModelConfig, str, path or dict
        A message, the text of a *config.pbtxt*, JSON, the path of a file (``.pbtxt`` or ``.json``), or a dict. JSON and
        dicts have the form of Triton's config endpoint: over HTTP, or over gRPC with ``as_json=True``, where 64-bit
        integers are strings.
    name : str, optional
        Used if the configuration has no name.
    check : callable, optional
        ``check(config)`` raises `TritonError` to reject the configuration; position and fix are added to the error.

    Returns
    -------
    inference.ModelConfig
        A copy.

    Raises
    ------
    InvalidArgumentError
        If it has another form, cannot be read, or is rejected; see `TritonError.problems`.

    Examples
    --------
    >>> read_config("max_batch_size: 8").max_batch_size
    8
    >>> read_config({"config": {"max_batch_size": 8, "dynamic_batching": {"max_queue_delay_microseconds": "500"}}}).name
    'simulated'
    """
    return _read(config, name, check)[0]


def config_text(config: AnyConfig, *, check: Callable[[pb.ModelConfig], object] | None = None) -> str:
    """Convert a configuration in any form to the text of a *config.pbtxt*; text in that format is returned unchanged.

    Raises
    ------
    InvalidArgumentError
        As `read_config`.

    Examples
    --------
    >>> print(config_text({"max_batch_size": 8, "dynamic_batching": {}}))
    max_batch_size: 8
    dynamic_batching {
    }
    <BLANKLINE>
    """
    read, text = _read(config, "", check)
    written: str = text_format.MessageToString(without_defaults(read), use_short_repeated_primitives=True)
    return written if text is None else text


def config_json(config: AnyConfig) -> str:
    """Convert a configuration in any form to JSON for the load API; JSON is returned unchanged.

    Raises
    ------
    InvalidArgumentError
        As `read_config`.
    """
    if isinstance(config, str) and config.lstrip().startswith("{") and not _is_wrapped(config):
        return config
    return str(json_format.MessageToJson(read_config(config, name="")))


def _read(
    config: AnyConfig, name: str, check: Callable[[pb.ModelConfig], object] | None
) -> tuple[pb.ModelConfig, str | None]:
    """Return the configuration, and its text if it was the text of a *config.pbtxt*."""
    text: str | None = _text_of(config) if isinstance(config, str | bytes | os.PathLike) else None
    try:
        if text is not None and text.lstrip().startswith("{"):
            read, text = _from_fields(_parsed_json(text)), None
        elif text is not None:
            read = read_text(text).config
        else:
            read = _from_message(config) if isinstance(config, Message) else _from_fields(config)
        read.name = read.name or name
        if check is not None:
            with problem_context(read, text):
                check(read)
    except TritonError as error:
        if _is_path(config):
            error.message = f"'{os.fspath(cast(str, config))}': {error.message}"
        raise
    return read, text


def _text_of(config: str | bytes | os.PathLike[str]) -> str:
    if isinstance(config, bytes):
        return config.decode("utf-8", "surrogateescape")
    if isinstance(config, str) and not _is_path(config):
        return config
    path = Path(config)
    try:
        return path.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the configuration '{path}': {error.strerror}") from None


def _is_path(config: object) -> bool:
    """Return whether a configuration is given as a path: a text with a colon or a bracket has fields."""
    if not isinstance(config, str):
        return isinstance(config, os.PathLike)
    if set(config) & set("{}<>#\n") or not config.strip():
        return False
    return ":" not in config or Path(config).suffix in (".pbtxt", ".json")


def _is_wrapped(text: str) -> bool:
    try:
        value = read_json(text)
    except JsonSyntaxError:
        return False
    return isinstance(value, JsonObject) and [name for name, _ in value.members] == [_WRAPPER]


def _parsed_json(text: str) -> ParsedJson:
    try:
        return read_json(text)
    except JsonSyntaxError as error:
        raise InvalidArgumentError(f"the configuration is not valid JSON: {error}") from None


def _from_message(config: Message) -> pb.ModelConfig:
    """Copy a message, which may be from another copy of the schema, or a gRPC response of the config endpoint."""
    if config.DESCRIPTOR.name == "ModelConfigResponse":
        config = getattr(config, _WRAPPER)
    if config.DESCRIPTOR.full_name != pb.ModelConfig.DESCRIPTOR.full_name:
        raise InvalidArgumentError(f"configuration expected {_FORMS}, got a {config.DESCRIPTOR.full_name}")
    return pb.ModelConfig.FromString(config.SerializeToString())


def _from_fields(config: object) -> pb.ModelConfig:
    fields = dict(config.members) if isinstance(config, JsonObject) else config
    if not isinstance(fields, Mapping):
        raise InvalidArgumentError(f"configuration expected {_FORMS}, got {config!r}")
    if [*fields] == [_WRAPPER]:
        return _from_fields(fields[_WRAPPER])
    read = pb.ModelConfig()
    set_fields(read, fields)
    return read
