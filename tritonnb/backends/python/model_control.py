"""``pb_utils.load_model``, ``unload_model`` and ``is_model_ready``."""

from __future__ import annotations

from collections.abc import Mapping

from tritonnb.backends.contract import ServerCalls
from tritonnb.backends.python.error import TritonModelException
from tritonnb.backends.python.instance_binding import current_binding
from tritonnb.backends.python.tensor import decode_text
from tritonnb.core.errors import TritonError


def load_model(model_name: str | bytes, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model; the server must run in explicit model control mode.

    Parameters
    ----------
    model_name : str
    config : str, optional
        Configuration as JSON, used instead of *config.pbtxt*.
    files : mapping of str to bytes, optional
        Contents by ``file:<path>``, which replace the model's directory; they require ``config``.

    Raises
    ------
    TritonModelException
        If the model cannot be loaded, or the server runs in another mode.
    """
    parameters: dict[str, str | bytes] = {"config": config} if config else {}
    for path, content in (files or {}).items():
        if not isinstance(content, bytes):
            raise TypeError(f"Object of type '{type(content).__name__}' is not an instance of 'bytes'")
        parameters[path] = content
    try:
        _server().load_model(decode_text(model_name), parameters)
    except TritonError as error:
        raise _error("load model", error.message) from error


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Unload a model; a model that does not exist is ignored.

    Raises
    ------
    TritonModelException
        If the server runs in another mode.
    """
    try:
        _server().unload_model(decode_text(model_name), unload_dependents)
    except TritonError as error:
        raise _error("unload model", error.message) from error


def is_model_ready(model_name: str | bytes, model_version: str = "") -> bool:
    """Whether a model version is ready; without a version, whether any version of the model is.

    Raises
    ------
    TritonModelException
        If the version is not a number.
    """
    version_text = decode_text(model_version)
    server = _server()
    try:
        version = int(version_text) if version_text else -1
    except ValueError:
        raise _error(
            "check model readiness",
            f"failed to get model version from specified version string '{version_text}' (details: stol), version "
            "should be an integral value > 0",
        ) from None
    return server.is_model_ready(decode_text(model_name), version)


def _server() -> ServerCalls:
    binding = current_binding()
    if binding is None or binding.server is None:
        raise TritonModelException("expected the call to come from a model that a server runs")
    return binding.server


def _error(action: str, message: str) -> TritonModelException:
    binding = current_binding()
    assert binding is not None
    return TritonModelException(
        f"Failed to {action}: Failed to process the request for model '{binding.name}', message: {message}"
    )
