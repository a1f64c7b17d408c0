"""`read_config`: a configuration in any of the forms in which Python code has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import ProblemContext, read_text
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.json_text import JsonObject, JsonSyntaxError, read_json
from tritonnb.model_config.normalize import without_defaults

#: A message, *config.pbtxt* as text, JSON as text, the path of a file with one of them, or a dict as JSON has it.
AnyConfig: TypeAlias = Message | str | bytes | os.PathLike[str] | Mapping[str, Any]

_FORMS = "a ModelConfig, the text of a config.pbtxt, JSON, a dict, or the path of a file"
#: What clients wrap a configuration in: the gRPC response of the config endpoint.
_WRAPPER = "config"


def read_config(
    config: AnyConfig, *, name: str = "simulated", check: Callable[[pb.ModelConfig], object] | None = None
) -> pb.ModelConfig:
    """Read a configuration.

    Parameters
    ----------
    config : ModelConfig, str, path or dict
        A message; text, either that of a *config.pbtxt* or JSON; the path of a file (``.pbtxt`` or ``.json``); a dict.
        JSON and dicts are those of Triton's config endpoint: over HTTP, or over gRPC with ``as_json=True``, where
        64-bit integers are strings.
    name : str, optional
        The name of a configuration that has none.
    check : callable, optional
        Raises `TritonError` for a configuration that is refused; the error gets place and fix.

    Returns
    -------
    inference.ModelConfig
        A copy.

    Raises
    ------
    InvalidArgumentError
        If it is none of these, cannot be read, or is refused; see `TritonError.problems`.

    Examples
    --------
    >>> read_config("max_batch_size: 8").max_batch_size
    8
    >>> read_config({"config": {"max_batch_size": 8, "dynamic_batching": {"max_queue_delay_microseconds": "500"}}}).name
    'simulated'
    """
    return _read(config, name, check)[0]


def config_text(config: AnyConfig, *, check: Callable[[pb.ModelConfig], object] | None = None) -> str:
    """A configuration in any of its forms as the text of a *config.pbtxt*; such a text stays as it is.

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
    """A configuration in any of its forms as JSON, as the load API takes it; JSON stays as it is.

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
    """A configuration, and its text where it was that of a *config.pbtxt*."""
    text: str | None = _text_of(config) if isinstance(config, str | bytes | os.PathLike) else None
    if text is not None and text.lstrip().startswith("{"):
        config, text = _parsed_json(text), None
    if text is not None:
        read = read_text(text).config
    else:
        read = _of_message(config) if isinstance(config, Message) else _of_fields(config)
    read.name = read.name or name
    if check is not None:
        with ProblemContext(read, text):
            check(read)
    return read, text


def _text_of(config: str | bytes | os.PathLike[str]) -> str:
    if isinstance(config, bytes):
        return config.decode("utf-8", "surrogateescape")
    path = Path(config)
    if isinstance(config, str) and (set(config) & set("{}\n") or path.suffix not in (".pbtxt", ".json")):
        return config
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"the configuration '{path}' cannot be read: {error.strerror}") from None


def _is_wrapped(text: str) -> bool:
    try:
        value = read_json(text)
    except JsonSyntaxError:
        return False
    return isinstance(value, JsonObject) and [name for name, _ in value.members] == [_WRAPPER]


def _parsed_json(text: str) -> Any:
    try:
        value = read_json(text)
    except JsonSyntaxError as error:
        raise InvalidArgumentError(f"the configuration is not valid JSON: {error}") from None
    return value


def _of_message(config: Message) -> pb.ModelConfig:
    """A copy; also of a message of another package's schema, and of what the config endpoint answers over gRPC."""
    if config.DESCRIPTOR.name == "ModelConfigResponse":
        config = getattr(config, _WRAPPER)
    if config.DESCRIPTOR.full_name != pb.ModelConfig.DESCRIPTOR.full_name:
        raise InvalidArgumentError(f"a configuration expected {_FORMS}, got a {config.DESCRIPTOR.full_name}")
    return pb.ModelConfig.FromString(config.SerializeToString())


def _of_fields(config: Any) -> pb.ModelConfig:
    fields = dict(config.members) if isinstance(config, JsonObject) else config
    if not isinstance(fields, Mapping):
        raise InvalidArgumentError(f"a configuration expected {_FORMS}, got {config!r}")
    if [*fields] == [_WRAPPER]:
        return _of_fields(fields[_WRAPPER])
    read = pb.ModelConfig()
    set_fields(read, fields)
    return read
