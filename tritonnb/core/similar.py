"""The name that was perhaps meant, where one was given that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that begins with it or is like it, as the end of an error's text; empty where there is none.

    >>> did_you_mean("add_sup", ["add_sub", "digits"])
    "; did you mean 'add_sub'?"
    """
    candidates = sorted(known)
    found = [each for each in candidates if each.startswith(name)] or difflib.get_close_matches(name, candidates, n=1)
    return f"; did you mean '{found[0]}'?" if found else ""
