"""A model that fails in its own process as a request parameter says, and what is left of its processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tritonnb.server.model_handle import ModelHandle

#: Executes what the parameter ``do`` of a request says; the output is the input plus the number of earlier executions.
MODEL = """
import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.executions = 0

    def execute(self, requests):
        answers = []
        for request in requests:
            do = json.loads(request.parameters()).get("do", "")
            if do:
                getattr(self, do)()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if do == "enlarge":
                x = np.resize(x, 1 << 20)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + np.float32(self.executions))]))
        self.executions += 1
        return answers

    def segfault(self):
        ctypes.string_at(0)

    def exit(self):
        os._exit(3)

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def loop(self):
        while True:
            pass

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def enlarge(self):
        pass  # the output, which shared memory is used for

    def allocate(self):
        np.ones(1 << 32, np.uint8)

    def close(self):
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))

    def pid(self):
        self.executions = os.getpid()

    def talk(self):
        print("to the output")
        print("to the error output", file=sys.stderr)
        pb_utils.Logger.log_warn("to the log")
        logging.getLogger("model").warning("to its own log")
"""


def write(repository: Path, name: str, config: str = "", body: str = MODEL) -> Path:
    """Write a model whose input X and output Y are FP32 of any length; returns the repository."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(body)
    tensors = """
        input { name: "X" data_type: TYPE_FP32 dims: -1 }
        output { name: "Y" data_type: TYPE_FP32 dims: -1 }
    """
    (repository / name / "config.pbtxt").write_text(f'backend: "python" {tensors} {config}')
    return repository


def parameter(name: str, value: object) -> str:
    """A parameter of a configuration."""
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


def ask(model: ModelHandle, do: str = "", x: float = 0.0, size: int = 1, **options: Any) -> float:
    """Send ``size`` numbers ``x`` to the model; returns the first number of its response."""
    parameters = {"do": do} if do else {}
    return float(model(X=np.full(size, x, np.float32), parameters=parameters, **options)["Y"][0])


ISOLATED = parameter("EXECUTION_PROCESS", "isolated")


def children() -> list[psutil.Process]:
    """The processes of isolated instances of this process."""

    def command(child: psutil.Process) -> str:
        try:
            return " ".join(child.cmdline())
        except psutil.NoSuchProcess:  # it has just ended
            return ""

    return [child for child in psutil.Process().children() if "isolation" in command(child)]


def shared_memory() -> list[str]:
    """The regions that this process has open; they have no names in */dev/shm*."""
    opened = [os.readlink(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd") if _exists(file)]
    return [name for name in opened if "memfd:tritonnb" in name]


def _exists(file: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{file}")
