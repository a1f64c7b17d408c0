"""A busy cell: a client in another process asks a server inside a Jupyter kernel while Python keeps the kernel busy.

The interpreter lock is what the cell, the server's loop and the instances share; a thread that wants it waits
for the switch interval, which `tnb.serve` shortens while a cell runs. "plain" is Python's own interval, 5 ms.
Nothing may fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from benchmarks.servers import ROOT

RATE = 100
MODELS = ("add_sub", "digits")

SERVE = f"""
import tritonnb as tnb
server = tnb.serve({str(ROOT / "model_repository")!r}, port=0, model_control_mode="explicit", load_models={MODELS!r})
print(server.url, end="")
"""
#: Until it is interrupted.
BUSY = """
import sys
if {plain}:
    sys.setswitchinterval(0.005)
print("busy", flush=True)
while True:
    pass
"""
CLIENT = """
import json, sys
import tritonnb as tnb
url, rate, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
tnb.load(url, clients=1, requests=50).wait()
found = tnb.load(url, rate=rate, arrivals="poisson", duration=seconds, seed=1).wait()
print(json.dumps({**found.summary(), "errors": found.errors}))
"""


def kernel(scratch: Path, seconds: int, rounds: int) -> dict[str, Any]:
    """100 requests a second for 10 s, the kernel idle and then busy in a `while` loop; target: none fails."""
    seconds = max(10, seconds)
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(ROOT))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    try:
        url = _printed(client, SERVE)
        return {model: _measure(manager, client, f"{url}/v2/models/{model}", model, seconds) for model in MODELS}
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _measure(manager: KernelManager, client: Any, url: str, model: str, seconds: int) -> dict[str, Any]:
    found = {"idle": _ask(url, seconds)}
    for state in ("busy", "busy, plain"):
        cell = client.execute(BUSY.format(plain="plain" in state))
        _wait_for(client, cell, "stream")
        found[state] = _ask(url, seconds)
        manager.interrupt_kernel()
        _wait_for(client, cell, "status", execution_state="idle")
    for state, summary in found.items():
        print(
            f"{model}, kernel {state}: {summary['requests']} requests, {summary['failed']} failed, "
            f"p50 {summary['latency_p50_ms']:.2f} ms, p99 {summary['latency_p99_ms']:.2f} ms, "
            f"max {summary['latency_max_ms']:.2f} ms",
            flush=True,
        )
    return found


def _ask(url: str, seconds: int) -> dict[str, Any]:
    command = [sys.executable, "-c", CLIENT, url, str(RATE), str(seconds)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(printed)
    return found


def _printed(client: Any, code: str) -> str:
    printed: list[str] = []

    def output(message: dict[str, Any]) -> None:
        printed.append(message["content"].get("text", "") or "\n".join(message["content"].get("traceback", [])))

    reply = client.execute_interactive(code, output_hook=output, timeout=120)
    if reply["content"]["status"] != "ok":
        raise RuntimeError("".join(printed))
    return "".join(printed)


def _wait_for(client: Any, request: str, kind: str, **wanted: str) -> None:
    """Wait for a message about a cell."""
    while True:
        message = client.get_iopub_msg(timeout=120)
        content = message["content"]
        about = message["parent_header"].get("msg_id") == request and message["msg_type"] == kind
        if about and all(content[name] == value for name, value in wanted.items()):
            return
