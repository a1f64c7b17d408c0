"""Rules that HTTP and gRPC requests share: the model version, forwarded headers, and error texts."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from tritonnb.core.errors import InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.strtol import leading_number
from tritonnb.model_config.load import ConfigError

logger = logging.getLogger(__name__)

#: RE2 allows flags anywhere and can switch them off; Python's expressions have all flags at the start.
_FLAGS = re.compile(r"\(\?([ims]*)(?:-([ims]+))?\)")


def version_number(text: str | None) -> int:
    """Return the model version that a request names; -1 if it names none.

    Raises
    ------
    InvalidArgumentError
        If the text does not begin with a number, or the number is out of range.

    Examples
    --------
    >>> version_number("3"), version_number("")
    (3, -1)
    """
    if not text:
        return -1
    # `1x` is version 1, because Triton reads with `std::stoll`, which stops at the first other character.
    number = leading_number(text)
    if number is None or not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), version should "
            "be an integral value > 0"
        )
    if number < 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number


def compile_forward_pattern(text: str) -> re.Pattern[str] | None:
    """Compile ``--http-header-forward-pattern`` or ``--grpc-header-forward-pattern``.

    Headers in whose names the pattern is found become parameters of the inference request; use ``search``. The pattern
    has RE2's syntax and ignores case, unless it begins with ``(?-i)``.

    Parameters
    ----------
    text : str
        Empty if no headers are forwarded.

    Raises
    ------
    InvalidArgumentError
        If the text is not a regular expression.
    """
    if not text:
        return None
    # Triton matches names of headers without regard to case unless the pattern says otherwise.
    flags, rest = {"i"}, text
    while match := _FLAGS.match(rest):
        flags = (flags | set(match[1])) - set(match[2] or "")
        rest = rest[match.end() :]
    try:
        # Python instead of RE2: the operator writes the pattern, so its possible exponential time is no attack.
        return re.compile(f"(?{''.join(sorted(flags))}){rest}" if flags else rest)
    except re.error as error:
        raise InvalidArgumentError(
            f"header forward pattern: expected a regular expression, got '{text}': {error}"
        ) from error


#: Names of request parameters that have a meaning to the server, as have all that begin with ``triton_``.
_RESERVED = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}


def check_forwarded(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Check the headers that are to become request parameters.

    Parameters
    ----------
    headers : mapping of str to str
        Names are in lower case.

    Returns
    -------
    mapping of str to str
        The same headers.

    Raises
    ------
    InvalidArgumentError
        If a name belongs to a parameter that has a meaning to the server.

    Examples
    --------
    >>> check_forwarded({"x-user": "7"})
    {'x-user': '7'}
    """
    for name in headers:
        # Newer than Triton 2.51, which forwards any header: a parameter of this name looks as if the body had set it.
        if name in _RESERVED or name.startswith("triton_"):
            raise InvalidArgumentError(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    return headers


def client_text(error: TritonError) -> str:
    """Return the text of an error for clients; for an unreadable configuration it does not contain the cause."""
    # As on Triton, where only the log has the cause.
    return error.client_message if isinstance(error, ConfigError) else error.message


def refuse_repository(name: str | None) -> None:
    """Refuse a request that names a repository, as Triton does.

    Raises
    ------
    UnsupportedError
        If there is a name.
    """
    if name:
        raise UnsupportedError("'repository_name' specification is not supported")


def log_failed(request_id: str, error: TritonError) -> None:
    """Log at the verbose level that an inference request was refused or failed."""
    logger.debug("[request id: %s] Infer failed: %s", request_id or "<id_unknown>", error.message)
