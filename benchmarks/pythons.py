"""Other versions of Python against this one: the server, compiled for each of them, in turn.

The environment variable ``TRITONNB_PYTHONS`` has the interpreters, separated as in ``PATH``. Each is of an environment
with the package's dependencies and what compiles it (``pip install "mypy[mypyc]" hatchling setuptools .``).
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import servers
from benchmarks.load import Requests, floats, wrk
from benchmarks.tricks import CONNECTIONS, MODEL, copy_package


def pythons(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Requests per second on each version of Python in ``TRITONNB_PYTHONS``, divided by those on this one."""
    others = [python for python in os.environ.get("TRITONNB_PYTHONS", "").split(os.pathsep) if python]
    if not others:
        print("skipped: TRITONNB_PYTHONS names no interpreters")
        return {}
    repository = scratch / "pythons"
    shutil.copytree(servers.ROOT / "model_repository" / MODEL, repository / MODEL)
    own = platform.python_version()
    interpreters = {own: sys.executable, **{_version(python): python for python in others}}
    packages = {version: copy_package(scratch / version, python=python) for version, python in interpreters.items()}
    rates: dict[str, dict[int, list[float]]] = {version: {n: [] for n in CONNECTIONS} for version in interpreters}
    requests = Requests.binary(MODEL, "INPUT0", floats(16), "OUTPUT0")
    for _ in range(rounds):
        for version, python in interpreters.items():
            with servers.tritonnb(repository, MODEL, checkout=packages[version], python=python) as url:
                wrk(url, requests, 8, 2, scratch)  # warm up
                for count in CONNECTIONS:
                    rates[version][count].append(wrk(url, requests, count, seconds, scratch).rate)
    figures: dict[str, object] = {}
    for version in list(interpreters)[1:]:
        pairs = {count: zip(rates[version][count], rates[own][count], strict=True) for count in CONNECTIONS}
        ratios = {str(count): [other / this for other, this in pairs[count]] for count in CONNECTIONS}
        print(f"{version}: " + ", ".join(f"{statistics.median(ratios[n]):.2f}x at {n}" for n in ratios), flush=True)
        figures[version] = ratios
    return figures


def _version(python: str) -> str:
    command = [python, "-c", "import platform; print(platform.python_version(), end='')"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
