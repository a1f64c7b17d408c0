"""The effect of each optimisation: the server with it and without it, at the same time, measured in turn.

A copy of the package without an optimisation is made by an edit of its source, then compiled as the original is, since
compiled modules cannot be changed while they run.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import servers
from benchmarks.grpc_load import grpc_load
from benchmarks.http import SMALL, inline
from benchmarks.load import Requests, floats, wrk

CONNECTIONS = (1, 8, 32)
MODEL = "identity_fp32"
_HTTP, _GRPC = "tritonnb/endpoints/http", "tritonnb/endpoints/grpc"
_NO_CACHE = "limit: int = MAX_HEADS", "limit: int = 0"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the package, and the edits that remove it.

    Attributes
    ----------
    edits : tuple of (str, str, str)
        Path of a file, a piece of its text that occurs once, and what replaces the piece.
    compiled : bool
        Whether the copy is compiled.
    grpc : bool
        Whether the load is gRPC.
    inline : bool
        Whether the model has the parameter ``EXECUTE_ON_ANY_THREAD``.
    has_id : bool
        Whether each request has its own ID.
    """

    edits: tuple[tuple[str, str, str], ...] = ()
    compiled: bool = True
    grpc: bool = False
    inline: bool = False
    has_id: bool = True


TRICKS = {
    "known heads of HTTP requests are not parsed again": Part(((f"{_HTTP}/transport/request_parser.py", *_NO_CACHE),)),
    "known JSON of HTTP requests without ID is not parsed again": Part(
        ((f"{_HTTP}/request_reader.py", *_NO_CACHE),), has_id=False
    ),
    "the thread of an instance is woken after the event loop has read": Part(
        (
            (
                "tritonnb/engine/execution/instance.py",
                "self._loop.call_soon(self._work.put, work)",
                "self._work.put(work)",
            ),
        )
    ),
    "the event loop executes quick batches (EXECUTE_ON_ANY_THREAD)": Part(
        (("tritonnb/engine/execution/instance.py", "QUICK_EXECUTION_NS = 200_000", "QUICK_EXECUTION_NS = 0"),),
        inline=True,
    ),
    "compiled with mypyc": Part(compiled=False),
    "own HTTP/2 instead of grpcio's": Part(
        (
            (
                f"{_GRPC}/endpoint.py",
                'if options.transport != "grpcio" and not options.grpcio_options:',
                "if False:",
            ),
        ),
        grpc=True,
    ),
    "plain gRPC requests are read without protobuf": Part(
        ((f"{_GRPC}/dispatch.py", "message = read_plain(serialized)", "message = None"),), grpc=True
    ),
}


def tricks(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Each optimisation: requests per second with it, divided by those without it. One below 1.03 everywhere goes."""
    repository = scratch / "tricks"
    shutil.copytree(servers.ROOT / "model_repository" / MODEL, repository / MODEL)
    figures: dict[str, object] = {}
    for name, part in TRICKS.items():
        without = copy_package(scratch / "without", part.edits, compiled=part.compiled)
        models = inline(repository) if part.inline else repository
        with _load(servers.ROOT, models, part, scratch) as own, _load(without, models, part, scratch) as other:
            runs: dict[int, list[float]] = {count: [] for count in CONNECTIONS}
            for _, count in itertools.product(range(rounds), CONNECTIONS):
                runs[count].append(own(count, seconds) / other(count, seconds))
        ratios = {str(count): statistics.median(values) for count, values in runs.items()}
        print(f"{name}: " + ", ".join(f"{ratio:.2f}x at {count}" for count, ratio in ratios.items()), flush=True)
        figures[name] = {"ratios": ratios, "rounds": {str(count): values for count, values in runs.items()}}
        shutil.rmtree(without)
    return figures


def copy_package(
    target: Path, edits: Iterable[tuple[str, str, str]] = (), *, compiled: bool = True, python: str = sys.executable
) -> Path:
    """Copy the package, edit the copy (see `Part`), and compile it with an interpreter; returns its directory."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(servers.ROOT / "tritonnb", target / "tritonnb", ignore=ignored)
    for file in ("pyproject.toml", "hatch_build.py"):
        shutil.copy(servers.ROOT / file, target)
    for file, piece, replacement in edits:
        text = (target / file).read_text()
        if text.count(piece) != 1:
            raise ValueError(f"{file}: expected {piece!r} once, got it {text.count(piece)} times")
        (target / file).write_text(text.replace(piece, replacement))
    if compiled:
        subprocess.run([python, "hatch_build.py"], cwd=target, check=True, capture_output=True)
        show = "import tritonnb.compiled; print(tritonnb.compiled.STATE, end='')"
        state = subprocess.run([python, "-c", show], cwd=target, check=True, capture_output=True, text=True).stdout
        if state != "compiled":
            raise RuntimeError(f"copy of the package: expected it to be compiled, got {state}")
    return target


@contextmanager
def _load(checkout: Path, repository: Path, part: Part, scratch: Path) -> Iterator[Callable[[int, int], float]]:
    """Run a server; yields a function from connections and seconds to requests per second."""
    port = servers.free_port()
    requests = Requests.binary(MODEL, "INPUT0", floats(SMALL), "OUTPUT0", has_id=part.has_id)
    with servers.tritonnb(repository, MODEL, grpc=port, checkout=checkout) as url:

        def rate(count: int, duration: int) -> float:
            if part.grpc:
                return grpc_load(port, (MODEL,), SMALL, count, duration).rate
            return wrk(url, requests, count, duration, scratch).rate

        rate(8, 2)  # warm up
        yield rate
