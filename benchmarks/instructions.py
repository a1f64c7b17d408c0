"""Instructions in user mode per request, counted by callgrind.

Unlike rates, they are the same on any machine with this processor architecture, also while other programs run. The
server runs in its own process under ``valgrind --tool=callgrind``, which counts only while requests are sent. Each
request has its own ID and data.

``python -m benchmarks.instructions`` compares the figures with those in ``instructions.json``, and fails if one has
grown: ``make check-budget``. With ``--write`` it writes the file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import psutil

from benchmarks import servers
from benchmarks.grpc_load import messages, send_all
from benchmarks.http import ensemble_repository, users_repository
from benchmarks.load import CLIENTS, Requests, floats, v2_json
from tritonnb.compiled import STATE

CONNECTIONS = (1, 8, 32)
#: Requests that are counted for each row, after as many that fill caches.
COUNTED = 480
#: The figures of this checkout: instructions per request by row.
BUDGET = Path(__file__).with_name("instructions.json")
#: By how much a row may exceed its figure in the file.
TOLERANCE = 0.03
#: How many slots of a batch of sequences are empty depends on when threads run, and changes its figure by ten percent.
_VARYING = ("sequences, 8 connections", "sequences, 32 connections")
_SEQUENCE_LENGTH = 15
_IDENTITY, _ENSEMBLE, _SEQUENCES = "identity_fp32", "two_steps", "accumulator"
_PREFIX = ("valgrind", "--tool=callgrind", "--instr-atstart=no")

#: What sends so many requests over so many connections, or from so many threads.
Send = Callable[[int, int], None]


def instructions(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Instructions in user mode per request, and which modules they are spent in."""
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed: apt install valgrind")
        return {}
    figures: dict[str, object] = {}
    for row, profile in count(scratch):
        figures[row] = {"instructions": profile.total / COUNTED, "inclusive": profile.shares()}
        print(f"{row:>40} {profile.total / COUNTED:>9,.0f}", flush=True)
    return figures


def count(scratch: Path) -> Iterator[tuple[str, Profile]]:
    """Yield the profile of each row."""
    repository = _repository(scratch)
    counts = scratch / "counts"
    prefix = (*_PREFIX, f"--callgrind-out-file={counts}")
    grpc = servers.free_port()
    models = (_IDENTITY, _ENSEMBLE, _SEQUENCES)
    with servers.tritonnb(repository, *models, grpc=grpc, prefix=prefix) as url:
        binary = Requests.binary(_IDENTITY, "INPUT0", floats(16), "OUTPUT0")
        in_json = Requests.json(f"/v2/models/{_IDENTITY}/infer", v2_json, floats(16))
        in_json = replace(in_json, headers=CLIENTS["curl"])  # which does not ask for compression
        two_steps = Requests.binary(_ENSEMBLE, "INPUT0", floats(16), "OUTPUT0")
        bodies = messages((_IDENTITY,), 16)
        ways: dict[str, Send] = {
            "HTTP binary": _HttpSender(url, binary),
            "HTTP JSON": _HttpSender(url, in_json),
            "gRPC": lambda requests, connections: asyncio.run(
                send_all(grpc, itertools.islice(bodies, requests), requests, connections)
            ),
            "ensemble of two": _HttpSender(url, two_steps),
            "sequences": _HttpSender(url, None),
        }
        yield from _measure(ways, counts, "connections")
    with _calling_process(repository, counts, prefix) as (standard_input, standard_output):

        def call(requests: int, threads: int) -> None:
            standard_input.write(f"{requests} {threads}\n")
            standard_input.flush()
            if standard_output.readline() != "done\n":
                raise RuntimeError("the process that calls a model ended")

        yield from _measure({"in process": call}, counts, "threads")


def _measure(ways: dict[str, Send], counts: Path, unit: str) -> Iterator[tuple[str, Profile]]:
    process = next(child for child in psutil.Process().children() if any(str(counts) in a for a in child.cmdline()))
    for (name, send), number in itertools.product(ways.items(), CONNECTIONS):
        send(COUNTED, number)
        _control("--instr=on", process.pid)
        send(COUNTED, number)
        _control("--instr=off", process.pid)
        _control("--dump", process.pid)  # which also sets the counters to zero
        dump = max(counts.parent.glob(f"{counts.name}.*"), key=lambda path: int(path.suffix[1:]))
        yield f"{name}, {number} {unit if number > 1 else unit[:-1]}", Profile(dump.read_text())
        dump.unlink()


