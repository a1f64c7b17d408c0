"""HTTP against a real Triton's Python backend and PyTriton, one identity model, one load generator.

The servers run one after the other in several rounds, so that changes in the speed of the machine affect all of them.
The figures are medians of the rounds. This server is measured twice: by default, and with the same models with the
parameter ``EXECUTE_ON_ANY_THREAD``.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from benchmarks import servers
from benchmarks.load import Measured, Request, wrk

Start = Callable[[], AbstractContextManager[str]]
#: This server, with Python models that permit the event loop to execute their quick batches.
INLINE = "tritonnb, EXECUTE_ON_ANY_THREAD"
_PARAMETER = 'parameters { key: "EXECUTE_ON_ANY_THREAD" value { string_value: "true" } }\n'


def small(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """1x16 FP32 over 1, 8 and 32 connections: targets 2x Triton, and 10x PyTriton at 1."""
    array = np.arange(16, dtype=np.float32).reshape(1, 16)
    request = Request.of("identity_fp32", "INPUT0", array, "OUTPUT0")
    identity = _starts(identity_repository(scratch, 16), "identity_fp32", scratch)
    starts = {**identity, "pytriton": lambda: servers.pytriton(scratch)}
    return _compare("1x16 FP32 identity", starts, request, array, (1, 8, 32), seconds, rounds, scratch)


def image(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """1x3x224x224 FP32, 600 KB each way: target 1.0x Triton."""
    array = np.random.default_rng(0).random((1, 3 * 224 * 224), dtype=np.float32)
    request = Request.of("identity_fp32", "INPUT0", array, "OUTPUT0")
    starts = _starts(identity_repository(scratch, array.size), "identity_fp32", scratch)
    return _compare("1x3x224x224 FP32 identity", starts, request, array, (1, 8), seconds, rounds, scratch)


def ensemble(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Return an ensemble of two identities, 1x16 FP32: target 1.5x Triton."""
    starts = _starts(ensemble_repository(scratch), "two_steps", scratch)
    array = np.arange(16, dtype=np.float32).reshape(1, 16)
    request = Request.of("two_steps", "INPUT0", array, "OUTPUT0")
    return _compare(
        "ensemble of two 1x16 FP32 identities", starts, request, array, (1, 8, 32), seconds, rounds, scratch
    )


_TWO_STEPS = """
platform: "ensemble" max_batch_size: 64
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
ensemble_scheduling {
  step {
    model_name: "first" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "between" }
  }
  step {
    model_name: "second" model_version: -1
    input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
  }
}
"""


def ensemble_repository(scratch: Path) -> Path:
    """Return a repository with the ensemble ``two_steps`` of two identity models."""
    repository = scratch / "ensemble"
    source = servers.ROOT / "model_repository" / "identity_fp32"
    for name in ("first", "second"):
        shutil.copytree(source, repository / name)
        config = repository / name / "config.pbtxt"
        config.write_text(config.read_text().replace("identity_fp32", name).replace("dims: [ -1 ]", "dims: [ 16 ]"))
    (repository / "two_steps" / "1").mkdir(parents=True)
    (repository / "two_steps" / "config.pbtxt").write_text(_TWO_STEPS)
    return repository


def identity_repository(scratch: Path, width: int) -> Path:
    """Return a repository with the identity model, with fixed dims."""
    repository = scratch / f"identity-{width}"
    model = repository / "identity_fp32"
    if not repository.exists():
        shutil.copytree(servers.ROOT / "model_repository" / "identity_fp32", model)
        config = (model / "config.pbtxt").read_text()
        (model / "config.pbtxt").write_text(config.replace("dims: [ -1 ]", f"dims: [ {width} ]"))
    return repository


def inline(repository: Path) -> Path:
    """Return a copy of a repository whose Python models have the parameter ``EXECUTE_ON_ANY_THREAD``."""
    copy = repository.with_name(f"{repository.name}-inline")
    if not copy.exists():
        shutil.copytree(repository, copy)
        for config in copy.glob("*/config.pbtxt"):
            text = config.read_text()
            if 'backend: "python"' in text:
                config.write_text(text + _PARAMETER)
    return copy


def _starts(repository: Path, model: str, scratch: Path) -> dict[str, Start]:
    """Start a model on a real Triton and on this server."""
    return {
        "triton": lambda: servers.triton(repository, scratch, model),
        "tritonnb": lambda: servers.tritonnb(repository, model),
        INLINE: lambda: servers.tritonnb(inline(repository), model),
    }


def _compare(
    title: str,
    starts: dict[str, Start],
    request: Request,
    array: np.ndarray,
    connections: tuple[int, ...],
    seconds: int,
    rounds: int,
    scratch: Path,
) -> dict[str, object]:
    runs: dict[tuple[str, int], list[Measured]] = {}
    for number in range(rounds):
        for name, start in starts.items():
            with start() as url:
                assert request.send(url) == array.tobytes(), f"{name}: expected the input as the output"
                wrk(url, request, 8, 2, scratch)  # warm up
                for count in connections:
                    measured = wrk(url, request, count, seconds, scratch)
                    runs.setdefault((name, count), []).append(measured)
                    print(f"  round {number + 1}: {name} at {count}: {measured.rate:.0f}/s", flush=True)
    return report(title, list(starts), connections, runs)


def report(
    title: str, names: list[str], connections: tuple[int, ...], runs: dict[tuple[str, int], list[Measured]]
) -> dict[str, object]:
    """Print and return the medians, and the ratio of this server's rate to each."""
    print(f"\n{title}\n{'connections':>12} {'server':>31} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8}  ratio")
    figures: dict[str, object] = {}
    for count in connections:
        ours = statistics.median(run.rate for run in runs["tritonnb", count])
        for name in names:
            columns = zip(*((run.rate, run.p50, run.p99) for run in runs[name, count]), strict=True)
            rate, p50, p99 = map(statistics.median, columns)
            ratio = "" if name == "tritonnb" else f"{ours / rate:.2f}x"
            print(f"{count:>12} {name:>31} {rate:>11.0f} {p50:>8.2f} {p99:>8.2f}  {ratio}")
            figures[f"{name} at {count}"] = {"rate": rate, "p50_ms": p50, "p99_ms": p99, "ratio": ours / rate}
    return figures
