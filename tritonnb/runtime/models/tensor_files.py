"""Tensors in the files of a model: initial states and warm-up samples."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import DataType, decode_bytes
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import zeros


def read_array(path: Path, datatype: DataType, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Read the first elements of a file in the wire form of a datatype; the rest of the file is ignored.

    Raises
    ------
    InvalidArgumentError
        If there are too few strings. For other datatypes `check_data_files` checks the size of the file.
    """
    count = math.prod(shape)
    if datatype.variable_size:
        elements = decode_bytes(path.read_bytes())[:count]
        if len(elements) < count:
            raise InvalidArgumentError(f"file '{path}' expected {count} elements, got {len(elements)}")
        return elements.reshape(shape)
    if not datatype.itemsize:
        return zeros(datatype, shape)  # unknown datatypes are reported elsewhere
    return np.frombuffer(path.read_bytes(), datatype.numpy, count=count).reshape(shape)
