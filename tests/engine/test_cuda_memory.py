"""Regions of GPU memory, with a fake CUDA runtime whose memory is on the CPU."""

from __future__ import annotations

import ctypes
import enum
from multiprocessing.shared_memory import SharedMemory as Object
from types import SimpleNamespace
from typing import Any

import pytest

from tritonnb.core.errors import InternalError, TritonError
from tritonnb.engine import cuda_memory
from tritonnb.engine.cuda_memory import HANDLE_SIZE, CudaRegion
from tritonnb.engine.shared_memory import SharedMemory, SystemRegion

HANDLE = bytes(range(HANDLE_SIZE))


class Status(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorIllegalAddress = 700


class FakeCuda:
    """The functions of CUDA's runtime and driver that `cuda_memory` calls, over one allocation."""

    cudaIpcMemLazyEnablePeerAccess = 1
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)

    class cudaIpcMemHandle_t:
        def __init__(self) -> None:
            self.reserved = ctypes.create_string_buffer(HANDLE_SIZE)

        def getPtr(self) -> int:
            return ctypes.addressof(self.reserved)

    def __init__(self, size: int) -> None:
        self.memory = ctypes.create_string_buffer(size)
        self.open = 0
        self.copies = self.closes = self.ranges = Status.cudaSuccess

    def cudaSetDevice(self, device: int) -> tuple[Status]:
        if device >= 2**31:
            raise OverflowError("value too large to convert to int")  # as CUDA's bindings do
        return (Status.cudaSuccess if device == 0 else Status.cudaErrorInvalidValue,)

    def cudaIpcOpenMemHandle(self, handle: cudaIpcMemHandle_t, flags: int) -> tuple[Status, int | None]:
        if bytes(handle.reserved) != HANDLE:
            return Status.cudaErrorInvalidValue, None
        self.open += 1
        return Status.cudaSuccess, ctypes.addressof(self.memory)

    def cuMemGetAddressRange(self, address: int) -> tuple[Status, int, int]:
        return self.ranges, address, len(self.memory)

    def cudaMemcpy(self, target: int, source: int, size: int, kind: int) -> tuple[Status]:
        ctypes.memmove(target, source, size)
        return (self.copies,)

    def cudaIpcCloseMemHandle(self, address: int) -> tuple[Status]:
        self.open -= self.closes is Status.cudaSuccess
        return (self.closes,)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda(64)
    monkeypatch.setattr(cuda_memory, "_bindings", lambda: (fake, fake))
    return fake


@pytest.fixture
def regions(cuda: FakeCuda) -> SharedMemory:
    regions = SharedMemory()
    regions.register_cuda("g", HANDLE, 0, 32)
    return regions


def test_tensors_are_copied_from_the_gpu_and_to_it(regions: SharedMemory, cuda: FakeCuda) -> None:
    ctypes.memmove(ctypes.byref(cuda.memory, 4), b"abc", 3)
    assert bytes(regions.part("g", 4, 3).read()) == b"abc"
    regions.part("g", 1, 2).write(b"xy")
    assert cuda.memory.raw[1:3] == b"xy"
    assert [region.to_dict() for region in regions.status(CudaRegion)] == [
        {"name": "g", "device_id": 0, "byte_size": 32}
    ]


def test_tensor_beyond_the_region_is_refused(regions: SharedMemory) -> None:
    with pytest.raises(TritonError, match="Invalid offset \\+ byte size for shared memory region: 'g'"):
        regions.part("g", 30, 3)


@pytest.mark.parametrize(
    ("name", "handle", "device", "size", "message"),
    [
        ("g", HANDLE, 0, 1, "shared memory region 'g' already in manager"),
        ("h", b"other", 0, 1, "failed to register shared memory region: invalid args"),
        ("h", HANDLE, 7, 1, "failed to register shared memory region: invalid args"),
        ("h", HANDLE, 2**31, 1, "failed to register shared memory region: invalid args"),
        ("h", HANDLE, 0, 65, "failed to register shared memory region 'h': invalid args"),
    ],
)
def test_unreadable_file_is_refused(
    regions: SharedMemory, cuda: FakeCuda, name: str, handle: bytes, device: int, size: int, message: str
) -> None:
    with pytest.raises(TritonError) as raised:
        regions.register_cuda(name, handle, device, size)
    assert raised.value.message == message
    assert cuda.open == 1


def test_regions_of_the_other_kind_are_refused(regions: SharedMemory) -> None:
    created = Object(create=True, size=8)
    try:
        regions.register_system("s", created.name, 0, 8)
        kind: Any
        for kind, name, message in (
            (CudaRegion, "s", "The region named 's' is registered as system shared memory, not CUDA shared memory"),
            (SystemRegion, "g", "The region named 'g' is registered as CUDA shared memory, not system shared memory"),
            (CudaRegion, "x", "Unable to find cuda shared memory region: 'x'"),
        ):
            with pytest.raises(TritonError) as raised:
                regions.status(kind, name)
            assert raised.value.message == message
        regions.unregister(SystemRegion, "g")
        assert [region.name for region in regions.status(CudaRegion)] == ["g"]
        regions.unregister(SystemRegion)
    finally:
        created.close()
        created.unlink()


def test_region_is_closed_when_no_request_uses_it(regions: SharedMemory, cuda: FakeCuda) -> None:
    part = regions.part("g", 0, 4)
    regions.unregister(CudaRegion)
    assert cuda.open == 1
    del part
    assert regions.status(CudaRegion) == []
    assert cuda.open == 0


def test_failed_copy_is_an_error_of_its_request(regions: SharedMemory, cuda: FakeCuda) -> None:
    cuda.copies = Status.cudaErrorIllegalAddress
    with pytest.raises(InternalError, match="cudaErrorIllegalAddress"):
        regions.part("g", 0, 4).read()


def test_output_without_elements_writes_nothing(regions: SharedMemory, cuda: FakeCuda) -> None:
    regions.part("g", 0, 4).write(b"")
    assert cuda.memory.raw[0:4] == bytes(4)


def test_unclosable_region_is_an_internal_error_and_kept(regions: SharedMemory, cuda: FakeCuda) -> None:
    cuda.closes = Status.cudaErrorInvalidValue
    with pytest.raises(InternalError, match="failed to close CUDA IPC handle: cudaErrorInvalidValue"):
        regions.unregister(CudaRegion, "g")
    assert [region.name for region in regions.status(CudaRegion)] == ["g"]


def test_memory_whose_size_is_not_known_is_closed_again(cuda: FakeCuda) -> None:
    cuda.ranges = Status.cudaErrorInvalidValue
    with pytest.raises(TritonError, match="failed to register shared memory region: invalid args"):
        SharedMemory().register_cuda("g", HANDLE, 0, 8)
    assert cuda.open == 0
