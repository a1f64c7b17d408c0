"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Shorter names are contained in too many others.
_MIN_PART_LENGTH = 3
#: More than the default of `difflib`, with which `--tf-allow-soft-placement` resembles `--allow-sagemaker`.
_LEAST_SIMILARITY = 0.65


def similar_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that starts with ``name``, is spelled similarly, or contains it; empty if there is none.

    >>> similar_name("onnx", ["onnxruntime", "pytorch"]), similar_name("torch", ["onnxruntime", "pytorch"])
    ('onnxruntime', 'pytorch')
    """
    candidates = sorted(known)
    similar = [candidate for candidate in candidates if candidate.lower() == name.lower()]
    similar += [candidate for candidate in candidates if candidate.startswith(name)]
    similar += difflib.get_close_matches(name, candidates, n=1, cutoff=_LEAST_SIMILARITY)
    if len(name) >= _MIN_PART_LENGTH:
        similar += [candidate for candidate in candidates if name in candidate]
    return similar[0] if similar else ""


def similar_name_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint for an error (`TritonError.hint`) with the similar name; empty if there is none.

    >>> similar_name_hint("add_sup", ["add_sub", "digits"])
    "did you mean 'add_sub'?"
    """
    similar = similar_name(name, known)
    return f"did you mean '{similar}'?" if similar else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the same hint as the end of a message.

    >>> did_you_mean("add_sup", ["add_sub", "digits"])
    "; did you mean 'add_sub'?"
    """
    hint = similar_name_hint(name, known)
    return f"; {hint}" if hint else ""
