"""Checks that the tests of all frameworks share: parameters, damaged files, refusals, sequences with a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.backends.models import TENSORS, Loaded, request, rows
from tritonnb.core.datatypes import datatype_of
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import Tensor

#: Damages a model file.
Breakage = Callable[[Path], object] | None

#: For backends that do not have implicit state.
STATE = 'sequence_batching { state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 1 } }'


def parameters(**values: str) -> str:
    """The ``parameters`` of a configuration."""
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    )


def truncate(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BAD_FILES: dict[str, Callable[[Path], object]] = {
    "truncated file": truncate,
    "other file": lambda path: path.write_text("{}"),
}


#: Configured tensors that are not those of a model with the input IN0 and the output OUT0, and the error.
WRONG_TENSORS = {
    "unknown input": (TENSORS.replace("IN0", "OTHER"), "unexpected inference input 'OTHER', allowed inputs are: IN0"),
    "unknown output": (
        TENSORS.replace("OUT0", "OTHER"),
        "unexpected inference output 'OTHER', allowed outputs are: OUT0",
    ),
    "too many inputs": (
        f'{TENSORS} input {{ name: "IN1" data_type: TYPE_FP32 dims: 1 }}',
        "unable to load model 'm', configuration expects 2 inputs, model provides 1",
    ),
}


def check_refusal(path: Path, breakage: Breakage, load: Callable[[], object], message: str) -> None:
    """Damage a model file, and check that loading it fails with one sentence that matches ``message``."""
    if breakage is not None:
        breakage(path)
    with pytest.raises(TritonError, match=message) as caught:
        load()
    assert "\n" not in str(caught.value)


class OneState:
    """The state of one sequence, as the runtime passes it to a backend."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name = name
        self.update("", array)

    def update(self, _output: str, array: np.ndarray) -> None:
        """Make an array the state of the next request."""
        self.inputs = {self._name: Tensor(self._name, datatype_of(array.dtype), array)}


def totals_of_a_sequence(model: Loaded, states: OneState, name: str, values: Iterable[float]) -> list[float]:
    """The first output for one request after the other of a sequence."""
    totals: list[float] = []
    for value in values:
        step = request(None, **{name: rows(value)})
        step.states = states
        (response,) = model.run(step)
        totals += response.outputs[0].array.ravel().tolist()
    return totals
