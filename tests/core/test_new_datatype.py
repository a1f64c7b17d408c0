"""A datatype is added in core/datatypes.py alone: two invented ones, in a copy of the package, work end to end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tritonnb
from tests.core import serve_new_datatypes

PACKAGE = Path(tritonnb.__file__).parent

#: FP8 is stored as bit patterns, the upper bytes of FP16. COMPLEX64 has a NumPy dtype, and no form in JSON.
CONSTANTS = """
FP8 = DataType("FP8", 15, np.dtype(np.uint8), json="number", contents="fp32_contents", onnx="float8e5m2",
               torch="float8_e5m2", to_float32=lambda bits: (bits.astype("<u2") << 8).view("<f2").astype("<f4"),
               from_float32=lambda values: (np.ascontiguousarray(values, "<f2").view("<u2") >> 8).astype(np.uint8))
COMPLEX64 = DataType("COMPLEX64", 16, np.dtype("<c8"), onnx="complex64", torch="complex64", classifiable=False)

DATATYPES: tuple"""


def add_datatypes(source: str) -> str:
    """The module `tritonnb.core.datatypes` with the constants, their entries in the table, and their names."""
    for old, new in {
        "\nDATATYPES: tuple": CONSTANTS,
        "\n)\n# fmt: on": "\n    FP8, COMPLEX64,\n)\n# fmt: on",
        "\n]  # fmt: skip": '\n    "FP8", "COMPLEX64",\n]  # fmt: skip',
    }.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


@pytest.mark.slow
def test_datatype_can_be_added_in_one_module(tmp_path: Path) -> None:
    copy = tmp_path / "tritonnb"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))
    module = copy / "core" / "datatypes.py"
    module.write_text(add_datatypes(module.read_text()))
    script = Path(serve_new_datatypes.__file__)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    served = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert served.returncode == 0, served.stderr
