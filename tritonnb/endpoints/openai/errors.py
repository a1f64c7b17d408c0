"""Errors in the form of OpenAI's API."""

from __future__ import annotations

import json
from http import HTTPStatus

from tritonnb.core.errors import Status, TritonError
from tritonnb.endpoints.request_rules import client_text

_BAD_REQUEST, _NOT_FOUND = HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND


class OpenAiError(Exception):
    """An error response in OpenAI's form.

    Parameters
    ----------
    message : str
    param : str, optional
        The field of the request that is wrong.
    status : int, optional
    code : str, optional
        What clients may compare, such as ``model_not_found``.
    """

    def __init__(
        self, message: str, param: str | None = None, *, status: int = _BAD_REQUEST, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code

    @property
    def kind(self) -> str:
        """The ``type`` of the error."""
        return "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response that are special to the error."""
        return {"WWW-Authenticate": "Bearer"} if self.status == HTTPStatus.UNAUTHORIZED else {}

    def body(self) -> dict[str, object]:
        """Return the JSON of the response, or of an event of a stream."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def from_triton(error: TritonError) -> OpenAiError:
    """Return the error of a model, or of the server, in OpenAI's form."""
    message = client_text(error)
    status = HTTPStatus.INTERNAL_SERVER_ERROR if error.status is Status.UNKNOWN else HTTPStatus(error.status.http)
    return OpenAiError(message, status=status)


def unknown_model(name: str) -> OpenAiError:
    """Return the error of a request for a model that does not exist, or that this API cannot use."""
    return OpenAiError(f"The model '{name}' does not exist", "model", status=_NOT_FOUND, code="model_not_found")


def error_bytes(error: OpenAiError) -> bytes:
    """Return the JSON of an error."""
    return json.dumps(error.body(), ensure_ascii=False).encode("utf-8", "surrogateescape")
