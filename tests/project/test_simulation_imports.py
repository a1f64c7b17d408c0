"""The simulation needs the standard library and protobuf only, so that it runs in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What does not exist in Pyodide without a network, and the packages around it.
BLOCKED = {
    "IPython", "anywidget", "google._upb", "grpc", "hpack", "httptools", "ipywidgets", "matplotlib", "numpy", "pandas",
    "prometheus_client", "psutil", "rapidjson", "tornado", "traitlets", "tritonclient.grpc._client", "uvloop",
}  # fmt: skip
BLOCK = f"""
import os, sys
os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in {BLOCKED!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
#: Programs that a browser runs, each in its own process.
PROGRAMS = {
    "public names": """
import tritonnb as tnb
rec = tnb.simulate("max_batch_size: 8 dynamic_batching { }", tnb.poisson(rate=500, duration=0.2, seed=1), tnb.fixed(5))
assert rec.summary()["requests"] == len(rec.arrivals()) and rec.verdict() and rec.diagnoses() is not None
assert tnb.worksheet("direct", seed=1).hint()
assert tnb.TritonError
""",
    "packages": "import tritonnb.lab.simulation.run, tritonnb.scheduling.from_config, tritonnb.model_config.diagnose",
    "traces": "import tritonnb.lab.traces.from_trace, tritonnb.recording.files, tritonnb.lab.teaching.exercises",
    "playground": "import docs.playground.session",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_playground_imports_without_arrays_sockets_and_figures(program: str) -> None:
    subprocess.run([sys.executable, "-c", BLOCK + PROGRAMS[program]], check=True, cwd=ROOT)


def test_public_name_without_its_package_raises_a_helpful_error() -> None:
    program = (
        BLOCK + "import tritonnb as tnb\ntry:\n    tnb.FP32\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=ROOT)
    assert output.strip() == "blocked: numpy"


@pytest.mark.parametrize(
    ("name", "package"), [("tnb.serve", "tornado"), ("tnb.FP32", "numpy"), ("Recording.plot", "matplotlib")]
)
def test_name_that_a_browser_lacks_says_what_works_there(name: str, package: str) -> None:
    code = name.replace("Recording", "tnb.Recording")
    program = BLOCK + f"sys.platform = 'emscripten'\nimport tritonnb as tnb\ntry:\n    {code}\n"
    program += "except ModuleNotFoundError as error:\n    print(error)"
    output = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=ROOT)
    assert output.startswith(f"{name} expected the package '{package}', got Python in a browser")
    assert "simulations, their views, the debugger and worksheets work" in output
