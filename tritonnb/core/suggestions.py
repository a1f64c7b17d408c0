"""The name that was perhaps meant, where one was given that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: A shorter name is part of too many others.
_LENGTH_OF_A_PART = 3


def similar_name(name: str, known: Iterable[str]) -> str:
    """The known name that begins with it, is like it or contains it; empty where there is none.

    >>> similar_name("onnx", ["onnxruntime", "pytorch"]), similar_name("torch", ["onnxruntime", "pytorch"])
    ('onnxruntime', 'pytorch')
    """
    candidates = sorted(known)
    similar = [candidate for candidate in candidates if candidate.startswith(name)]
    similar += difflib.get_close_matches(name, candidates, n=1)
    if len(name) >= _LENGTH_OF_A_PART:
        similar += [candidate for candidate in candidates if name in candidate]
    return similar[0] if similar else ""


def similar_name_hint(name: str, known: Iterable[str]) -> str:
    """The hint of an error (`TritonError.hint`) that names what is similar to a name; empty where nothing is.

    >>> similar_name_hint("add_sup", ["add_sub", "digits"])
    "did you mean 'add_sub'?"
    """
    similar = similar_name(name, known)
    return f"did you mean '{similar}'?" if similar else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The same as the end of an error's text.

    >>> did_you_mean("add_sup", ["add_sub", "digits"])
    "; did you mean 'add_sub'?"
    """
    hint = similar_name_hint(name, known)
    return f"; {hint}" if hint else ""
