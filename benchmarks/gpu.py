"""A TorchScript model with KIND_GPU at batch sizes 1 to 64: difference from the CPU, and throughput."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tritonnb.server.server import Server

CONFIG = """
backend: "pytorch" max_batch_size: 64
input {{ name: "x" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 1000 ] }}
instance_group {{ kind: {kind} }}
"""


def gpu(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Measure one network on the CPU and on the GPU."""
    if not torch.cuda.is_available():
        print("skipped: this machine has no GPU")
        return {}
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 7, 4), nn.ReLU(), nn.Conv2d(64, 256, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 1000)).eval()
    for kind in ("KIND_CPU", "KIND_GPU"):
        directory = scratch / "gpu" / kind.lower()
        (directory / "1").mkdir(parents=True, exist_ok=True)
        (directory / "config.pbtxt").write_text(CONFIG.format(kind=kind))
        torch.jit.script(network).save(str(directory / "1" / "model.pt"))  # type: ignore[no-untyped-call]
    figures: dict[str, object] = {}
    on_device = network.cuda()
    with Server(scratch / "gpu", port=0) as server:
        for size in (1, 2, 4, 8, 16, 32, 64):
            x = np.random.default_rng(size).random((size, 3, 224, 224), dtype=np.float32)
            difference = float(np.abs(server["kind_gpu"](x=x)["y"] - server["kind_cpu"](x=x)["y"]).max())
            served = _rate(partial(server["kind_gpu"], x=x), size)
            raw = _rate(partial(_forward, on_device, x), size)
            rates = f"{served:.0f} rows/s, model alone {raw:.0f}: {served / raw:.0%}"
            print(f"batch {size}: {rates}; differs by {difference:.1e}")
            figures[str(size)] = {"served": served, "raw": raw, "share": served / raw, "difference": difference}
    return figures


def _forward(network: nn.Module, x: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        result: np.ndarray = network(torch.from_numpy(x).cuda()).cpu().numpy()
        return result


def _rate(call: Callable[[], object], size: int) -> float:
    for _ in range(5):
        call()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + 3:
        call()
        count += size
    return count / (time.perf_counter() - begin)
