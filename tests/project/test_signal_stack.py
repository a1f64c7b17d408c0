"""A test that fills the stack of a thread is reported, and a signal after a test with OpenVINO does no harm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL_STACK = """
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
#: A compiled model of the main thread, destroyed by another thread.
OPENVINO = """
import faulthandler, signal, threading
import openvino as ov
from openvino import opset13 as ops
from tests import signal_stack

faulthandler.enable()
x = ops.parameter([-1, 3], ov.Type.f32, name="x")
model = ov.Model([ops.add(x, x)], [x], "double")
with signal_stack.restored():
    compiled = [ov.Core().compile_model(model, "CPU")]
    destroy = threading.Thread(target=compiled.clear)
    destroy.start()
    destroy.join()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="the layout of sigaltstack(2) is that of Linux")


def run(script: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 limits the recursion of C code")
@linux
def test_full_stack_is_reported() -> None:
    result = run(FULL_STACK)
    assert result.returncode < 0
    assert "Fatal Python error: Segmentation fault" in result.stderr
    assert "__getattr__" in result.stderr


@linux
def test_signal_is_handled_after_another_thread_has_destroyed_a_model_of_openvino() -> None:
    result = run(OPENVINO)
    assert (result.returncode, result.stdout) == (0, "interrupted\n"), result.stderr
