"""Who may use the endpoint: the rules for hosts, origins and restricted APIs of the HTTP endpoint, and an API key."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.openai.errors import OpenAiError


@dataclass(frozen=True)
class Access:
    """The rules that a request must satisfy.

    Attributes
    ----------
    admission : Admission
    api_key : str
        Empty to accept every caller.
    """

    admission: Admission
    api_key: str

    def check(self, path: str, header: Callable[[str], str | None]) -> None:
        """Check a request.

        Parameters
        ----------
        path : str
        header : callable
            Returns the value of a header, or None.

        Raises
        ------
        OpenAiError
            If it is refused.
        """
        refusal = self.admission.refusal(path, header)
        if refusal is not None:
            raise OpenAiError(refusal[0], status=HTTPStatus.FORBIDDEN)
        if self.api_key:
            self._check_key(header("Authorization") or "")

    def _check_key(self, authorization: str) -> None:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self.api_key.encode()):
            raise OpenAiError(
                "Incorrect API key provided: expected the header 'Authorization: Bearer KEY' with the server's key",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
            )
