"""The options of the OpenAI-compatible endpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenAiOptions:
    """Options of the OpenAI-compatible endpoint.

    Attributes
    ----------
    allow : bool
        Serve the paths under ``/v1``, on the HTTP port unless the server has an ``openai_port``.
    api_key : str
        Require ``Authorization: Bearer API_KEY``; empty to accept every caller.

    Examples
    --------
    >>> OpenAiOptions(api_key="secret").allow
    True
    """

    allow: bool = True
    api_key: str = ""

    def __repr__(self) -> str:
        return f"OpenAiOptions(allow={self.allow}, api_key={'***' if self.api_key else ''!r})"
