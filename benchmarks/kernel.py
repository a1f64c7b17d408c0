"""A busy cell: a client in another process sends requests to a server in a Jupyter kernel that runs a Python loop.

The cell, the server's loop and the instances share the interpreter lock. A thread that needs it waits for the switch
interval: Python's default of 5 ms, and 0.5 ms, which a user may set. No request may fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from benchmarks.servers import ROOT

RATE = 100
MODELS = ("add_sub", "digits")

SERVE = f"""
import tritonnb as tnb
server = tnb.serve({str(ROOT / "model_repository")!r}, port=0, model_control_mode="explicit", load_models={MODELS!r})
print(server.url, end="")
"""
#: Runs until it is interrupted.
BUSY = """
import sys
sys.setswitchinterval({interval_s})
print("busy", flush=True)
while True:
    pass
"""
CLIENT = """
import json, sys
import tritonnb as tnb
url, rate, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
tnb.load(url, clients=1, requests=50).wait()
result = tnb.load(url, rate=rate, arrivals="poisson", duration=seconds, seed=1).wait()
print(json.dumps({**result.summary(), "errors": result.errors}))
"""


def kernel(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """100 requests per second for 10 s, with an idle kernel and then a busy one; target: none fails."""
    seconds = max(10, seconds)
    with running_kernel() as (manager, client):
        url = _printed(client, SERVE)
        return {model: _measure(manager, client, f"{url}/v2/models/{model}", model, seconds) for model in MODELS}


@contextmanager
def running_kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """Start a kernel; yields its manager and a client."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(ROOT))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _measure(
    manager: KernelManager, client: BlockingKernelClient, url: str, model: str, seconds: int
) -> dict[str, dict[str, object]]:
    summaries = {"idle": _run_client(url, seconds)}
    for state, interval_s in (("busy", 0.005), ("busy, switch interval 0.5 ms", 0.0005)):
        cell = client.execute(BUSY.format(interval_s=interval_s))
        _wait_for(client, cell, "stream")
        summaries[state] = _run_client(url, seconds)
        manager.interrupt_kernel()
        _wait_for(client, cell, "status", execution_state="idle")
    for state, summary in summaries.items():
        print(
            f"{model}, kernel {state}: {summary['requests']} requests, {summary['failed']} failed, "
            f"p50 {summary['latency_p50_ms']:.2f} ms, p99 {summary['latency_p99_ms']:.2f} ms, "
            f"max {summary['latency_max_ms']:.2f} ms",
            flush=True,
        )
    return summaries


def _run_client(url: str, seconds: int) -> dict[str, object]:
    command = [sys.executable, "-c", CLIENT, url, str(RATE), str(seconds)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    summary: dict[str, object] = json.loads(printed)
    return summary


def _printed(client: BlockingKernelClient, code: str) -> str:
    printed: list[str] = []

    def output(message: dict[str, Any]) -> None:
        printed.append(message["content"].get("text", "") or "\n".join(message["content"].get("traceback", [])))

    reply = client.execute_interactive(code, output_hook=output, timeout=120)
    if reply["content"]["status"] != "ok":
        raise RuntimeError("".join(printed))
    return "".join(printed)


def _wait_for(client: BlockingKernelClient, request: str, kind: str, **fields: str) -> None:
    """Wait for a message about a cell."""
    while True:
        message = client.get_iopub_msg(timeout=120)
        content = message["content"]
        about = message["parent_header"].get("msg_id") == request and message["msg_type"] == kind
        if about and all(content[name] == value for name, value in fields.items()):
            return
