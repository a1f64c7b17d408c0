"""Who may write to an array: an array that can be written to belongs to one owner, and one that is shared is read-only.

A request owns its inputs from the moment it is submitted, and a response its outputs from the moment a backend gives
it. Whoever passes an array on to several readers makes it read-only, and whoever wants to write to an array that is
read-only takes a copy. So the ``writeable`` flag says whether a copy is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def writeable_copy(array: npt.ArrayLike) -> npt.NDArray[Any]:
    """A copy in memory of its own, in C order, that can be written to."""
    return array.copy() if type(array) is np.ndarray else np.array(array, order="C")


def ensure_writeable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array that its owner may write to: the array itself, or a copy of it if it is read-only."""
    return array if array.flags.writeable else writeable_copy(array)


def read_only_view(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view that cannot be written to, for an array that several readers share."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