def _control(option: str, pid: int) -> None:
    subprocess.run(["callgrind_control", option, str(pid)], check=True, capture_output=True)


def _repository(scratch: Path) -> Path:
    """Return a repository with the models of all rows."""
    repository = users_repository(scratch)
    shutil.copytree(ensemble_repository(scratch), repository, dirs_exist_ok=True)
    shutil.copytree(servers.ROOT / "model_repository" / _SEQUENCES, repository / _SEQUENCES)
    config = repository / _SEQUENCES / "config.pbtxt"
    # Under valgrind on a busy machine, the next request of a sequence may take longer than the five seconds there.
    config.write_text(config.read_text().replace(": 5000000\n", ": 600000000\n"))
    return repository


# --- requests -----------------------------------------------------------------------------


def _numbered(requests: Requests, number: int) -> bytes:
    """Return an HTTP request with its own ID and data."""
    content = requests.contents[number % len(requests.contents)]
    head = f"{requests.before_id}{number}".encode()
    after = requests.after_id.encode()
    headers = dict(requests.headers)
    if requests.is_binary:
        return _request(requests.paths[0], headers, head + after, content)
    return _request(requests.paths[0], headers, b"", head + after + content)


def _of_sequence(sequence: int, step: int) -> bytes:
    """Return a request of a sequence to the accumulator."""
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}
    head = {
        "inputs": [tensor],
        "outputs": [{"name": "OUTPUT", "parameters": {"binary_data": True}}],
        "parameters": {
            "sequence_id": sequence,
            "sequence_start": step == 0,
            "sequence_end": step == _SEQUENCE_LENGTH - 1,
        },
    }
    encoded = json.dumps(head, separators=(",", ":")).encode()
    return _request(f"/v2/models/{_SEQUENCES}/infer", {}, encoded, np.int32(step).tobytes())


def _request(path: str, headers: dict[str, str], head: bytes, content: bytes) -> bytes:
    headers |= {"Host": "127.0.0.1", "Content-Length": str(len(head) + len(content))}
    if head:
        headers["Inference-Header-Content-Length"] = str(len(head))
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + head + content


