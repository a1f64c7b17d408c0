"""The cost of events, statistics and reasons, in instructions of an HTTP request.

The server runs under ``valgrind --tool=callgrind``, which counts instructions, with a part of the package and without
it. They do not depend on what else the machine does, as rates do, of which these parts are a few percent.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks import servers
from benchmarks.load import Requests, floats, wrk
from benchmarks.tricks import MODEL, Part, copy_package

CONNECTIONS = 8
_DRIVER = "tritonnb/engine/models/scheduler_driver.py"
_ARRIVED = "request_arrived(request, self._name, self._version, now)"
_SENT = "batch_sent(decision, self._name, self._version, number, name, waiting, now)"
_BATCH = "        input_ns, infer_ns = compute_start_ns - exec_start_ns, compute_end_ns - compute_start_ns\n"
PARTS = {
    "nothing": Part(),
    "events of requests and batches": Part(
        (
            ("tritonnb/telemetry/stream.py", "        self.recent.append(record)\n        if", "        if"),
            (_DRIVER, f"        served.stream.emit_record({_ARRIVED})\n", ""),
            (_DRIVER, f"        served.stream.emit_record({_SENT})\n", ""),
        )
    ),
    "statistics": Part((("tritonnb/telemetry/statistics.py", _BATCH, f"        return\n{_BATCH}"),)),
    "reasons of batches": Part((("tritonnb/scheduling/payload.py", "    return {\n", "    return {} and {\n"),)),
}


def costs(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Events, statistics and reasons: their part of the instructions of a request."""
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return {}
    repository = scratch / "costs"
    shutil.copytree(servers.ROOT / "model_repository" / MODEL, repository / MODEL)
    figures: dict[str, object] = {}
    for name, part in PARTS.items():
        copy = copy_package(scratch / "copy", part.edits)
        figures[name] = _instructions(copy, repository, 5 * seconds, scratch)
        print(f"without {name}: {figures[name]:,.0f} instructions per request", flush=True)
        shutil.rmtree(copy)
    return figures


def _instructions(checkout: Path, repository: Path, seconds: int, scratch: Path) -> float:
    """Instructions in user mode per request, of all threads of the server."""
    counts = scratch / "callgrind"
    prefix = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}")
    requests = Requests.binary(MODEL, "INPUT0", floats(16), "OUTPUT0")
    with servers.tritonnb(repository, MODEL, checkout=checkout, prefix=prefix) as url:
        wrk(url, requests, CONNECTIONS, 2, scratch)  # warm up
        subprocess.run(["callgrind_control", "--instr=on"], check=True, capture_output=True)
        count = wrk(url, requests, CONNECTIONS, seconds, scratch).rate * seconds
        subprocess.run(["callgrind_control", "--instr=off"], check=True, capture_output=True)
    totals = [line.split()[1] for line in counts.read_text().splitlines() if line.startswith(("totals:", "summary:"))]
    return int(totals[-1]) / count
