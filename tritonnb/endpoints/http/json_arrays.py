"""The arrays of tensors in JSON, nested in any way, as flat elements: in a list, or in compact blocks if they are long.

Millions of objects would stop the event loop: Python's garbage collector visits all of them in one step, and a list
frees all of its elements in one step. An array that is read in pieces therefore keeps its elements as NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import encode_bytes
from tritonnb.core.errors import InvalidArgumentError

#: The most values of a long document, not counting the elements of tensors. A short document cannot have more.
MOST_VALUES = 1 << 16
#: The depth of elements that is refused; the elements of the outermost array have depth 1.
_TOO_DEEP = 100


class Block(NamedTuple):
    """Consecutive elements of an array.

    Attributes
    ----------
    types : dict of type to int
        The types of the elements, with the place of the first element of each.
    length : int
    values : numpy.ndarray, bytes or list
        Numbers or booleans; strings in the form of BYTES; or a list of anything else.
    """

    types: dict[type, int]
    length: int
    values: npt.NDArray[Any] | bytes | list[Any]


class LongArray:
    """An array in several pieces of a document.

    Parameters
    ----------
    elements : list
        The elements in the first piece.

    Attributes
    ----------
    tail : list
        The elements in the last piece, as they were read.
    """

    def __init__(self, elements: list[Any]) -> None:
        self.tail = elements
        self._blocks: list[Block] = []
        self._length = 0
        self._is_nested = False
        self._continues = False  # the first element of the tail is the rest of an array that is cut

    def __len__(self) -> int:
        """Return the number of elements, which may be arrays."""
        return self._length + len(self.tail) - self._continues

    def join(self, piece: list[Any], depth: int) -> LongArray:
        """Append the elements in the next piece.

        Parameters
        ----------
        piece : list
        depth : int
            The number of arrays that are cut between the pieces, this one and those nested in it. At the cut, the
            innermost array has a null in both pieces.
        """
        last, first = self.tail, piece
        for _ in range(depth - 1):
            last, first = last[-1], first[0]
        del last[-1], first[0]
        self._end_tail()
        self._continues, self.tail = depth > 1, piece
        return self

    def close(self) -> LongArray:
        """Make the tail compact: no further piece will come."""
        if self.tail:
            self._end_tail()
        return self

    def _end_tail(self) -> None:
        self._blocks.append(_block(self.tail))
        self._is_nested = self._is_nested or list in map(type, self.tail)
        self._length, self._continues, self.tail = len(self), False, []

    def elements(self) -> list[Any]:
        """Return the elements for a reader that refuses strings and arrays, of which it only learns the type.

        Raises
        ------
        InvalidArgumentError
            If there are more than `MOST_VALUES`.
        """
        if len(self) > MOST_VALUES:
            raise too_many_values()
        if self._is_nested or list in map(type, self.tail):
            return [[]] * len(self)
        elements: list[Any] = []
        for _, length, values in self.blocks(""):
            elements += [""] * length if isinstance(values, bytes) else np.array(values, object).tolist()
        return elements

    def blocks(self, prefix: str) -> list[Block]:
        """Return the flat elements, as `flat_blocks`."""
        blocks = [*self._blocks, *([_block(self.tail)] if self.tail else [])]
        for block in blocks:
            if list in block.types:
                assert isinstance(block.values, list)
                _flattened(block.values, prefix)  # which raises an error
        return blocks


def flat_blocks(data: list[Any] | LongArray, prefix: str) -> list[Block]:
    """Return the elements of an array, nested in any way; those of a list are one block, which has them in a list.

    Raises
    ------
    InvalidArgumentError
        If they are nested too deep; the text begins with ``prefix``.
    """
    if isinstance(data, LongArray):
        return data.blocks(prefix)
    elements, types = _flattened(data, prefix)
    return [Block(_places(elements, types), len(elements), elements)]


def _flattened(elements: list[Any], prefix: str) -> tuple[list[Any], set[type]]:
    """Return the elements of a list, nested in any way, and their types."""
    depth = 1
    types = set(map(type, elements))
    # Level by level in C for regular nesting, which is what clients send; the recursive reader below is ten lines for
    # the rest.
    while types == {list}:
        elements = list(chain.from_iterable(elements))
        depth += 1
        _check_nesting(elements, depth, prefix)
        types = set(map(type, elements))
    if list in types:
        elements = list(_flat(elements, depth, prefix))
        types = set(map(type, elements))
    return elements, types


def _flat(elements: list[Any], depth: int, prefix: str) -> Iterator[Any]:
    _check_nesting(elements, depth, prefix)
    for element in elements:
        if type(element) is list:
            yield from _flat(element, depth + 1, prefix)
        else:
            yield element


def _check_nesting(elements: list[Any], depth: int, prefix: str) -> None:
    if elements and depth >= _TOO_DEEP:
        raise InvalidArgumentError(f"{prefix}JSON nesting depth exceeds maximum allowed limit ({_TOO_DEEP})")


def _block(elements: list[Any]) -> Block:
    try:
        elements, types = _flattened(elements, "")
    except InvalidArgumentError:  # the reader of the block flattens it again, and knows the beginning of the text
        return Block({list: 0}, len(elements), elements)
    values: npt.NDArray[Any] | bytes | list[Any] = elements
    if types == {str}:
        values = encoded_texts(elements)
    elif types <= {int, float} or types == {bool}:
        values = np.array(elements)
        if values.dtype.kind == "O" or (len(types) == 1 and values.dtype.kind == "f" and int in types):
            values = elements  # integers beyond 64 bits
    return Block(_places(elements, types), len(elements), values)


def _places(elements: list[Any], types: set[type]) -> dict[type, int]:
    if len(types) < 2:
        return dict.fromkeys(types, 0)
    kinds = list(map(type, elements))
    return {kind: kinds.index(kind) for kind in types}


def encoded_texts(texts: list[str]) -> bytes:
    """Return strings in the form of BYTES."""
    return encode_bytes(np.array([text.encode("utf-8", "surrogateescape") for text in texts], object))


def too_many_values() -> InvalidArgumentError:
    """Return the error for a document with more than `MOST_VALUES`."""
    return InvalidArgumentError(
        f"request JSON: expected at most {MOST_VALUES} values besides the elements of tensors, got more"
    )
