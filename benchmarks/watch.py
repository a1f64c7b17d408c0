"""The overhead of a batch view: the same server in a Jupyter kernel, with an open batch view and without one.

The view's messages are read as by a front end. At 1,000 requests per second the overhead shows in the latency and in
the processor time per request, at saturation in the request rate. Rounds with and without the view alternate; the
figures are medians of the rounds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import psutil
from jupyter_client.blocking.client import BlockingKernelClient

from benchmarks.kernel import CLIENT, running_kernel
from benchmarks.load import Requests, floats, wrk
from benchmarks.servers import ROOT

RATE = 1000
CONNECTIONS = 8
MODEL = "identity"
STATES = ("unwatched", "watched")
RATIOS = ("p50_ms", "p99_ms", "cpu_us", "rate")

SERVE = """
import tritonnb as tnb
server = tnb.serve(port=0)

@server.model(max_batch_size=64, dynamic_batching={})
def identity(X: tnb.FP32[16]) -> tnb.FP32[16]:
    return X
"""
SHOW = {"unwatched": "view.close()", "watched": f"view = server[{MODEL!r}].watch(); view"}


def watch(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """With and without a batch view at 1,000 requests per second and at saturation; target: within 5 %."""
    rounds_by_state: dict[str, list[dict[str, float]]] = {state: [] for state in STATES}
    with _kernel() as (front_end, pid):
        front_end.run(SERVE)
        url = front_end.run("print(server.url, end='')")
        for _ in range(rounds):
            front_end.run(SHOW["watched"])
            rounds_by_state["watched"].append(_measure(url, pid, seconds, scratch, front_end))
            front_end.run(SHOW["unwatched"])
            rounds_by_state["unwatched"].append(_measure(url, pid, seconds, scratch, front_end))
    figures = {
        state: {name: statistics.median(values[name] for values in measured) for name in measured[0]}
        for state, measured in rounds_by_state.items()
    }
    for state in STATES:
        values = figures[state]
        print(
            f"{state}: at {RATE}/s p50 {values['p50_ms']:.2f} ms, p99 {values['p99_ms']:.2f} ms, processor "
            f"{values['cpu_us']:.0f} us per request; at saturation {values['rate']:.0f}/s; "
            f"{values['messages']:.1f} messages per second, {values['kB']:.0f} kB/s",
            flush=True,
        )
    ratios = {name: figures["watched"][name] / figures["unwatched"][name] for name in RATIOS}
    print(
        f"watched against unwatched: p50 {ratios['p50_ms']:.3f}x, p99 {ratios['p99_ms']:.3f}x, "
        f"processor {ratios['cpu_us']:.3f}x, saturated rate {ratios['rate']:.3f}x"
    )
    return {**figures, "ratios": ratios, "rounds": rounds_by_state}


def _measure(url: str, pid: int, seconds: int, scratch: Path, front_end: _FrontEnd) -> dict[str, float]:
    before, messages, size = _cpu_s(pid), front_end.messages, front_end.bytes
    command = [sys.executable, "-c", CLIENT, f"{url}/v2/models/{MODEL}", str(RATE), str(seconds)]
    summary = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    cpu_s = _cpu_s(pid) - before
    messages, size = front_end.messages - messages, front_end.bytes - size
    assert not summary["failed"], summary["errors"]
    requests = Requests.binary(MODEL, "X", floats(16), "OUTPUT")
    return {
        "p50_ms": summary["latency_p50_ms"],
        "p99_ms": summary["latency_p99_ms"],
        "cpu_us": cpu_s / summary["requests"] * 1e6,
        "rate": wrk(url, requests, CONNECTIONS, seconds, scratch).rate,
        "messages": messages / seconds,
        "kB": size / seconds / 1e3,
    }


def _cpu_s(pid: int) -> float:
    """Processor time of a process in seconds."""
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


class _FrontEnd:
    """A front end that runs cells, and reads everything that the kernel publishes."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self.messages = self.bytes = 0
        self._client = client
        self._printed: dict[str, str] = {}
        self._idle: Queue[str] = Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def run(self, code: str) -> str:
        """Run a cell and return its output."""
        number = self._client.execute(code)
        reply = self._client.get_shell_msg(timeout=120)
        while reply["parent_header"].get("msg_id") != number:
            reply = self._client.get_shell_msg(timeout=120)
        if reply["content"]["status"] != "ok":
            raise RuntimeError("\n".join(reply["content"]["traceback"]))
        while self._idle.get(timeout=120) != number:  # its output has been read before that
            pass
        return self._printed.pop(number, "")

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._client.get_iopub_msg(timeout=0.1)
            except Empty:
                continue
            number = message["parent_header"].get("msg_id", "")
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                self._idle.put(number)
            elif message["msg_type"] == "stream":
                self._printed[number] = self._printed.get(number, "") + message["content"]["text"]
            elif message["msg_type"] == "comm_msg":
                self.messages += 1
                self.bytes += len(json.dumps(message["content"]))


@contextmanager
def _kernel() -> Iterator[tuple[_FrontEnd, int]]:
    """Start a kernel; yields its front end and its process ID."""
    with running_kernel() as (_, client):
        front_end = _FrontEnd(client)
        try:
            yield front_end, int(front_end.run("import os; print(os.getpid())"))
        finally:
            front_end.close()
