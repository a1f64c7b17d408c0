"""Shapes as text, their numbers of elements, and whether they fit dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: The largest number of elements: Triton's sizes are integers of 64 bits.
MAX_ELEMENTS: Final = 2**63 - 1
#: Dimensions whose product may be computed exactly: it has at most this many times 64 bits.
_FEW_DIMS: Final = 64


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as Triton writes it: ``[-1,3]``."""
    return f"[{','.join(map(str, shape))}]"


def fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Return whether a shape has these dims; -1 in ``dims`` stands for any size."""
    # mypyc compiles loops over tuples without an iterator; most shapes are tuples, and not copied.
    sizes, expected = tuple(shape), tuple(dims)
    if len(sizes) != len(expected):
        return False
    for index, dim in enumerate(expected):  # noqa: SIM110  (mypyc makes a list of a generator)
        if dim != -1 and dim != sizes[index]:
            return False
    return True


def element_count(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape; beyond 64 bits any number that is.

    The product of the dimensions that a client sends grows with each of them: 60,000 take 15 s to multiply.

    Parameters
    ----------
    shape : sequence of int
        May contain -1.

    Returns
    -------
    int
        The product. If it exceeds `MAX_ELEMENTS`, then `MAX_ELEMENTS` + 1 or more; likewise below -`MAX_ELEMENTS`.

    Examples
    --------
    >>> element_count((2, 3)), element_count(()), element_count([2**62] * 1000) > MAX_ELEMENTS
    (6, 1, True)
    """
    count = 1
    if len(shape) <= _FEW_DIMS:
        for dim in tuple(shape):
            count *= dim
        return count
    if 0 in shape:
        return 0
    for dim in shape:
        count = max(-MAX_ELEMENTS - 1, min(MAX_ELEMENTS + 1, count * dim))
    return count
