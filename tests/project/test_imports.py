"""`import tritonnb` is quick and loads no optional package."""

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
import json, sys, time
begin = time.process_time()
import tritonnb
print(json.dumps([time.process_time() - begin, sorted(sys.modules)]))
"""


def import_in_a_new_process() -> tuple[float, set[str]]:
    """Seconds of processor time that the import takes, and the modules that are loaded then."""
    output = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True, cwd=ROOT)
    seconds, modules = json.loads(output)
    return seconds, set(modules)


def test_import_loads_no_optional_package() -> None:
    _, modules = import_in_a_new_process()
    assert NOT_IMPORTED & modules == set()


def test_import_takes_less_than_a_second() -> None:
    # The fastest of three, since the first import may compile bytecode; processor time, since other processes may run.
    assert min(import_in_a_new_process()[0] for _ in range(3)) < 1


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
