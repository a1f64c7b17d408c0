"""The overhead of the server: `dense` and `magika` with 32 clients against an ONNX Runtime session without a server.

`benchmarks.frameworks` has rows for other frameworks, which are measured in the same way. The baseline is the highest
rate, in rows per second, of an ONNX Runtime session on this machine at any batch size, with the session options of
the served model. It is called by one thread, and concurrently by as many threads as the model has instances, with
which the server is to be compared. There is a second baseline at batch sizes that 32 clients can fill. Since server,
load generator and model share the processor, the processor time of each shows which share of it the model can get. A
short run at each size finds the best one. The session and the server are then measured in turn, for the same time, and
the ratios are medians of the rounds, since the maximum of many short runs would be biased. The served models are tuned.
Two instances keep both cores busy only while batches are waiting. A model that does not benefit from large batches
(`magika`) gets small ones; for one that does (`dense`), a delay lets batches fill.
"""

from __future__ import annotations

import json
import re
import resource
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import psutil

from benchmarks import frameworks, servers
from benchmarks.baseline import SIZES, Baseline, RunBatch
from benchmarks.load import Measured, Requests, wrk

REPOSITORY = servers.ROOT / "model_repository"
CLIENTS = 32
INSTANCES = 2
#: By rows per request: the maximum batch size and the dynamic batcher's settings.
TUNED = {
    "dense": {
        1: (64, "preferred_batch_size: [ 16 ] max_queue_delay_microseconds: 4000"),
        4: (64, "preferred_batch_size: [ 64 ] max_queue_delay_microseconds: 4000"),
    },
    "magika": {1: (4, ""), 4: (4, "")},
}


