"""Shared memory regions that clients register in order to send and receive tensors without copies.

A region is a part of a POSIX shared memory object, mapped while it is registered. A region that is unregistered while
requests use it stays registered until they are done. Without a GPU, CUDA regions are refused as on Triton.

Implements the system shared memory and CUDA shared memory extensions.
"""

from __future__ import annotations

import logging
import mmap
import os
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from tritonnb.core.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from tritonnb.engine.cuda_memory import CudaPart, CudaRegion

try:
    # Not `multiprocessing.shared_memory`: its resource tracker would delete the client's object when this process ends.
    import _posixshmem
except ImportError:  # Windows does not support POSIX shared memory
    _posixshmem = None

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SystemPart:
    """A part of a mapped region."""

    memory: memoryview

    def __len__(self) -> int:
        return len(self.memory)

    def read(self) -> memoryview:
        """Return a read-only view of the bytes, so that models cannot change the client's memory."""
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
        """Return a part of the region, which must be within its bounds."""
        return SystemPart(memoryview(self.memory)[offset : offset + byte_size])

    def release(self) -> bool:
        """End the mapping; False if a request still uses it."""
        try:
            self.memory.close()
        # An mmap with views refuses to close, which saves counting who uses the region.
        except BufferError:
            return False
        return True

    def to_dict(self) -> dict[str, str | int]:
        """Return the region in the form of the extension."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}


#: The part of a region that contains a tensor.
Part = SystemPart | CudaPart
Region = TypeVar("Region", SystemRegion, CudaRegion)

#: Regions of a server, if it may open as many files.
_MOST_REGIONS = 4096
#: Objects with this prefix belong to Triton's Python backend.
_RESERVED_PREFIX = "triton_python_backend_shm_region_"
_MAX_SIZE = 2**64 - 1
#: Triton's text for clients of a server that was started without ``--allow-client-shm=true``.
_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


class SharedMemory:
    """The regions of one server; lives on its loop.

    Parameters
    ----------
    allow_clients : bool, optional
        Whether clients may register and unregister regions (``--allow-client-shm``).
    """

    def __init__(self, allow_clients: bool = False) -> None:
        self._allow_clients = allow_clients
        self._regions: dict[str, SystemRegion | CudaRegion] = {}
        #: Regions that were unregistered while requests used them.
        self._unregistered: set[str] = set()

    def check_clients_allowed(self) -> None:
        """Check that clients may register and unregister regions; endpoints call it before they read such a request.

        Raises
        ------
        UnsupportedError
            If clients may not register regions.
        """
        if not self._allow_clients:
            raise UnsupportedError(_DISABLED)

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a shared memory object.

        Raises
        ------
        AlreadyExistsError, InternalError, InvalidArgumentError
            If the key is invalid or reserved, the name is registered already, or the object does not exist or is
            smaller.
        UnavailableError
            If there are too many regions.
        """
        _check_key(name, key)
        self._check_free(name)
        descriptor = _open(key)
        try:
            memory = _map(descriptor, offset, byte_size)
        except ValueError as error:
            raise InvalidArgumentError(f"failed to register shared memory region '{name}': {error}") from None
        except OSError as error:  # such as too many open files
            raise InternalError(f"failed to register shared memory region '{name}': {error.strerror}") from None
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
        self._regions[name] = CudaRegion(name, handle, device_id, byte_size)

    def unregister(self, kind: type[SystemRegion | CudaRegion], name: str = "") -> None:
        """Unregister a region of this kind, which need not exist, or all of them.

        A region that requests use is unregistered when they are done.

        Raises
        ------
        InternalError
            If a region of a GPU cannot be closed.
        """
        selected = [key for key, region in sorted(self._regions.items()) if isinstance(region, kind)]
        selected = [key for key in selected if name in ("", key)]
        self._unregistered.update(selected)
        failures = self._release_unregistered()
        if name and name in failures:
            raise failures[name]
        # Triton's list, with the space before the comma.
        failed = "".join(f"{key} ," for key in selected if key in failures)
        if failed:
            raise InternalError(
                f"Failed to unregister the following {kind.kind.lower()} shared memory regions: {failed}"
            )
        for key in self._unregistered.intersection(selected):
            logger.debug("Shared memory region '%s' will be unregistered after in-flight requests complete.", key)

    def status(self, kind: type[Region], name: str = "") -> list[Region]:
        """Return the region with a name, or all regions of this kind in the order of their names.

        Raises
        ------
        NotFoundError
            If a region of this kind and name does not exist.
        """
        self._release_unregistered()
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
        """Return the part of a region that contains a tensor.

        Raises
        ------
        NotFoundError, InvalidArgumentError
            If the region does not exist or ends before the tensor does.
        """
        if self._unregistered:
            self._release_unregistered()
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        if offset >= region.byte_size:
            raise InvalidArgumentError(f"Invalid offset for shared memory region: '{name}'")
        if byte_size > _MAX_SIZE - offset:
            raise InvalidArgumentError(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value "
                f"({_MAX_SIZE}) for region '{name}'"
            )
        if offset + byte_size > region.byte_size:
            raise InvalidArgumentError(f"Invalid offset + byte size for shared memory region: '{name}'")
        return region.part(offset, byte_size)

    def _release_unregistered(self) -> dict[str, InternalError]:
        """Release unregistered regions that are no longer in use; return the errors of those that failed."""
        failures: dict[str, InternalError] = {}
        for name in sorted(self._unregistered):
            region = self._regions.get(name)
            if region is None:  # a worker thread that reads a long request was faster
                continue
            try:
                released = region.release()
            except InternalError as error:
                failures[name] = error
                self._unregistered.discard(name)
                continue
            if released:
                self._regions.pop(name, None)
                self._unregistered.discard(name)
        return failures

    def _check_free(self, name: str) -> None:
        self._release_unregistered()
        if name in self._regions:
            raise AlreadyExistsError(f"shared memory region '{name}' already in manager")
        most = _most_regions()
        if len(self._regions) >= most:
            raise UnavailableError(
                f"cannot register shared memory region '{name}': expected at most {most} regions, a quarter of the "
                "file descriptors of the server's process; unregister regions that are not used"
            )


def _most_regions() -> int:
    # Python keeps a descriptor for each mapped region: without a limit, one client could take them all, and no other
    # client could connect.
    descriptors = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else _MOST_REGIONS
    return max(1, min(_MOST_REGIONS, descriptors // 4))


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


def _check_key(name: str, key: str) -> None:
    unprefixed = key.lstrip("/")
    if not unprefixed:
        raise InvalidArgumentError(f"cannot register shared memory region '{name}' - invalid shm key '{key}'")
    if unprefixed.startswith(_RESERVED_PREFIX):
        raise InvalidArgumentError(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{_RESERVED_PREFIX}'"
        )


def _open(key: str) -> int:
    try:
        if _posixshmem is None:
            raise OSError
        return int(_posixshmem.shm_open(key, os.O_RDWR, 0o600))
    except (OSError, ValueError):
        raise InternalError(f"Unable to open shared memory region: '{key}'") from None


def _map(descriptor: int, offset: int, byte_size: int) -> mmap.mmap:
    size = os.fstat(descriptor).st_size
    if offset + byte_size > size:  # an access beyond the end would terminate the process
        raise ValueError("invalid args")
    if not byte_size or offset % mmap.ALLOCATIONGRANULARITY:
        # Triton's text, which lacks a separator.
        raise ValueError("unable to process address spaceInvalid argument")
    return mmap.mmap(descriptor, byte_size, offset=offset)
