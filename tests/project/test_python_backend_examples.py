"""The examples of Triton's python_backend repository, models and clients as they are.

They are not part of this project: ``TRITONNB_PYTHON_BACKEND`` names a checkout of
``github.com/triton-inference-server/python_backend``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonnb.server.server import Server

CHECKOUT = os.environ.get("TRITONNB_PYTHON_BACKEND", "")
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="TRITONNB_PYTHON_BACKEND names no checkout of python_backend")

#: For each model its *model.py* and its *config.pbtxt*, as the examples' documents have them copied.
MODELS = {
    "add_sub": ("add_sub/model.py", "add_sub/config.pbtxt"),
    "nobatch_auto_complete": ("auto_complete/nobatch_model.py", None),
    "batch_auto_complete": ("auto_complete/batch_model.py", None),
    "bls_sync": ("bls/sync_model.py", "bls/sync_config.pbtxt"),
    "bls_async": ("bls/async_model.py", "bls/async_config.pbtxt"),
    "bls_decoupled_sync": ("bls_decoupled/sync_model.py", "bls_decoupled/sync_config.pbtxt"),
    "bls_decoupled_async": ("bls_decoupled/async_model.py", "bls_decoupled/async_config.pbtxt"),
    "custom_metrics": ("custom_metrics/model.py", "custom_metrics/config.pbtxt"),
    "repeat_int32": ("decoupled/repeat_model.py", "decoupled/repeat_config.pbtxt"),
    "square_int32": ("decoupled/square_model.py", "decoupled/square_config.pbtxt"),
    "pytorch": ("pytorch/model.py", "pytorch/config.pbtxt"),
}
CLIENTS = [
    "add_sub/client.py",
    "auto_complete/client.py",
    "bls/sync_client.py",
    "bls/async_client.py",
    "bls_decoupled/sync_client.py",
    "bls_decoupled/async_client.py",
    "custom_metrics/client.py",
    "decoupled/repeat_client.py",
    "decoupled/square_client.py",
    "pytorch/client.py",
]
#: Runs a client that knows only Triton's own ports against others.
RUN = """
import json, runpy, sys
import requests, tritonclient.grpc, tritonclient.http
path, ports = sys.argv[1], json.loads(sys.argv[2])

def elsewhere(address):
    for usual, actual in ports.items():
        address = address.replace(f"localhost:{usual}", f"127.0.0.1:{actual}")
    return address

def redirect(module):
    connect = module.InferenceServerClient.__init__
    def to_actual_port(self, url, *args, **options):
        connect(self, elsewhere(url), *args, **options)
    module.InferenceServerClient.__init__ = to_actual_port

redirect(tritonclient.http)
redirect(tritonclient.grpc)
get = requests.get
requests.get = lambda url, *args, **options: get(elsewhere(url), *args, **options)
runpy.run_path(path, run_name="__main__")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository, examples = tmp_path_factory.mktemp("models"), Path(CHECKOUT) / "examples"
    for name, (model, config) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        shutil.copy(examples / model, repository / name / "1" / "model.py")
        if config is not None:
            shutil.copy(examples / config, repository / name / "config.pbtxt")
    with Server(repository, port=0, grpc_port=0, metrics_port=0) as server:
        assert not server.load_errors
        yield server


@pytest.mark.parametrize("client", CLIENTS)
def test_python_backend_example_passes(server: Server, client: str) -> None:
    endpoints = server.endpoints
    assert endpoints.grpc is not None
    assert endpoints.metrics is not None
    ports = f'{{"8000": {server.port}, "8001": {endpoints.grpc.port}, "8002": {endpoints.metrics.port}}}'
    command = [sys.executable, "-c", RUN, str(Path(CHECKOUT) / "examples" / client), ports]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
