"""Other Python servers of an identity model, each configured as its documentation recommends.

Every server takes JSON, batches requests, and runs in its own virtual environment
(``~/.cache/tritonnb/peers/NAME``, or below the path in the environment variable ``TRITONNB_PEERS``), which is created
on first use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import servers
from benchmarks.http import report
from benchmarks.load import Measured, Requests, floats, v2_json, wrk

SCRIPTS = Path(__file__).parent
CONNECTIONS = (1, 8, 32)


@dataclass(frozen=True, slots=True)
class Peer:
    """A server in its own environment.

    Attributes
    ----------
    packages : tuple of str
    command : tuple of str
        Below the environment's *bin*; ``{port}`` is replaced by the port of the server.
    ready, path : str
        What answers when the server is ready, and the path of requests.
    form : callable
        From the values of a request to its JSON.
    """

    packages: tuple[str, ...]
    command: tuple[str, ...]
    ready: str
    path: str
    form: Callable[[list[float]], object]

    @contextmanager
    def run(self, name: str, scratch: Path) -> Iterator[str]:
        """Run the server; yields its URL."""
        port, directory = servers.free_port(), scratch / f"peer-{name}"
        shutil.copytree(SCRIPTS / name, directory, dirs_exist_ok=True)
        for settings in directory.glob("*.json"):
            text = settings.read_text().replace('"{port}"', str(port)).replace('"{free}"', str(servers.free_port()), 1)
            settings.write_text(text.replace('"{free}"', str(servers.free_port())))
        program, *arguments = (part.replace("{port}", str(port)) for part in self.command)
        command = [str(_environment(name, self.packages) / "bin" / program), *arguments]
        with servers.process(command, f"http://127.0.0.1:{port}", dict(os.environ), self.ready, directory) as url:
            yield url


def _input(values: list[float]) -> object:
    return {"input": values}


PEERS = {
    "litserve": Peer(("litserve",), ("python", "serve.py", "{port}"), "/health", "/predict", _input),
    "mlserver": Peer(
        ("mlserver",), ("mlserver", "start", "."), "/v2/models/identity/ready", "/v2/models/identity/infer", v2_json
    ),
    "bentoml": Peer(
        ("bentoml",),
        ("bentoml", "serve", "service:Identity", "--port", "{port}"),
        "/readyz",
        "/predict",
        lambda values: {"x": [values]},
    ),
    "ray serve": Peer(("ray[serve]",), ("python", "serve.py", "{port}"), "/-/healthz", "/", _input),
}


def peers(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """JSON with 16 numbers over 1, 8 and 32 connections, batching on, against other servers of Python users."""
    single = scratch / "peers"
    shutil.copytree(servers.ROOT / "model_repository" / "identity_fp32", single / "identity_fp32")
    values = floats(16)
    v2 = Requests.json("/v2/models/identity_fp32/infer", v2_json, values)
    load: dict[str, tuple[Callable[[], AbstractContextManager[str]], Requests]] = {
        "triton": (partial(servers.triton, single, scratch), v2),
        "pytriton": (partial(servers.pytriton, scratch), v2),
        **{
            name: (
                partial(peer.run, name.replace(" ", "_"), scratch),
                Requests.json(peer.path, peer.form, values, has_id=peer.form is v2_json),
            )
            for name, peer in PEERS.items()
        },
        "tritonnb": (partial(servers.tritonnb, single, "identity_fp32"), v2),
    }
    runs: dict[tuple[str, int], list[Measured]] = {}
    for number in range(rounds):
        for name, (start, requests) in load.items():
            with start() as url:
                wrk(url, requests, 8, 2, scratch)  # warm up
                for count in CONNECTIONS:
                    measured = wrk(url, requests, count, seconds, scratch)
                    runs.setdefault((name, count), []).append(measured)
                    print(f"  round {number + 1}: {name} at {count}: {measured.rate:.0f}/s", flush=True)
    return report("JSON, 1x16 FP32 identity", runs)


def _environment(name: str, packages: tuple[str, ...]) -> Path:
    """Return the virtual environment of a peer, created if it does not exist."""
    directory = Path(os.environ.get("TRITONNB_PEERS", Path.home() / ".cache/tritonnb/peers")) / name
    if not (directory / "bin" / "python").exists():
        print(f"creating {directory} with {', '.join(packages)} …", flush=True)
        venv.create(directory, with_pip=True)
        subprocess.run([directory / "bin" / "pip", "install", "--quiet", *packages, "numpy"], check=True)
    return directory
