"""Shared memory regions: any sequence of operations, with any offsets and sizes."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory

from tools.fuzz.targets import Try
from tools.fuzz.unexpected import require
from tritonnb.core.errors import TritonError
from tritonnb.engine.cuda_memory import CudaRegion
from tritonnb.engine.shared_memory import Part, SharedMemory, SystemRegion, fill

_SIZES = (1, 4096, 8192, 4097)
#: Where the interesting numbers are: at the sizes of objects and pages, and at the limits of 64 bits.
_NUMBERS = (0, 1, 2, 4095, 4096, 4097, 8191, 8192, 8193, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 4096, 2**64 - 1)


@contextmanager
def regions() -> Iterator[Try]:
    """Operations of four bytes each: what, which region, offset, and size."""
    objects = [shared_memory.SharedMemory(create=True, size=size) for size in _SIZES]
    names = [f"/{memory.name}" for memory in objects]
    keys = [*names, f"//{names[0]}", "", "/", "/nothing", "triton_python_backend_shm_region_1", "/a/../b", "\0"]
    try:
        yield lambda data: _run(data, keys)
    finally:
        for memory in objects:
            memory.close()
            memory.unlink()


def _run(data: bytes, keys: list[str]) -> None:
    memory = SharedMemory(allow_clients=True)
    parts: list[Part] = []
    for at in range(0, len(data) - 3, 4):
        what, where, offset, size = data[at : at + 4]
        try:
            _operate(memory, parts, what, keys[where % len(keys)], where // 16, _number(offset), _number(size))
        except TritonError:
            continue
    parts.clear()
    gc.collect(0)
    memory.unregister(SystemRegion)
    require(not memory.status(SystemRegion), "a region is left")


def _operate(memory: SharedMemory, parts: list[Part], what: int, key: str, name: int, offset: int, size: int) -> None:
    region = f"r{name % 3}"
    if what % 8 == 0:
        memory.register_system(region, key, offset, size)
    elif what % 8 == 1:
        memory.register_cuda(region, os.urandom(64), offset, size)
    elif what % 8 == 2:
        memory.unregister(SystemRegion if key else CudaRegion, region if what & 8 else "")
    elif what % 8 == 3:
        memory.status(SystemRegion, region if what & 8 else "")
    elif what % 8 == 4:
        parts.clear()
    else:
        part = memory.part(region, offset, size)
        require(len(part) == size, f"expected {size} bytes, got {len(part)}")
        view = part.read()
        require(view.readonly and len(bytes(view)) == size, "the part is writable, or has another size")
        fill("Y", part, b"x" * min(size + (what & 8), 1 << 16))
        parts.append(part)


def _number(byte: int) -> int:
    return _NUMBERS[byte % len(_NUMBERS)] + (byte // 64 if byte % len(_NUMBERS) < 9 else 0)
