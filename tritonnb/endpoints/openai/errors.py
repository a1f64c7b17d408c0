"""Errors in the form of OpenAI's API."""

from __future__ import annotations

import json
from http import HTTPStatus

from tritonnb.core.errors import Status, TritonError
from tritonnb.endpoints.request_rules import client_text


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
        self, message: str, param: str | None = None, *, status: int = HTTPStatus.BAD_REQUEST, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response that are special to the error."""
        return {"WWW-Authenticate": "Bearer"} if self.status == HTTPStatus.UNAUTHORIZED else {}

    def body(self) -> dict[str, object]:
        """Return the JSON of the response, or of an event of a stream."""
        # Clients of the package `openai` choose their exception by the status; the type is for readers.
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def from_triton(error: TritonError) -> OpenAiError:
    """Return the error of a model, or of the server, in OpenAI's form."""
    # UNKNOWN is 400 over HTTP on Triton, but a client of OpenAI would take 400 for a fault of its request.
    status = HTTPStatus.INTERNAL_SERVER_ERROR if error.status is Status.UNKNOWN else error.status.http
    return OpenAiError(client_text(error), status=status)


def unknown_model(name: str) -> OpenAiError:
    """Return the error of a request for a model that does not exist, or that this API cannot use."""
    text = f"The model '{name}' does not exist"
    return OpenAiError(text, "model", status=HTTPStatus.NOT_FOUND, code="model_not_found")


def error_bytes(error: OpenAiError) -> bytes:
    """Return the JSON of an error."""
    return json.dumps(error.body(), ensure_ascii=False).encode("utf-8", "surrogateescape")
