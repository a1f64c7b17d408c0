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
