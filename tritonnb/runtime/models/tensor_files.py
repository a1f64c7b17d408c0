"""Tensors in files of a model: initial states, and samples for warming up."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import DataType, decode_bytes
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import zeros


def read_array(path: Path, datatype: DataType, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """The first elements of a file in the wire form of a datatype; what follows them is not looked at.

    Raises
    ------
    InvalidArgumentError
        If there are too few strings. Of other datatypes the check of the configuration has counted the bytes.
    """
    count = math.prod(shape)
    if datatype.variable_size:
        elements = decode_bytes(path.read_bytes())[:count]
        if len(elements) < count:
            raise InvalidArgumentError(f"{path} holds {len(elements)} elements, and {count} are needed")
        return elements.reshape(shape)
    if not datatype.itemsize:
        return zeros(datatype, shape)  # an unknown datatype is reported by another check
    return np.frombuffer(path.read_bytes(), datatype.numpy, count=count).reshape(shape)
