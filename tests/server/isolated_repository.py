"""A repository with the model ``apart``, which returns its input from its own process."""

from __future__ import annotations

from pathlib import Path

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in inputs]
"""
CONFIG = """
backend: "python" max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [1] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] }
parameters { key: "EXECUTION_PROCESS" value { string_value: "isolated" } }
"""


def write_repository(directory: Path) -> Path:
    """Write the model into a directory, and return the directory."""
    (directory / "apart" / "1").mkdir(parents=True)
    (directory / "apart" / "1" / "model.py").write_text(MODEL)
    (directory / "apart" / "config.pbtxt").write_text(CONFIG)
    return directory
