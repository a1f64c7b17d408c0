"""The CUDA devices, and the memory in use on the CPU and on them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import psutil

from tritonnb.backends.contract import MemoryPlace

try:
    import pynvml
except ImportError:  # the extra "gpu" is not installed
    pynvml = None

CPU: MemoryPlace = ("CPU", 0)


@contextmanager
def memory_growth(*places: MemoryPlace) -> Iterator[dict[MemoryPlace, int]]:
    """Context manager that measures by how many bytes the memory in use grows: a dict that is filled at the end."""
    before = memory_in_use(places)
    growth: dict[MemoryPlace, int] = {}
    yield growth
    # At least 0: memory can shrink meanwhile, since other models run in this process and others use the GPU.
    growth.update((place, max(0, size - before[place])) for place, size in memory_in_use(places).items())


def memory_in_use(places: Iterable[MemoryPlace]) -> dict[MemoryPlace, int]:
    """Return the bytes in use: on the CPU by this process, on a GPU by all processes.

    Parameters
    ----------
    places : iterable of (str, int)
        ``("CPU", 0)``, or ``("GPU", device)``.

    Returns
    -------
    dict
        Bytes by place; 0 if they cannot be measured.

    Examples
    --------
    >>> memory_in_use([CPU])[CPU] > 0
    True
    """
    process = psutil.Process()
    return {
        (kind, number): _gpu_memory(number) if kind == "GPU" else process.memory_info().rss for kind, number in places
    }


def _gpu_memory(number: int) -> int:
    if pynvml is None:
        return 0
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(number)).used)
    except pynvml.NVMLError:
        return 0


@functools.cache
def cuda_devices() -> Sequence[int]:
    """Return the indices of the CUDA devices that models can use.

    Importing torch takes seconds, so it is used only if NVIDIA's driver is installed.
    """
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        import torch
    except ImportError:
        return ()
    return tuple(range(torch.cuda.device_count()))
