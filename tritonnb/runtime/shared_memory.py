"""Shared memory regions that clients register in order to send and receive tensors without copies.

A system region is a part of a POSIX shared memory object, which is mapped while the region is registered. A region
cannot be unregistered while a request uses it. CUDA regions (`tritonnb.runtime.cuda_memory`) require a GPU.

Implements the system shared memory and CUDA shared memory extensions.
"""

from __future__ import annotations

import gc
import mmap
import os
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from tritonnb.core.errors import AlreadyExistsError, InternalError, InvalidArgumentError, NotFoundError
from tritonnb.runtime.cuda_memory import CudaRegion

try:
    import _posixshmem
except ImportError:  # Windows does not support POSIX shared memory
    _posixshmem = None


class Part(Protocol):
    """The part of a region that contains a tensor."""

    def __len__(self) -> int:
        """The size in bytes."""

    def read(self) -> memoryview:
        """The bytes; those of system shared memory are not copied."""

    def write(self, contents: bytes | memoryview) -> None:
        """Overwrite the first bytes."""


@dataclass(frozen=True, slots=True)
class SystemPart:
    """A part of a mapped region."""

    memory: memoryview

    def __len__(self) -> int:
        return len(self.memory)

    def read(self) -> memoryview:
        """A read-only view of the bytes, so that models cannot change the client's memory."""
        return self.memory.toreadonly()

    def write(self, contents: bytes | memoryview) -> None:
        """Overwrite the first bytes."""
        self.memory[: len(contents)] = contents


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """A registered region.

    Attributes
    ----------
    name, key : str
        The name that clients use, and the name of the shared memory object.
    offset, byte_size : int
        Its offset in the shared memory object, and its size in bytes.
    memory : mmap.mmap
        The mapped memory, which is writable.
    """

    kind: ClassVar[str] = "system"

    name: str
    key: str
    offset: int
    byte_size: int
    memory: mmap.mmap

    def part(self, offset: int, byte_size: int) -> SystemPart:
        """A part of the region, which must be within its bounds."""
        return SystemPart(memoryview(self.memory)[offset : offset + byte_size])

    def release(self) -> bool:
        """Unmap the region, unless a request uses it; returns whether it was unmapped."""
        for _ in range(2):
            try:
                self.memory.close()
            except BufferError:
                gc.collect()  # completed requests may not have been collected yet
            else:
                return True
        return False

    def to_dict(self) -> dict[str, str | int]:
        """The region in the form of the extension."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}


Region = TypeVar("Region", SystemRegion, CudaRegion)


class SharedMemory:
    """The regions of one server; used on its event loop."""

    def __init__(self) -> None:
        self._regions: dict[str, SystemRegion | CudaRegion] = {}

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a shared memory object.

        Raises
        ------
        AlreadyExistsError, InternalError, InvalidArgumentError
            If the name is already registered, or the object does not exist or is too small.
        """
        self._check_free(name)
        descriptor = _open(key)
        try:
            memory = _map(descriptor, offset, byte_size)
        except ValueError as error:
            raise InvalidArgumentError(f"failed to register shared memory region '{name}': {error}") from None
        finally:
            os.close(descriptor)
        self._regions[name] = SystemRegion(name, key, offset, byte_size, memory)

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register memory of a GPU.

        Raises
        ------
        AlreadyExistsError, InvalidArgumentError
            If the name is already registered, or the handle cannot be opened.
        """
        self._check_free(name)
        self._regions[name] = CudaRegion.open(name, handle, device_id, byte_size)

    def unregister(self, kind: type[SystemRegion | CudaRegion], name: str = "") -> None:
        """Unregister a region of this kind, or all of them; an unknown name is ignored.

        Raises
        ------
        InternalError
            If requests use the region, or some of the regions; the others are unregistered.
        """
        registered = [region for region in sorted(self._regions) if isinstance(self._regions[region], kind)]
        selected = [region for region in registered if name in ("", region)]
        in_use = [region for region in selected if not self._regions[region].release()]
        for region in set(selected).difference(in_use):
            del self._regions[region]
        if in_use and name:
            raise InternalError(f"Cannot unregister shared memory region '{name}', it is currently in use.")
        if in_use:
            failed = "".join(f"{region} ," for region in in_use)
            raise InternalError(
                f"Failed to unregister the following {kind.kind.lower()} shared memory regions: {failed}"
            )

    def status(self, kind: type[Region], name: str = "") -> list[Region]:
        """The region with a name, or all regions of this kind in the order of their names.

        Raises
        ------
        NotFoundError
            If there is no region of this kind with the name.
        """
        if not name:
            return [region for _, region in sorted(self._regions.items()) if isinstance(region, kind)]
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find {kind.kind.lower()} shared memory region: '{name}'")
        if not isinstance(region, kind):
            raise NotFoundError(
                f"The region named '{name}' is registered as {region.kind} shared memory, not {kind.kind} shared memory"
            )
        return [region]

    def part(self, name: str, offset: int, byte_size: int) -> Part:
        """The part of a region that contains a tensor.

        Raises
        ------
        NotFoundError, InvalidArgumentError
            If the region does not exist or ends before that.
        """
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        if offset >= region.byte_size:
            raise InvalidArgumentError(f"Invalid offset for shared memory region: '{name}'")
        if not 0 <= offset + byte_size - 1 < region.byte_size:
            raise InvalidArgumentError(f"Invalid offset + byte size for shared memory region: '{name}'")
        return region.part(offset, byte_size)

    def _check_free(self, name: str) -> None:
        if name in self._regions:
            raise AlreadyExistsError(f"shared memory region '{name}' already in manager")


def fill(output: str, part: Part, contents: bytes | memoryview) -> None:
    """Write an output to shared memory.

    Raises
    ------
    InternalError
        If the part of the region is too small.
    """
    if len(contents) > len(part):
        raise InternalError(
            f"shared memory size specified with the request for output '{output}' ({len(part)} bytes) should be at "
            f"least {len(contents)} bytes to hold the results"
        )
    part.write(contents)


def _open(key: str) -> int:
    try:
        if _posixshmem is None:
            raise OSError
        descriptor: int = _posixshmem.shm_open(key, os.O_RDWR, 0o600)
    except (OSError, ValueError):
        raise InternalError(f"Unable to open shared memory region: '{key}'") from None
    return descriptor


def _map(descriptor: int, offset: int, byte_size: int) -> mmap.mmap:
    size = os.fstat(descriptor).st_size
    if offset + byte_size > size:  # an access beyond the end would terminate the process
        raise ValueError("invalid args")
    if not byte_size or offset % mmap.ALLOCATIONGRANULARITY:
        raise ValueError("unable to process address spaceInvalid argument")
    return mmap.mmap(descriptor, byte_size, offset=offset)
