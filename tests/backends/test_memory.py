"""Measuring the memory in use."""

from __future__ import annotations

import mmap
from types import SimpleNamespace

import numpy as np
import pytest

from tritonnb.backends import devices
from tritonnb.backends.devices import memory_in_use


class NoDriver(Exception):
    """A missing driver."""


def test_memory_of_the_process_is_measured() -> None:
    (before,) = memory_in_use([("CPU", 0)]).values()
    pages = mmap.mmap(-1, 32_000_000)  # an array may get memory that the process has already
    np.frombuffer(pages, np.uint8)[:] = 1
    (after,) = memory_in_use([("CPU", 0)]).values()
    assert after - before >= len(pages) // 2


def test_memory_of_a_gpu_is_read_through_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(
        NVMLError=NoDriver,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=1000 + handle),
    )
    monkeypatch.setattr(devices, "pynvml", driver)
    assert memory_in_use([("GPU", 3)]) == {("GPU", 3): 1003}

    def refuse() -> None:
        raise NoDriver

    monkeypatch.setattr(driver, "nvmlInit", refuse)
    assert memory_in_use([("GPU", 3)]) == {("GPU", 3): 0}