class _HttpSender:
    """Sends HTTP requests from several threads, one after the other over each connection.

    Without ``requests``, these are sequences, one after the other over each connection.
    """

    def __init__(self, url: str, requests: Requests | None) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._address = host, int(port)
        self._requests = requests
        self._numbers = itertools.count(1)

    def __call__(self, count: int, connections: int) -> None:
        with ThreadPoolExecutor(connections) as executor:
            for sent in [executor.submit(self._send, count // connections) for _ in range(connections)]:
                sent.result()

    def _send(self, count: int) -> None:
        sequence = 0
        with closing(socket.create_connection(self._address)) as connection, connection.makefile("rb") as received:
            for step in range(count):
                if self._requests is not None:
                    request = _numbered(self._requests, next(self._numbers))
                else:
                    sequence = sequence if step % _SEQUENCE_LENGTH else next(self._numbers)
                    request = _of_sequence(sequence, step % _SEQUENCE_LENGTH)
                connection.sendall(request)
                _read_response(received)


def _read_response(received: IO[bytes]) -> None:
    status, length = received.readline(), 0
    while (line := received.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    body = received.read(length)
    if b" 200 " not in status:
        raise RuntimeError(f"expected status 200, got {status!r}: {body!r}")


@contextmanager
def _calling_process(repository: Path, counts: Path, prefix: tuple[str, ...]) -> Iterator[tuple[IO[str], IO[str]]]:
    """Run a process that calls a model of its own server; yields its standard input and output."""
    command = [*prefix, sys.executable, "-m", "benchmarks.instructions", "--call", str(repository)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=servers.ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdin, process.stdout
        finally:
            process.kill()


def _call(repository: str) -> None:
    """Call a model as the lines of standard input say, each with a number of calls and one of threads."""
    from tritonnb.server.server import Server

    arrays = [np.random.default_rng(seed).random((1, 16), np.float32) for seed in range(256)]
    with Server(repository, port=0, model_control_mode="explicit", load_models=[_IDENTITY]) as server:
        model = server[_IDENTITY]

        def send(first: int, count: int) -> None:
            for number in range(first, first + count):
                model(INPUT0=arrays[number % len(arrays)])

        for line in sys.stdin:
            requests, number = map(int, line.split())
            each = requests // number
            threads = [threading.Thread(target=send, args=(index * each, each)) for index in range(number)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print("done", flush=True)


# --- profiles -----------------------------------------------------------------------------


class Profile:
    """A profile that callgrind has written.

    Parameters
    ----------
    text : str

    Attributes
    ----------
    total : int
        Instructions.
    """

    def __init__(self, text: str) -> None:
        self.total = 0
        self._calls: Counter[str] = Counter()  # instructions of all calls of a function, what it calls included
        names: dict[str, str] = {}
        function = called = ""
        for line in text.splitlines():
            if line.startswith(("fn=", "cfn=")):
                kind, _, name = line.partition("=")
                key, _, rest = name.partition(" ")
                names.setdefault(key, rest)
                if kind == "fn":
                    function = names[key]
                else:
                    called = names[key]
            elif line.startswith(_COST):
                instructions = int(line.split()[-1])
                if not called:
                    self.total += instructions
                elif called != function:
                    self._calls[called] += instructions
                called = ""

    def shares(self, least: float = 0.02) -> dict[str, float]:
        """Return the share of the largest function of each compiled module, what it calls included.

        Not the sum over the functions of a module, which call each other through other modules.
        """
        shares: dict[str, float] = {}
        for name, spent in self._calls.most_common():
            module, function = _compiled(name)
            if module and spent >= least * self.total and not any(known.startswith(f"{module}:") for known in shares):
                shares[f"{module}: {function}"] = spent / self.total
        return shares


#: What a line with a cost begins with: its line of the source, or the difference to that of the line before.
_COST = tuple("0123456789+-*")


def _compiled_modules() -> dict[str, str]:
    """Return the compiled modules by each name that mypyc may give them: the shortest that is unique."""
    config = tomllib.loads((servers.ROOT / "pyproject.toml").read_text())
    modules: dict[str, str] = {}
    for path in config["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]:
        parts = path.removesuffix(".py").split("/")[1:]
        modules |= {"___".join(parts[start:]): ".".join(parts) for start in range(len(parts))}
    return modules


_MODULES = _compiled_modules()


def _compiled(function: str) -> tuple[str, str]:
    """Return the module and the name of a function that mypyc has compiled; empty for any other."""
    if function.startswith("CPyDef_"):
        parts = function.removeprefix("CPyDef_").split("___")
        for end in range(len(parts), 0, -1):
            module = _MODULES.get("___".join(parts[:end]))
            if module:
                return module, ".".join(parts[end:])
    return "", ""


# --- the budget ---------------------------------------------------------------------------


def main() -> None:
    """Compare the figures with those in the repository, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--call", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        _call(options.call)
        return
    if STATE != "compiled":
        sys.exit(f"the budget of instructions: expected the compiled modules, got tritonnb {STATE}: make compile")
    known = json.loads(BUDGET.read_text())
    measured = _measured({})
    if options.write:
        BUDGET.write_text(json.dumps({"python": sys.version, "rows": measured}, indent=2) + "\n")
    elif known["python"] != sys.version:
        print(f"not compared: {BUDGET.name} was counted with Python {known['python']}, this is {sys.version}")
    elif _grown(measured, known["rows"]) and (grown := _grown(_measured(measured), known["rows"])):
        sys.exit(f"more than {TOLERANCE:.0%} above {BUDGET.name}: {', '.join(grown)}")


def _measured(before: dict[str, int]) -> dict[str, int]:
    """Count, print and return the figures; the smaller ones if they were counted before.

    The sizes of batches depend on when threads run, and with them the figures, by about one percent.
    """
    with tempfile.TemporaryDirectory() as scratch:
        figures = {}
        for row, profile in count(Path(scratch)):
            counted = round(profile.total / COUNTED)
            figures[row] = min(counted, before.get(row, counted))
            print(f"{row:>30} {figures[row]:>9,}", flush=True)
        return figures


def _grown(measured: dict[str, int], known: dict[str, int]) -> list[str]:
    return [
        f"{row} ({known[row]:,} to {figure:,})"
        for row, figure in measured.items()
        if figure > known[row] * (1 + TOLERANCE) and row not in _VARYING
    ]


if __name__ == "__main__":
    main()
