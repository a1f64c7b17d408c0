"""`import tritonnb` loads no optional package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
#: What is imported only by the feature that needs it: frameworks, plotting, gRPC, notebook packages.
NOT_IMPORTED = {
    "IPython", "anywidget", "grpc", "ipywidgets", "matplotlib", "nest_asyncio", "nest_asyncio2", "onnxruntime",
    "opentelemetry", "openvino", "pandas", "ray", "sklearn", "tensorflow", "torch", "treelite", "tritonclient.grpc",
}  # fmt: skip
PROGRAM = """
import json, sys
import tritonnb
print(json.dumps(sorted(sys.modules)))
"""


def test_import_loads_no_optional_package() -> None:
    modules = json.loads(subprocess.check_output([sys.executable, "-c", PROGRAM], cwd=ROOT))
    assert NOT_IMPORTED.isdisjoint(modules)


@pytest.mark.parametrize("first", ["tritonclient.grpc", "tritonnb"])
def test_protobuf_messages_are_shared_with_tritonclient_in_any_import_order(first: str) -> None:
    program = f"""
import {first}
from tritonnb.core.protobuf import model_config_pb2 as ours
from tritonclient.grpc import model_config_pb2 as theirs, service_pb2
assert ours is theirs
response = service_pb2.ModelConfigResponse(config=ours.ModelConfig(name="dense"))
assert type(response.config) is ours.ModelConfig
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


#: The beginning of a program in which grpcio cannot be imported.
WITHOUT_GRPCIO = """
import asyncio, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "grpc":
            raise ModuleNotFoundError("No module named 'grpc'", name=name)
sys.meta_path.insert(0, Blocked())
import tritonnb as tnb
from benchmarks.grpc_load import messages, send_all
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.server.server import Server
chosen = {"model_control_mode": "explicit", "load_models": ["identity_fp32"]}
"""


def run_without_grpcio(program: str) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_GRPCIO + program], check=True, cwd=ROOT)


def test_server_answers_over_grpc_without_grpcio() -> None:
    run_without_grpcio("""
with Server("model_repository", port=0, grpc_port=0, **chosen) as server:
    asyncio.run(send_all(server.grpc_port, messages(("identity_fp32",), 16), 20, 2))
assert "grpc" not in sys.modules
""")


@pytest.mark.parametrize(
    "needing",
    [
        'Server("model_repository", port=0, grpc_port=0, grpc=GrpcOptions(keepalive_time=1000), **chosen).start()',
        'Server("model_repository", port=0, grpc_port=0, grpc=GrpcOptions(transport="grpcio"), **chosen).start()',
        'tnb.connect("grpc://127.0.0.1:1").is_ready()',
    ],
    ids=["keep-alive", "transport", "client"],
)
def test_error_names_the_extra_where_grpcio_is_needed(needing: str) -> None:
    run_without_grpcio(f"""
try:
    {needing}
except tnb.TritonError as error:
    assert 'pip install "tritonnb[grpc]"' in error.message, error.message
else:
    raise AssertionError("expected an error")
""")
