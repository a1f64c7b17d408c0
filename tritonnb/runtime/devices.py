"""The available CUDA devices."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence


@functools.cache
def cuda_devices() -> Sequence[int]:
    """Indices of the CUDA devices that models can use.

    Importing torch takes seconds, so it is used only if NVIDIA's driver is installed.
    """
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        import torch
    except ImportError:
        return ()
    return tuple(range(torch.cuda.device_count()))
