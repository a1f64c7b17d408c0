"""The names of `import tritonnb` are in *tritonnb/__init__.pyi*, and are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import assert_type

import tritonnb as tnb
from tritonnb.core import datatypes
from tritonnb.core.errors import TritonError
from tritonnb.core.version import VERSION

ROOT = Path(__file__).parents[2]


def test_each_datatype_is_a_public_name() -> None:
    assert set(datatypes.__all__) <= set(dir(tnb))


def test_function_remains_public_after_a_module_of_the_package_with_its_name_was_imported() -> None:
    program = "import tritonnb.scale.groups, tritonnb as tnb; print(tnb.scale.__module__, tnb.scale.__name__)"
    printed = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=ROOT)
    assert printed.split() == ["tritonnb.scale.start", "scale"]


def test_public_names_have_types() -> None:
    """mypy checks them, as it does for users."""
    assert assert_type(tnb.FP32, datatypes.DataType) is datatypes.FP32
    assert assert_type(tnb.__version__, str) == VERSION
    assert issubclass(assert_type(tnb.errors.TritonError, type[TritonError]), tnb.TritonError)