def models(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Measure both models; target: 90 % of the session's highest rate."""
    random = np.random.default_rng(0)
    inputs = {
        "dense": ("INPUT", "OUTPUT", random.random((1, 2048), dtype=np.float32)),
        "magika": ("bytes", "target_label", random.integers(0, 256, (1, 2048), dtype=np.int32)),
    }
    figures: dict[str, object] = {}
    for model, (name, output, row) in inputs.items():
        baseline = Baseline(_session(model, name), row, (1, INSTANCES))
        for rows in TUNED[model]:
            datatype = "FP32" if row.dtype == np.float32 else "INT32"
            requests = Requests.binary(model, name, np.repeat(row, rows, axis=0), output, datatype)
            repository = _tuned(model, rows, scratch)
            figures[f"{model}, {rows} rows"] = _compare(model, repository, rows, requests, baseline, seconds, rounds)
    return figures | framework_models(scratch, seconds, rounds)


def framework_models(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Measure the models in other frameworks; target: 95 % of the framework's highest rate with large batches."""
    figures: dict[str, object] = {}
    for case in frameworks.cases():
        baseline: Baseline | None = None
        for rows in case.batching:
            repository = case.repository(rows, scratch)
            if baseline is None:
                baseline = Baseline(case.load(repository / case.model), case.row, (1, INSTANCES))
            array = np.repeat(case.row, rows, axis=0)
            requests = Requests.binary(case.model, case.input, array, case.output, case.datatype)
            label = f"{case.label}, {rows} rows"
            figures[label] = _compare(case.label, repository, rows, requests, baseline, seconds, rounds)
    return figures


def _session(model: str, name: str) -> Callable[[], RunBatch]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(REPOSITORY / model / "1" / "model.onnx", options)
    return lambda: lambda batch: session.run(None, {name: batch})


def _compare(
    label: str, repository: Path, rows: int, requests: Requests, baseline: Baseline, seconds: int, rounds: int
) -> dict[str, float]:
    """Measure the framework and the server in turn, for clients with a number of rows per request."""
    scratch, model = repository.parent, requests.paths[0].split("/")[3]
    baselines = {
        f"{threads} threads, batches of {size}": (threads, size)
        for threads in (1, INSTANCES)
        for limit in (CLIENTS * rows // threads, SIZES[-1])
        for size in [baseline.best(threads, limit)]
    }
    served: list[Measured] = []
    rates: dict[str, list[float]] = {name: [] for name in baselines}
    with servers.tritonnb(repository, model) as url:
        wrk(url, requests, CLIENTS, 2, scratch)
        (server,) = psutil.Process().children()
        costs = Costs()
        for _ in range(rounds):
            for name, (threads, size) in baselines.items():
                rates[name].append(baseline.rate(threads, size, seconds))
            with costs.measure(server):
                served.append(wrk(url, requests, CLIENTS, seconds, scratch))
            costs.rows += served[-1].rate * seconds * rows
        costs.measure_framework(baseline, _mean_batch(url, model), seconds)
    rate, p50, p99 = (statistics.median(values) for values in zip(*map(astuple, served), strict=True))
    print(f"{label}: {rate * rows:.0f} rows/s to {CLIENTS} clients of {rows} rows (p50 {p50:.1f} ms, p99 {p99:.1f} ms)")
    figures = {"served": rate * rows, "p50_ms": p50, "p99_ms": p99}
    for name, values in rates.items():
        ratio = statistics.median(run.rate * rows / value for run, value in zip(served, values, strict=True))
        print(f"  {ratio:.0%} of the framework alone on {name}: {statistics.median(values):.0f} rows/s")
        figures[name] = ratio
    print(f"  {costs}")
    return figures | {f"processor: {name}": value for name, value in costs.per_row().items()}


@dataclass
class Costs:
    """Processor time in seconds of the server, the load generator and the framework alone, for a number of rows."""

    server: float = 0.0
    load: float = 0.0
    rows: float = 0.0
    framework_per_row: float = 0.0
    batch: int = 0

    @contextmanager
    def measure(self, server: psutil.Process) -> Iterator[None]:
        """Count the processor time until the block ends."""
        server_before, load_before = _processor_seconds(server), _children_seconds()
        yield
        self.server += _processor_seconds(server) - server_before
        self.load += _children_seconds() - load_before

    def measure_framework(self, baseline: Baseline, mean_batch: float, seconds: int) -> None:
        """Measure the framework at the batch size nearest to that of the server."""
        self.batch = min(SIZES, key=lambda size: abs(size - mean_batch))
        before = time.process_time()
        rate = baseline.rate(INSTANCES, self.batch, seconds)
        self.framework_per_row = (time.process_time() - before) / (rate * seconds)

    def per_row(self) -> dict[str, float]:
        """Microseconds per row, and the share of the framework in them."""
        server, load, framework = self.server / self.rows, self.load / self.rows, self.framework_per_row
        return {
            "server, us": server * 1e6,
            "load generator, us": load * 1e6,
            f"framework at {self.batch}, us": framework * 1e6,
            "framework, share": framework / (server + load),
        }

    def __str__(self) -> str:
        server, load, framework, share = self.per_row().values()
        return (
            f"processor time per row: server {server:.0f} us and load generator {load:.0f} us; the framework alone at "
            f"batches of {self.batch} {framework:.0f} us: {share:.0%}, which is what two busy cores could reach of it"
        )


def _processor_seconds(process: psutil.Process) -> float:
    """Of a process and those of its isolated models."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def _children_seconds() -> float:
    """Of child processes that have ended, such as the load generator."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _mean_batch(url: str, model: str) -> float:
    with urllib.request.urlopen(f"{url}/v2/models/{model}/stats", timeout=60) as response:
        entry = json.load(response)["model_stats"][0]
    return float(entry["inference_count"] / entry["execution_count"])


def _tuned(model: str, rows: int, scratch: Path) -> Path:
    """Create a repository with the model and its tuned configuration."""
    max_batch_size, settings = TUNED[model][rows]
    repository = scratch / f"tuned-{model}-{rows}"
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "1" / "model.onnx").symlink_to(REPOSITORY / model / "1" / "model.onnx")
    config = (REPOSITORY / model / "config.pbtxt").read_text()
    config = config.replace("count: 1", f"count: {INSTANCES}")
    config = config.replace("dynamic_batching { }", f"dynamic_batching {{ {settings} }}")
    config = re.sub("max_batch_size: [0-9]+", f"max_batch_size: {max_batch_size}", config)
    (repository / model / "config.pbtxt").write_text(config.replace('label_filename: "labels.txt"', ""))
    return repository
