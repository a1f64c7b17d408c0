"""Costs and benefits of child processes for a model, as ratios of alternating measurements.

The server runs in its own process and is loaded by ``wrk``, except for the measurement with a busy cell, which
needs the server in this process.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks import servers
from benchmarks.load import Requests, wrk
from tritonnb.server.server import Server

#: Connections at which identity is measured.
CONNECTIONS = (1, 8, 32)
ISOLATED = "--isolate-models=*"
BUSY_LOOPS = 20_000
#: Iterations of the model of which one instance is compared with two: about 0.6 ms, and 6 ms.
COMPUTE_LOOPS = (BUSY_LOOPS, 200_000)

_IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        self.compute()
        inputs = [pb_utils.get_input_tensor_by_name(request, "X") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor.as_numpy())]) for tensor in inputs]

    def compute(self):
        pass
"""
_COMPUTE = _IDENTITY.replace("        pass", f"        sum(number * number for number in range({BUSY_LOOPS}))")


def isolation(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Isolated instances against instances in the server's process, and against Triton's Python stub.

    Targets: two CPU-bound instances at least 1.8 times one; identity at least 1.0 times Triton; 8 MB at least 60 % of
    the throughput in process; a busy cell changes the compute time by less than 10 %.
    """
    return {
        "instances": _instances(scratch, seconds, rounds),
        "identity": _identity(scratch, seconds, rounds),
        "8 MB": _large(scratch, seconds, rounds),
        "busy cell, increase of the compute time": _busy_cell(scratch, seconds, rounds),
    }


def _repository(scratch: Path, name: str, body: str, instances: int = 1) -> Path:
    repository = scratch / f"{name}-{instances}"
    if not repository.exists():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(body)
        (repository / name / "config.pbtxt").write_text(
            'backend: "python" max_batch_size: 64 dynamic_batching { }\n'
            'input { name: "X" data_type: TYPE_FP32 dims: -1 } output { name: "Y" data_type: TYPE_FP32 dims: -1 }\n'
            f"instance_group {{ count: {instances} kind: KIND_CPU }}\n"
        )
    return repository


def _request(name: str, size: int) -> Requests:
    return Requests.binary(name, "X", np.zeros((1, size), np.float32), "Y")


def _instances(scratch: Path, seconds: int, rounds: int) -> dict[str, float]:
    """Measure the rate of two instances of a model in pure Python, as a multiple of one.

    The load generator and the server share the cores with the instances, which matters for the shorter executions.
    """
    figures = {}
    for loops in COMPUTE_LOOPS:
        name = f"compute_{loops}"
        request, body = _request(name, 16), _COMPUTE.replace(str(BUSY_LOOPS), str(loops))
        cases = {}
        for where, options in (("in process", ()), ("isolated", (ISOLATED,))):
            for count in (1, 2):
                repository = _repository(scratch, name, body, count)
                config = repository / name / "config.pbtxt"
                # Without batching every request costs the same.
                config.write_text(
                    config.read_text().replace("max_batch_size: 64 dynamic_batching { }", "max_batch_size: 1")
                )
                cases[f"{where}, {count}"] = _server(repository, name, options), 4
        rates = _in_turn(cases, request, seconds, rounds, scratch)
        for where in ("in process", "isolated"):
            label = f"two instances, {loops} iterations, {where}"
            figures[label] = _report(label, rates[f"{where}, 2"], rates[f"{where}, 1"], "one")
    return figures


def _identity(scratch: Path, seconds: int, rounds: int) -> dict[str, float]:
    """Measure the rate of an identity model of 1×16, against this server's process and against Triton's Python stub."""
    repository, request = _repository(scratch, "identity", _IDENTITY), _request("identity", 16)
    starts = {
        "isolated": _server(repository, "identity", (ISOLATED,)),
        "in process": _server(repository, "identity"),
        "Triton": lambda stack: stack.enter_context(servers.triton(repository, scratch, "identity")),
    }
    figures = {}
    for connections in CONNECTIONS:
        cases = {name: (start, connections) for name, start in starts.items()}
        rates = _in_turn(cases, request, seconds, rounds, scratch)
        for other in ("in process", "Triton"):
            label = f"identity, {connections} connections"
            figures[f"{connections}, {other}"] = _report(label, rates["isolated"], rates[other], other)
    return figures


def _large(scratch: Path, seconds: int, rounds: int) -> dict[str, float]:
    """Measure the rate of an identity model of 8 MB."""
    repository, request = _repository(scratch, "identity", _IDENTITY), _request("identity", 2_000_000)
    cases = {
        "isolated": (_server(repository, "identity", (ISOLATED,)), 2),
        "in process": (_server(repository, "identity"), 2),
    }
    rates = _in_turn(cases, request, seconds, rounds, scratch)
    return {"in process": _report("8 MB, 2 connections", rates["isolated"], rates["in process"], "in process")}


def _busy_cell(scratch: Path, seconds: int, rounds: int) -> dict[str, float]:
    """Measure the effect of a busy loop in this process on the compute time of a model.

    The loop also delays the requests. A processor that was idle before computes more slowly at first, so the requests
    of the other measurement are sent at the same intervals.
    """
    body = _COMPUTE.replace(str(BUSY_LOOPS), str(COMPUTE_LOOPS[-1]))  # longer than the interpreter's switch interval
    repository = _repository(scratch, "compute", body)
    figures = {}
    for isolate in (False, True):
        increases = []
        with Server(repository, port=None, allow_http=False, isolate=isolate) as server:
            for _ in range(rounds):
                with _busy():
                    busy, interval = _compute_ms(server, seconds)
                free, _ = _compute_ms(server, seconds, interval)
                increases.append(busy / free - 1)
        where = "isolated" if isolate else "in process"
        figures[where] = statistics.median(increases)
        values = ", ".join(f"{increase:+.1%}" for increase in increases)
        print(f"busy cell, {where}: compute time {figures[where]:+.1%} ({values}), a request every {interval:.3f} s")
    return figures


def _compute_ms(server: Server, seconds: int, interval: float = 0.0) -> tuple[float, float]:
    """The median of the compute times in ms, one request after another, and the interval between requests in s."""
    row, times = np.zeros((1, 16), np.float32), []
    begin = due = time.monotonic()
    total = server["compute"].stats()["inference_stats"]["compute_infer"]["ns"]
    while time.monotonic() < begin + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        due += interval
        server["compute"](X=row)
        now = server["compute"].stats()["inference_stats"]["compute_infer"]["ns"]
        times.append((now - total) / 1e6)
        total = now
    return statistics.median(times), seconds / len(times)


@contextmanager
def _busy() -> Iterator[None]:
    """Run pure Python in another thread, as a cell does in the main thread."""
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            sum(number * number for number in range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _server(repository: Path, model: str, options: Sequence[str] = ()) -> Callable[[ExitStack], str]:
    return lambda stack: stack.enter_context(servers.tritonnb(repository, model, options=options))


def _in_turn(
    cases: dict[str, tuple[Callable[[ExitStack], str], int]],
    requests: Requests,
    seconds: int,
    rounds: int,
    scratch: Path,
) -> dict[str, list[float]]:
    """Load every server in turn; returns requests per second of each round."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    with ExitStack() as stack:
        urls = {name: start(stack) for name, (start, _) in cases.items()}
        for name, (_, connections) in cases.items():
            wrk(urls[name], requests, connections, 1, scratch)
        for _ in range(rounds):
            for name, (_, connections) in cases.items():
                rates[name].append(wrk(urls[name], requests, connections, seconds, scratch).rate)
    return rates


def _report(label: str, measured: Sequence[float], reference: Sequence[float], name: str) -> float:
    ratio = statistics.median(one / other for one, other in zip(measured, reference, strict=True))
    rates = f"{statistics.median(measured):.0f}/s, {name} {statistics.median(reference):.0f}/s"
    print(f"{label}: {ratio:.2f} of {name} ({rates})")
    return ratio
