"""A test that fills the stack of a thread is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import faulthandler, sys, threading
from tests import signal_stack

class Endless:
    def __getattr__(self, name):
        return getattr(self, name + "")

faulthandler.enable()
signal_stack.install()
sys.setrecursionlimit(10**9)
threading.Thread(target=lambda: Endless().value, name="recursion").start()
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 limits the recursion of its own C code")
@pytest.mark.skipif(sys.platform != "linux", reason="the layout of sigaltstack(2) is that of Linux")
def test_a_stack_that_is_full_is_reported() -> None:
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode < 0
    assert "Fatal Python error: Segmentation fault" in run.stderr
    assert "__getattr__" in run.stderr
