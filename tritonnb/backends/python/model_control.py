"""``pb_utils.load_model``, ``unload_model`` and ``is_model_ready``."""

from __future__ import annotations

from collections.abc import Mapping

from tritonnb.backends.contract import ServerCalls
from tritonnb.backends.python.error import TritonModelException
from tritonnb.backends.python.instance_binding import current_binding
from tritonnb.backends.python.tensor import decode_text
from tritonnb.core.errors import TritonError


def load_model(model_name: str | bytes, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load a model, or load it anew; the server must run in explicit model control mode.

    Parameters
    ----------
    model_name : str
    config : str, optional
        Configuration as JSON instead of the file's.
    files : mapping of str to bytes, optional
        ``file:<path>`` to contents: these replace the model's directory, and need a ``config``.

    Raises
    ------
    TritonModelException
        If it cannot be loaded, or the server runs in another mode.
    """
    parameters: dict[str, str | bytes] = {"config": config} if config else {}
    for path, content in (files or {}).items():
        if not isinstance(content, bytes):
            raise TypeError(f"Object of type '{type(content).__name__}' is not an instance of 'bytes'")
        parameters[path] = content
    try:
        _server().load_model(decode_text(model_name), parameters)
    except TritonError as error:
        raise _failed("load model", error.message) from error


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Unload a model; it need not exist.

    Raises
    ------
    TritonModelException
        If the server runs in another mode.
    """
    try:
        _server().unload_model(decode_text(model_name), unload_dependents)
    except TritonError as error:
        raise _failed("unload model", error.message) from error


def is_model_ready(model_name: str | bytes, model_version: str = "") -> bool:
    """Whether a model is ready; without a version, whether any is.

    Raises
    ------
    TritonModelException
        If the version is no number.
    """
    text = decode_text(model_version)
    server = _server()
    try:
        version = int(text) if text else -1
    except ValueError:
        raise _failed(
            "check model readiness",
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
            "integral value > 0",
        ) from None
    return server.is_model_ready(decode_text(model_name), version)


def _server() -> ServerCalls:
    binding = current_binding()
    if binding is None or binding.server is None:
        raise TritonModelException("only a model that is being served can ask for another one")
    return binding.server


def _failed(what: str, message: str) -> TritonModelException:
    binding = current_binding()
    assert binding is not None
    return TritonModelException(
        f"Failed to {what}: Failed to process the request for model '{binding.name}', message: {message}"
    )
