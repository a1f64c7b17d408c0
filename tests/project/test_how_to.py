"""The guides and the README work: their Python, Bash and IPython blocks run in order, in an empty directory."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs/teaching.md",
    *sorted(path for path in (ROOT / "docs/how-to").glob("*.md") if path.stem != "index"),
]
BLOCK = re.compile(r"^```(python|bash|ipython)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Packages that a page needs beyond those of the server.
NEEDED = {
    "serve-an-openai-api": ["openai", "jinja2"],
    "serve-an-onnx-model": ["onnx", "onnxruntime"],
    "serve-a-torchscript-model": ["torch"],
    "serve-a-pytorch-2-model": ["torch"],
    "serve-a-scikit-learn-model": ["sklearn", "skl2onnx"],
    "build-an-ensemble": ["onnx", "onnxruntime", "PIL"],
    "serve-a-tensorflow-model": ["tensorflow"],
    "serve-trees": ["treelite", "xgboost", "sklearn"],
    "serve-with-openvino": ["openvino"],
    "scale-with-ray": ["ray"],
}
#: Markers of a page.
MARKS = {"serve-a-pytorch-2-model": pytest.mark.build}
RUN = {
    "python": "{block}",
    "bash": "import subprocess; subprocess.run(['bash', '-euo', 'pipefail', '-c', {block!r}], check=True)\n",
    "ipython": "from IPython.core.interactiveshell import InteractiveShell\n"
    "InteractiveShell.instance(user_ns=globals()).run_cell({block!r}).raise_error()\n",
}


def statements(page: Path) -> Iterator[str]:
    """The blocks of a page as Python source, in order."""
    for language, block in BLOCK.findall(page.read_text("utf-8")):
        yield RUN[language].format(block=block)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [pytest.param(page, marks=MARKS.get(page.stem, ()), id=page.stem) for page in PAGES])
def test_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    for package in NEEDED.get(page.stem, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}")
    if page.stem == "load-a-cpp-backend" and shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    script = tmp_path / "page.py"
    script.write_text("\n".join(statements(page)))
    directory = tmp_path / "empty"
    directory.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        [sys.executable, script],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = run.communicate()
    finally:
        # A page that fails does not stop the servers it has started, and the next run would find their ports in use.
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 0, output
