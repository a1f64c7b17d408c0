"""Models of the Python backend from the text of their *model.py*, in this process or in their own processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tests.backends.models import TENSORS, Loaded, config_of, request
from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue

#: Begins a model whose methods are the rest of the text.
HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n"

#: Runs the code that the request parameter ``run`` of its first request contains. The code finds ``requests``, their
#: ``senders`` and ``answers`` with the input as the output, and may keep things in ``self``. It sets ``returned``.
SCRIPTED = """
import json
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        names = {
            "self": self,
            "pb_utils": pb_utils,
            "FINAL": FINAL,
            "requests": requests,
            "senders": [request.get_response_sender() for request in requests],
            "answers": [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ],
            "raised": raised,
        }
        exec(json.loads(requests[0].parameters())["run"], names)
        return names["returned"]

def raised(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except pb_utils.TritonModelException as error:
        return str(error)
    return ""
"""


class Load(Protocol):
    """A loader of models from the text of their *model.py*."""

    def __call__(self, directory: Path, body: str, tensors: str = TENSORS, **config: Any) -> Loaded: ...


def write_model(directory: Path, body: str) -> None:
    """Write version 1 of a model."""
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "1" / "model.py").write_text(body)


def load_model(directory: Path, body: str, tensors: str = TENSORS, isolated: bool = False, **config: Any) -> Loaded:
    """Write a model and load it."""
    write_model(directory, body)
    return Loaded(config_of("python", tensors, **config), directory, isolated=isolated)


def run(loaded: Loaded, code: str, *values: float) -> list[InferResponse | None]:
    """Send requests of these values to a `SCRIPTED` model, which runs the code."""
    requests: list[InferRequest] = [request(IN0=np.full((1, 1), value, np.float32)) for value in values or (0.0,)]
    requests[0].parameters = {"run": code}
    return loaded.run(*requests)


def value_of(loaded: Loaded, expression: str) -> ParameterValue:
    """The value of an expression in a `SCRIPTED` model: a string, a number or a truth value."""
    code = f"returned = [pb_utils.InferenceResponse([], parameters={{'value': {expression}}})]"
    (answer,) = run(loaded, code)
    assert answer is not None
    assert answer.parameters is not None
    return answer.parameters["value"]
