"""A call that waits for its response ends with the exception of a signal's handler, and the server continues."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

#: Executes until the request is cancelled; notes that, and what handles SIGINT meanwhile.
MODEL = """
import pathlib, signal, time
import triton_python_backend_utils as pb_utils

NOTES = pathlib.Path(__file__).parent / "notes"


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if array.item() == 1:
                print("executing", flush=True)
                while not request.is_cancelled():
                    time.sleep(0.001)
                NOTES.write_text(f"cancelled {signal.getsignal(signal.SIGINT) is signal.default_int_handler}")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]))
        return responses
"""
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
"""
#: Calls the model until a signal ends the call, and once more.
PROGRAM = """
import signal, sys
import tritonnb as tnb

class Alarm(Exception): pass

def ring(number, frame):
    raise Alarm

signal.signal(signal.SIGTERM, ring)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
with tnb.serve({repository!r}, port=0) as server:
    model = server["m"]
    try:
        model(X=[1])
    except BaseException as error:
        print(type(error).__name__)
    print(model(X=[2])["Y"].item(), model.stats()["inference_stats"]["success"]["count"])
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Alarm")], ids=["Ctrl-C", "handler"]
)
def test_signal_ends_a_waiting_call_and_cancels_its_request(
    tmp_path: Path, number: signal.Signals, raised: str
) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    program = PROGRAM.format(repository=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "executing\n"
            process.send_signal(number)
            output = process.communicate(timeout=60)[0].split("\n")
        finally:
            process.kill()
    assert process.returncode == 0
    assert output == [raised, "2 2", "True", ""]
    assert (version / "notes").read_text() == "cancelled True"


#: A signal that another thread receives, or that arrives just before the main thread sleeps, does not end its sleep.
SIGNALS_ITSELF = """
import signal, threading, time
import __main__
import triton_python_backend_utils as pb_utils


def signal_main_thread():
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    while not __main__.ended:
        time.sleep(0.001)


class TritonPythonModel:
    def initialize(self, args):
        if __main__.during == "load":
            signal_main_thread()

    def execute(self, requests):
        signal_main_thread()
        return [pb_utils.InferenceResponse([]) for request in requests]
"""
ENDS = """
import signal
import tritonnb as tnb

class Alarm(Exception): pass

def ring(number, frame):
    raise Alarm

signal.signal(signal.SIGTERM, ring)
during, ended = {during!r}, False
with tnb.serve({repository!r}, port=0, model_control_mode="explicit") as server:
    try:
        server.load("m")
        server["m"](X=[1])
    except Alarm:
        print("Alarm")
    ended = True
"""


@pytest.mark.parametrize("during", ["load", "inference"])
def test_signal_ends_a_waiting_call_while_the_thread_sleeps(tmp_path: Path, during: str) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(SIGNALS_ITSELF)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    program = ENDS.format(repository=str(tmp_path), during=during)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert (result.returncode, result.stdout) == (0, "Alarm\n"), result.stderr
