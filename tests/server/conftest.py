"""A server on a free port with the small example models, and a model repository to write into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tritonnb.server.server import Server

EXAMPLES = Path(__file__).parents[2] / "model_repository"
SMALL = ["add_sub", "string_upper", "identity_fp32"]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=SMALL) as server:
        yield server


@pytest.fixture(params=[False, True], ids=["in_process", "isolated"])
def isolate(request: pytest.FixtureRequest) -> bool:
    """Return whether models run in their own processes: a test with this fixture runs in both modes."""
    return bool(request.param)


def model_writer(repository: Path) -> Callable[..., Path]:
    """Return a function that writes a Python model into a repository, and returns the repository."""

    def write(name: str, body: str, config: str = "", version: int = 1) -> Path:
        directory = repository / name / str(version)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.py").write_text(body)
        tensors = """
            input { name: "X" data_type: TYPE_FP32 dims: 1 }
            output { name: "Y" data_type: TYPE_FP32 dims: 1 }
        """
        text = f'backend: "python" max_batch_size: 8 {tensors} {config}'
        (repository / name / "config.pbtxt").write_text(text)
        return repository

    return write


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Path]:
    """Write a Python model into a repository in ``tmp_path``; gives the repository."""
    return model_writer(tmp_path)


def python_model(expression: str) -> str:
    """A *model.py* whose output Y is an expression of its input x."""
    return f"""
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", {expression})]))
        return answers
"""
