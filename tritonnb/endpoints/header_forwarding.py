"""Which headers of a request become parameters of its inference: ``--http-`` and ``--grpc-header-forward-pattern``.

A pattern is RE2's, found anywhere in the name of a header, in any case unless it begins with ``(?-i)``.
"""

from __future__ import annotations

import re

from tritonnb.core.errors import InvalidArgumentError

#: RE2 takes flags apart from a group, and takes them back; Python's expressions have them all at the start.
_FLAGS = re.compile(r"\(\?([ims]*)(?:-([ims]+))?\)")


def forward_pattern(text: str) -> re.Pattern[str] | None:
    """A pattern for the names of headers; use its ``search``.

    Parameters
    ----------
    text : str
        Nothing is forwarded if it is empty.

    Raises
    ------
    InvalidArgumentError
        If it is no regular expression.
    """
    if not text:
        return None
    flags, rest = {"i"}, text
    while found := _FLAGS.match(rest):
        flags = (flags | set(found[1])) - set(found[2] or "")
        rest = rest[found.end() :]
    try:
        return re.compile(f"(?{''.join(sorted(flags))}){rest}" if flags else rest)
    except re.error as error:
        raise InvalidArgumentError(f"'{text}' is no pattern of header names: {error}") from error
