"""Shared memory regions: registration, bounds, and unregistration only when no request uses them."""

from __future__ import annotations

import errno
import mmap
import resource
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory as Object

import pytest

from tritonnb.core.errors import InternalError, TritonError, UnavailableError
from tritonnb.engine.shared_memory import SharedMemory, SystemPart, SystemRegion, fill

pytest.importorskip("_posixshmem")


@pytest.fixture
def shared() -> Iterator[Object]:
    created = Object(create=True, size=8192)
    yield created
    created.close()
    created.unlink()


@pytest.fixture
def regions(shared: Object) -> SharedMemory:
    regions = SharedMemory()
    regions.register_system("r", shared.name, 4096, 100)
    return regions


def test_shared_memory_region_can_be_part_of_an_object(regions: SharedMemory, shared: Object) -> None:
    memory = shared.buf
    assert memory is not None
    memory[4096 + 10 : 4096 + 13] = b"abc"
    assert bytes(regions.part("r", 10, 3).read()) == b"abc"
    regions.part("r", 0, 2).write(b"xy")
    assert bytes(memory[4096:4098]) == b"xy"
    assert [region.to_dict() for region in regions.status(SystemRegion)] == [
        {"name": "r", "key": shared.name, "offset": 4096, "byte_size": 100}
    ]


@pytest.mark.parametrize(
    ("offset", "size", "message"),
    [
        (100, 0, "Invalid offset for shared memory region: 'r'"),
        (2**64 - 1, 2, "Invalid offset for shared memory region: 'r'"),
        (90, 11, "Invalid offset + byte size for shared memory region: 'r'"),
        (1, 2**64 - 2, "Invalid offset + byte size for shared memory region: 'r'"),
        (
            1,
            2**64 - 1,
            "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds maximum value "
            "(18446744073709551615) for region 'r'",
        ),
    ],
)
def test_tensor_beyond_the_region_is_refused(regions: SharedMemory, offset: int, size: int, message: str) -> None:
    with pytest.raises(TritonError) as raised:
        regions.part("r", offset, size)
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("offset", "size", "reason"),
    [
        (0, 10_000, "invalid args"),
        (8192, 4096, "invalid args"),
        (1, 8192, "invalid args"),
        (8, 16, "unable to process address spaceInvalid argument"),
        (0, 0, "unable to process address spaceInvalid argument"),
    ],
)
def test_region_beyond_the_object_is_refused(shared: Object, offset: int, size: int, reason: str) -> None:
    with pytest.raises(TritonError) as raised:
        SharedMemory().register_system("x", shared.name, offset, size)
    assert raised.value.message == f"failed to register shared memory region 'x': {reason}"


@pytest.mark.parametrize("key", ["/no_such_object", "/a/../b", "a\0b"])
def test_shared_memory_object_that_cannot_be_opened_is_refused(key: str) -> None:
    with pytest.raises(TritonError) as raised:
        SharedMemory().register_system("x", key, 0, 1)
    assert raised.value.message == f"Unable to open shared memory region: '{key}'"


@pytest.mark.parametrize("key", ["", "/", "//"])
def test_key_without_a_name_is_refused(key: str) -> None:
    with pytest.raises(TritonError) as raised:
        SharedMemory().register_system("x", key, 0, 1)
    assert raised.value.message == f"cannot register shared memory region 'x' - invalid shm key '{key}'"


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_objects_of_tritons_python_backend_are_refused(slashes: str) -> None:
    key = f"{slashes}triton_python_backend_shm_region_7"
    with pytest.raises(TritonError) as raised:
        SharedMemory().register_system("x", key, 0, 1)
    assert raised.value.message == (
        f"cannot register shared memory region 'x' with key '{key}' as the key contains the reserved prefix "
        "'triton_python_backend_shm_region_'"
    )


def test_several_regions_may_share_an_object(regions: SharedMemory, shared: Object) -> None:
    regions.register_system("second", shared.name, 4096, 10)
    regions.part("second", 0, 1).write(b"z")
    assert bytes(regions.part("r", 0, 1).read()) == b"z"


def test_regions_leave_descriptors_for_connections(regions: SharedMemory, shared: Object) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        for number in range(63):  # and the region of the fixture
            regions.register_system(f"region {number}", shared.name, 0, 1)
        with pytest.raises(UnavailableError, match="expected at most 64 regions, a quarter of the file descriptors"):
            regions.register_system("one more", shared.name, 0, 1)
        regions.unregister(SystemRegion, "region 5")
        regions.register_system("another", shared.name, 0, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_region_that_cannot_be_mapped_is_refused(
    regions: SharedMemory, shared: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(
        InternalError, match=r"^failed to register shared memory region 'another': Too many open files$"
    ):
        regions.register_system("another", shared.name, 0, 1)


@pytest.mark.parametrize("name", ["r", ""], ids=["one", "all"])
def test_region_in_use_is_unregistered_when_its_requests_are_done(
    regions: SharedMemory, shared: Object, name: str
) -> None:
    regions.register_system("second", shared.name, 0, 10)
    part = regions.part("r", 0, 3)
    regions.unregister(SystemRegion, name)
    assert "r" in [region.name for region in regions.status(SystemRegion)]
    with pytest.raises(TritonError, match="shared memory region 'r' already in manager"):
        regions.register_system("r", shared.name, 0, 10)
    assert shared.buf is not None
    shared.buf[4096:4099] = b"abc"
    assert bytes(part.read()) == b"abc"
    del part
    assert [region.name for region in regions.status(SystemRegion)] == ([] if name == "" else ["second"])
    with pytest.raises(TritonError, match="Unable to find shared memory region: 'r'"):
        regions.part("r", 0, 3)


def test_oversized_output_does_not_change_the_region() -> None:
    room = bytearray(4)
    with pytest.raises(TritonError) as raised:
        fill("Y", SystemPart(memoryview(room)), b"12345")
    assert room == bytes(4)
    assert raised.value.message == (
        "shared memory size specified with the request for output 'Y' (4 bytes) should be at least 5 bytes to hold "
        "the results"
    )
