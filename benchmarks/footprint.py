"""Import time, start-up time and memory, against a real Triton with the same model."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from benchmarks import servers


def footprint(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """``import tritonnb``; seconds from the start of a server until its model is ready, and its memory then."""
    repository = scratch / "footprint"
    shutil.copytree(servers.ROOT / "model_repository" / "identity_fp32", repository / "identity_fp32")
    starts: dict[str, Callable[[], AbstractContextManager[str]]] = {
        "tritonnb": lambda: servers.tritonnb(repository, "identity_fp32"),
        "triton": lambda: servers.triton(repository, scratch),
    }
    imports = [_import_seconds("import tritonnb") - _import_seconds("pass") for _ in range(rounds)]
    print(f"import tritonnb: {statistics.median(imports) * 1e3:.0f} ms")
    figures: dict[str, object] = {"import_s": imports}
    for name, start in starts.items():
        measured = [_start(start) for _ in range(rounds)]
        seconds_to_ready, memory = (statistics.median(values) for values in zip(*measured, strict=True))
        print(f"{name}: ready after {seconds_to_ready:.2f} s, {memory:.0f} MB")
        figures[name] = {"ready_s": seconds_to_ready, "resident_mb": memory}
    return figures


def _import_seconds(statement: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], cwd=servers.ROOT, check=True)
    return time.perf_counter() - begin


def _start(start: Callable[[], AbstractContextManager[str]]) -> tuple[float, float]:
    """Seconds until the server is ready, and the memory of its processes in MB (memory that they share counts once)."""
    begin = time.perf_counter()
    with start():
        ready = time.perf_counter() - begin
        children = psutil.Process().children(recursive=True)
        return ready, sum(child.memory_full_info().pss for child in children) / 1e6
