"""The wheel has everything it needs: installed in an empty environment, outside the checkout, it serves."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import tritonnb
from docs.sitegen import notebooks
from tritonnb.backends.native.build import find_compiler

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.build

#: A compiled wheel has 3.5 MB, half of it machine code.
MAX_BYTES = 5_000_000

SCRIPT = """
import sys
from pathlib import Path
import tritonnb
assert Path(tritonnb.__file__).is_relative_to(sys.prefix), tritonnb.__file__
from tritonnb.model_zoo import materialize
print(materialize("models"))
server = tritonnb.serve("models", port=0, model_control_mode="explicit", load_models=["add_sub", "digits", "dense"])
assert not server.load_errors, server.load_errors
print(server["add_sub"](INPUT0=[[1, 2, 3, 4]], INPUT1=[[1, 1, 1, 1]])["OUTPUT0"].tolist())
"""

#: Small and large tensors of isolated models: inline and in shared memory, through the modules that may be compiled.
ISOLATED = """
import numpy as np
import tritonnb
models = ["identity_fp32", "string_upper"]
server = tritonnb.serve("models", port=0, model_control_mode="explicit", load_models=models, isolate=True)
assert not server.load_errors, server.load_errors
for size in (1, 100, 2_000_000, 3):
    x = np.arange(size, dtype=np.float32)[None]
    np.testing.assert_array_equal(server["identity_fp32"](INPUT0=x)["OUTPUT0"], x)
    text = np.array([[b"a" * size]], object)
    assert server["string_upper"](TEXT=text)["UPPER"].item() == b"A" * size
print("isolated")
"""


def build(checkout: Path, out: Path, **variables: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, env={**os.environ, **variables})
    (built,) = out.glob("*.whl")
    return built


# It is compiled if this checkout is not, which takes a minute.
@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.mark.timeout(600)
def test_wheel_installs_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert names == {"tritonnb", f"tritonnb-{tritonnb.__version__}.dist-info"}
    assert wheel.stat().st_size < MAX_BYTES


@pytest.mark.timeout(600)
def test_wheel_contains_the_models_without_generated_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "tritonnb/model_zoo/repository/digits/1/model.pt" in names
    assert "tritonnb/model_zoo/repository/magika/config.pbtxt" in names
    assert "tritonnb/model_zoo/repository/ocr/1/.gitkeep" in names  # a version directory is never empty in a wheel
    assert {f"tritonnb/model_zoo/notebooks/{path.name}" for path in notebooks.paths()} <= set(names)
    assert "tritonnb/py.typed" in names
    assert {"tritonnb/notebook/static/config_editor/view.js", "tritonnb/notebook/static/config_editor.css"} <= set(
        names
    )
    assert {"tritonnb/notebook/static/batch_view/view.js", "tritonnb/notebook/static/batch_view.css"} <= set(names)
    models = [name.split("/")[3] for name in names if name.endswith(".onnx")]
    assert models == ["accumulator_onnx"]
    assert not [name for name in names if name.endswith(".pyc")]
    # The shim for C++ backends, and the headers to compile some.
    assert ("tritonnb/backends/native/libtritonserver.so" in names) == (find_compiler() is not None)
    assert "tritonnb/backends/native/include/triton/core/tritonbackend.h" in names


def test_installed_wheel_serves_a_model(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    site = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    # What it depends on is lent by this environment: only tritonnb itself is under test.
    (Path(site) / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which may name a checkout
    run = functools.partial(subprocess.run, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    process = run([python, "-c", SCRIPT])
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "[[2.0, 3.0, 4.0, 5.0]]"
    process = run([python, "-c", ISOLATED])
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "isolated"
    state = "compiled" if shutil.which("cc") else "interpreted"
    assert f", {state} (behaves as Triton" in run([environment / "bin" / "tritonnb", "doctor"]).stdout


def test_wheel_is_not_compiled_without_a_c_compiler(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "tritonnb", checkout / "tritonnb", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in ("model_repository", "notebooks"):
        (checkout / name).symlink_to(ROOT / name)
    assert build(checkout, tmp_path, CC="false", CXX="false").name.endswith("-none-any.whl")
