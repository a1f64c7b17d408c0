"""The servers that are compared, each in a process of its own: a real Triton, PyTriton, and ours.

The real Triton is the binary inside the package ``nvidia-pytriton``, in an environment of its own
that is made on first use: ``~/.cache/tritonnb/pytriton-0.7.0``, or where ``TRITONNB_REFERENCE`` points.
It needs numpy < 2 first on ``PATH``, libpython on ``LD_LIBRARY_PATH``, and the stub beside its backend.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "nvidia-pytriton==0.7.0"

PYTRITON = """
import sys
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

@batch
def identity(INPUT0):
    return {"OUTPUT0": INPUT0}

http, grpc, metrics = map(int, sys.argv[1:])
config = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics, log_verbose=0)
with Triton(config=config) as triton:
    triton.bind(
        "identity_fp32",
        infer_func=identity,
        inputs=[Tensor(name="INPUT0", dtype=np.float32, shape=(-1,))],
        outputs=[Tensor(name="OUTPUT0", dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher()),
    )
    triton.serve()
"""


def reference_environment() -> Path:
    """The environment with the real Triton, made if need be."""
    directory = Path(os.environ.get("TRITONNB_REFERENCE", Path.home() / ".cache/tritonnb/pytriton-0.7.0"))
    if not (directory / "bin" / "python").exists():
        print(f"making {directory} with {PACKAGE} …", flush=True)
        venv.create(directory, with_pip=True)
        subprocess.run([directory / "bin" / "pip", "install", "--quiet", PACKAGE, "numpy<2"], check=True)
    return directory


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def triton(repository: Path, scratch: Path, model: str = "identity_fp32", grpc: int = 0) -> Iterator[str]:
    """A real Triton serving a repository, gRPC on a port of choice; its URL."""
    environment = reference_environment()
    (found,) = environment.glob("lib/python3*/site-packages/pytriton/tritonserver")
    backends = scratch / "backends"
    if not backends.exists():
        shutil.copytree(found / "backends", backends)
        stub = found / "python_backend_stubs" / f"3.{sys.version_info.minor}" / "triton_python_backend_stub"
        shutil.copy(stub, backends / "python")
    http = free_port()
    command = [
        str(found / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--cache-directory={found / 'caches'}",
        f"--http-port={http}",
        f"--grpc-port={grpc or free_port()}",
        f"--metrics-port={free_port()}",
    ]
    with _process(command, f"http://127.0.0.1:{http}", _reference_variables(environment), model) as url:
        yield url


@contextmanager
def pytriton(scratch: Path) -> Iterator[str]:
    """PyTriton serving the same function, with batching; its URL."""
    environment = reference_environment()
    script = scratch / "pytriton_identity.py"
    script.write_text(PYTRITON)
    http = free_port()
    command = [str(environment / "bin" / "python"), str(script), *map(str, (http, free_port(), free_port()))]
    with _process(command, f"http://127.0.0.1:{http}", _reference_variables(environment)) as url:
        yield url


@contextmanager
def tritonnb(repository: Path, *models: str, grpc: int = 0) -> Iterator[str]:
    """Ours, serving some models of a repository, gRPC on a port of choice; its URL."""
    http = free_port()
    command = [sys.executable, "-m", "tritonnb", "serve", f"--model-repository={repository}", f"--http-port={http}"]
    command += [f"--grpc-port={grpc or free_port()}", f"--metrics-port={free_port()}"]
    command += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in models)]
    with _process(command, f"http://127.0.0.1:{http}", dict(os.environ), models[0]) as url:
        yield url


def _reference_variables(environment: Path) -> dict[str, str]:
    libraries = [sysconfig.get_config_var("LIBDIR"), *map(str, environment.glob("lib/python3*/site-packages/*.libs"))]
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    ours = {"PYTHONPATH", "PYTHONSAFEPATH"}
    theirs = {name: value for name, value in os.environ.items() if name not in ours}
    return {**theirs, "PATH": path, "LD_LIBRARY_PATH": ":".join(libraries)}


@contextmanager
def _process(command: list[str], url: str, variables: dict[str, str], model: str = "identity_fp32") -> Iterator[str]:
    with tempfile.NamedTemporaryFile(prefix="tritonnb-benchmark-") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=variables, start_new_session=True)
        try:
            _wait_until_ready(process, url, model, log.name)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=60)
            _end_children(process.pid)


def _end_children(group: int) -> None:
    """End what a server left running: PyTriton's own Triton outlives it, and would slow down the next."""
    try:
        while True:
            os.killpg(group, signal.SIGKILL)
            time.sleep(0.1)
    except ProcessLookupError:
        return


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, model: str, log: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}:\n{Path(log).read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{url}/v2/models/{model}/ready", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} was not ready in time:\n{Path(log).read_text()[-2000:]}")
