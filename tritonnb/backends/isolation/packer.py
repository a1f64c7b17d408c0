"""Tensors of a message: one after another in its payload, as they are, strings in Triton's length-prefixed form."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.isolation.channel import ONCE, Channel, Header
from tritonnb.backends.isolation.region import Region, create_region
from tritonnb.core.datatypes import BY_NUMBER, INVALID, decode_bytes, encode_bytes
from tritonnb.core.messages import Tensor

#: Payloads up to this size are part of the message: copying them through a socket costs less than sharing memory.
INLINE = 1 << 15
#: Every tensor begins at a multiple of this, as vector instructions prefer.
_ALIGNMENT = 64

#: Name, number of the datatype, shape, offset and length in the payload.
Place = list[Any]


class Packer:
    """Collects the tensors of one message.

    Parameters
    ----------
    shared : SharedOutput, optional
        Receives large tensors at once, so that the caller may change them; otherwise they are copied by `send`.
    """

    def __init__(self, shared: SharedOutput | None = None) -> None:
        self.size = 0
        self._shared = shared
        self._parts: list[tuple[int, npt.NDArray[np.generic] | bytes]] = []
        self._has_written = False

    def add(self, tensor: Tensor) -> Place:
        """Add a tensor; returns its place in the payload."""
        array = tensor.array
        raw = encode_bytes(array) if array.dtype.kind == "O" else None
        length = array.nbytes if raw is None else len(raw)
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self.size = offset + length
        if self._shared is not None and length > INLINE:
            self._shared.write(offset, array if raw is None else raw, self.size)
            self._has_written = True
        elif length:
            copied = array.tobytes() if raw is None and self._shared is not None else raw
            self._parts.append((offset, array if copied is None else copied))
        return [tensor.name, tensor.datatype.number, list(array.shape), offset, length]

    def send(self, channel: Channel, header: Header, shared: SharedOutput | None = None) -> None:
        """Send a message with the tensors.

        Parameters
        ----------
        channel : Channel
        header : list
        shared : SharedOutput, optional
            The memory for a large payload; without it, memory for this message alone is allocated.

        Raises
        ------
        InternalError
            If there is not enough memory.
        OSError
            If the other process has ended.
        """
        if self.size <= INLINE and not self._has_written:
            channel.send(header, self._inline())
            return
        once = shared is None
        output = SharedOutput(ONCE) if shared is None else shared
        for offset, part in self._parts:
            output.write(offset, part, self.size)
        try:
            output.send(channel, header)
        finally:
            if once:
                output.close()

    def _inline(self) -> bytes | bytearray:
        if len(self._parts) == 1 and not self._parts[0][0]:
            part = self._parts[0][1]
            return part if isinstance(part, bytes) else part.tobytes()
        payload = bytearray(self.size)
        for offset, part in self._parts:
            raw = part if isinstance(part, bytes) else part.tobytes()
            payload[offset : offset + len(raw)] = raw
        return payload


class SharedOutput:
    """The shared memory in which one side of a channel sends large tensors; it is replaced by a larger one on demand.

    Parameters
    ----------
    number : int, optional
        The number of the first region; by default regions are counted.
    """

    def __init__(self, number: int = 0) -> None:
        self._numbers = itertools.repeat(number) if number else itertools.count(1)
        self._region: Region | None = None
        self._is_new = True

    def write(self, offset: int, data: npt.NDArray[np.generic] | bytes, size: int) -> None:
        """Copy a tensor to its place in a payload of at least ``size`` bytes; earlier contents are kept."""
        region = self._region
        if region is None or region.size < size:
            region = create_region(size, next(self._numbers))
            if self._region is not None:
                region.bytes[: self._region.size] = self._region.bytes
                self._region.close()
            self._region, self._is_new = region, True
        if isinstance(data, bytes):
            region.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        else:
            np.ndarray(data.shape, data.dtype, region.bytes, offset)[...] = data

    def send(self, channel: Channel, header: Header) -> None:
        """Send a message whose payload is the memory."""
        channel.send(header, b"", self._region, self._is_new)
        self._is_new = False

    def replace(self) -> None:
        """Use other memory for the next message: the receiver still uses this one."""
        self.close()

    def close(self) -> None:
        """Free the memory, unless the receiver uses it."""
        if self._region is not None:
            self._region.close()
            self._region = None


def unpack(place: Place, payload: npt.NDArray[np.uint8], *, copy: bool = False) -> Tensor:
    """A tensor of a message.

    Parameters
    ----------
    place : list
        From `Packer.add`.
    payload : numpy.ndarray of uint8
    copy : bool
        Whether the array gets memory of its own; otherwise it shares that of the payload.
    """
    name, number, shape, offset, length = place
    datatype = BY_NUMBER.get(number, INVALID)
    array: npt.NDArray[np.generic]
    if datatype.numpy.kind == "O":
        array = decode_bytes(payload[offset : offset + length].tobytes()).reshape(shape)
    elif not length:
        array = np.empty(shape, datatype.numpy)
    else:
        array = np.ndarray(shape, datatype.numpy, payload, offset)
        if copy:
            array = array.copy()
    return Tensor(name, datatype, array)
