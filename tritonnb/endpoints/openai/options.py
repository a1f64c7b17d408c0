"""The options of the OpenAI-compatible endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.option_types import check_types


@dataclass(frozen=True, slots=True)
class OpenAiOptions:
    """Options of the OpenAI-compatible endpoint.

    Attributes
    ----------
    allow : bool
        Serve the paths under ``/v1``, on the HTTP port unless the server has an ``openai_port``.
    api_key : str
        Require ``Authorization: Bearer API_KEY``; empty to accept every caller.
    default_max_tokens : int
        The ``max_tokens`` of completions and chats if the client sets none.

    Examples
    --------
    >>> OpenAiOptions(api_key="secret").allow
    True
    """

    allow: bool = True
    # Not in the `repr`, which notebooks show and logs keep.
    api_key: str = field(default="", repr=False)
    # As OpenAI's completions and Triton's front end. It is short for a chat, but some models require the parameter, so
    # that a chat without a limit could not be answered.
    default_max_tokens: int = 16

    def __post_init__(self) -> None:
        check_types(self, "OpenAiOptions.")
        if self.default_max_tokens < 1:
            raise InvalidArgumentError(
                f"OpenAiOptions.default_max_tokens: expected at least 1, got {self.default_max_tokens}"
            )
