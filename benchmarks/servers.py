"""The servers that are compared, each in its own process: a real Triton, PyTriton, and this server.

The real Triton is the binary in the package ``nvidia-pytriton``. It is installed on first use in a virtual environment,
``~/.cache/tritonnb/pytriton-0.7.0`` or the path in the environment variable ``TRITONNB_REFERENCE``. It needs a Python
with numpy < 2 first on ``PATH``, libpython on ``LD_LIBRARY_PATH``, and the stub in the directory of its backend.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

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
    """Return the virtual environment with the real Triton, created if it does not exist."""
    directory = Path(os.environ.get("TRITONNB_REFERENCE", Path.home() / ".cache/tritonnb/pytriton-0.7.0"))
    if not (directory / "bin" / "python").exists():
        print(f"creating {directory} with {PACKAGE} …", flush=True)
        venv.create(directory, with_pip=True)
        subprocess.run([directory / "bin" / "pip", "install", "--quiet", PACKAGE, "numpy<2"], check=True)
    return directory


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def triton(
    repository: Path,
    scratch: Path,
    model: str = "identity_fp32",
    grpc: int = 0,
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run a real Triton with a repository, optionally a gRPC port, flags, environment variables; yields its URL."""
    environment = reference_environment()
    (installation,) = environment.glob("lib/python3*/site-packages/pytriton/tritonserver")
    backends = scratch / "backends"
    if not backends.exists():
        shutil.copytree(installation / "backends", backends)
        stub = installation / "python_backend_stubs" / f"3.{sys.version_info.minor}" / "triton_python_backend_stub"
        shutil.copy(stub, backends / "python")
    http = free_port()
    command = [
        str(installation / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--cache-directory={installation / 'caches'}",
        f"--http-port={http}",
        f"--grpc-port={grpc or free_port()}",
        f"--metrics-port={free_port()}",
        *options,
    ]
    ready = f"/v2/models/{model}/ready"
    given = {**_reference_variables(environment), **(variables or {})}
    with process(command, f"http://127.0.0.1:{http}", given, ready) as url:
        yield url


@contextmanager
def pytriton(scratch: Path) -> Iterator[str]:
    """Run PyTriton with the same function and batching; yields its URL."""
    environment = reference_environment()
    script = scratch / "pytriton_identity.py"
    script.write_text(PYTRITON)
    http = free_port()
    command = [str(environment / "bin" / "python"), str(script), *map(str, (http, free_port(), free_port()))]
    ready = "/v2/models/identity_fp32/ready"
    with process(command, f"http://127.0.0.1:{http}", _reference_variables(environment), ready) as url:
        yield url


@contextmanager
def tritonnb(
    repository: Path,
    *models: str,
    grpc: int = 0,
    options: Sequence[str] = (),
    checkout: Path = ROOT,
    python: str = sys.executable,
    prefix: Sequence[str] = (),
) -> Iterator[str]:
    """Run this server with models of a repository, and optionally a gRPC port and other flags; yields its URL.

    ``checkout`` is the directory of the package: a copy of it may be changed. ``python`` is the interpreter, and
    ``prefix`` is put before the command.
    """
    http = free_port()
    command = [*prefix, python, "-m", "tritonnb", "serve", f"--model-repository={repository}", f"--http-port={http}"]
    command += [f"--grpc-port={grpc or free_port()}", f"--metrics-port={free_port()}"]
    command += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in models), *options]
    variables = {**os.environ, "PYTHONPATH": str(checkout)}
    with process(command, f"http://127.0.0.1:{http}", variables, f"/v2/models/{models[0]}/ready", checkout) as url:
        yield url


def _reference_variables(environment: Path) -> dict[str, str]:
    libraries = [sysconfig.get_config_var("LIBDIR"), *map(str, environment.glob("lib/python3*/site-packages/*.libs"))]
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    removed = {"PYTHONPATH", "PYTHONSAFEPATH"}
    variables = {name: value for name, value in os.environ.items() if name not in removed}
    return {**variables, "PATH": path, "LD_LIBRARY_PATH": ":".join(libraries)}


@contextmanager
def process(
    command: list[str], url: str, variables: dict[str, str], ready: str, directory: Path | None = None
) -> Iterator[str]:
    """Run a server until the block ends; yields its URL once the path ``ready`` answers with 200."""
    with tempfile.NamedTemporaryFile(prefix="tritonnb-benchmark-") as log:
        running = subprocess.Popen(
            command, stdout=log, stderr=log, env=variables, cwd=directory, start_new_session=True
        )
        try:
            _wait_until_ready(running, url + ready, log.name)
            yield url
        finally:
            if running.poll() is not None:
                print(f"{command!r} ended with {running.returncode}:\n{Path(log.name).read_text()[-2000:]}")
            running.terminate()
            running.wait(timeout=60)
            _end_children(running.pid)


@contextmanager
def ports_and_process(repository: str, *options: str) -> Iterator[tuple[int, int, psutil.Process]]:
    """Run this server without metrics; yields its HTTP port, its gRPC port, and its process."""
    http, grpc = free_port(), free_port()
    command = [sys.executable, "-m", "tritonnb", "serve", f"--model-repository={repository}", f"--http-port={http}"]
    command += [f"--grpc-port={grpc}", "--allow-metrics=false", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{http}/v2/health/ready")
            yield http, grpc, psutil.Process(process.pid)
        finally:
            process.terminate()


def _end_children(group: int) -> None:
    """End child processes that a server left running, such as PyTriton's Triton: they would slow down the next one."""
    try:
        while True:
            os.killpg(group, signal.SIGKILL)
            time.sleep(0.1)
    except ProcessLookupError:
        return


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: str = os.devnull) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}:\n{Path(log).read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} was not ready in time:\n{Path(log).read_text()[-2000:]}")
