"""``reshape`` of an ensemble's own inputs and outputs; the expected shapes are those of Triton 2.51."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from tests.engine.conftest import Driver
from tests.engine.ensembles import serve_ensemble, serve_function
from tritonnb.core.datatypes import INT32
from tritonnb.core.messages import InferRequest, InferResponse, Tensor


def tensors(input: str, output: str) -> str:
    """``"8 -> 4,1,2"`` are dims with a ``reshape``."""
    return (
        f'input {{ name: "X" data_type: TYPE_INT32 {_dims(input)} }} '
        f'output {{ name: "Y" data_type: TYPE_INT32 {_dims(output)} }}'
    )


def _dims(text: str) -> str:
    dims, arrow, reshape = (part.strip() for part in text.partition("->"))
    return f"dims: [ {dims} ]" + (f" reshape {{ shape: [ {reshape} ] }}" if arrow else "")


def answered_shape(driver: Driver, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the ensemble's output for an input of a shape; every model copies its input."""
    answer: Future[InferResponse] = Future()
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    request = InferRequest("e", {"X": Tensor("X", INT32, array)}, lambda request, response: answer.set_result(response))
    driver.background.call(driver.submit, request)
    response = answer.result(timeout=30)
    assert response.error is None
    np.testing.assert_array_equal(response.outputs[0].array.ravel(), array.ravel())
    return response.outputs[0].shape


def serve_copy(driver: Driver, name: str, dims: str, batch: int) -> None:
    serve_function(
        driver,
        name,
        lambda request: ([Tensor("Y", INT32, request.inputs["X"].array.copy())],),
        tensors=tensors(dims, dims),
        batch=batch,
    )


R = "8 -> 4,1,2"


@pytest.mark.parametrize(
    ("batch", "input", "output", "step", "sent", "answered"),
    [
        pytest.param(8, "4,1,2", R, ("4,1,2", 8), (1, 4, 1, 2), (1, 8), id="output only"),
        pytest.param(8, R, "4,1,2", ("4,1,2", 8), (3, 8), (3, 4, 1, 2), id="input only"),
        pytest.param(8, R, R, ("4,1,2", 8), (3, 8), (3, 8), id="both"),
        pytest.param(8, "8", "2,4 -> 8", ("8", 8), (3, 8), (3, 2, 4), id="more dimensions"),
        pytest.param(8, R, R, ("-1,4,1,2", 0), (3, 8), (3, 8), id="a step that does not batch takes the batch"),
        pytest.param(8, R, R, ("4,1,2", 0), (1, 8), (1, 8), id="a step that does not batch takes the one row"),
        pytest.param(0, R, R, ("4,1,2", 0), (8,), (8,), id="nothing batches"),
        pytest.param(0, R, R, ("4,1,2", 8), (8,), (8,), id="only the step batches"),
        pytest.param(0, "-1,8 -> -1,4,1,2", "-1,8 -> -1,4,1,2", ("4,1,2", 8), (3, 8), (3, 8), id="rows of a step"),
        pytest.param(8, "-1,2 -> -1,1,2", "-1,2 -> -1,1,2", ("-1,1,2", 8), (3, 5, 2), (3, 5, 2), id="variable"),
        pytest.param(8, "-1,2 -> -1,1,2", "-1,2 -> -1,1,2", ("-1,1,2", 8), (3, 0, 2), (3, 0, 2), id="empty"),
        pytest.param(8, "1 -> ", "1 -> ", ("-1", 0), (3, 1), (3, 1), id="no dimension"),
    ],
)
def test_reshape_of_an_output_is_undone(
    driver: Driver,
    batch: int,
    input: str,
    output: str,
    step: tuple[str, int],
    sent: tuple[int, ...],
    answered: tuple[int, ...],
) -> None:
    serve_copy(driver, "m", *step)
    serve_ensemble(driver, "m: X -> Y", tensors=tensors(input, output), batch=batch)
    assert answered_shape(driver, sent) == answered


def test_nested_ensemble_applies_its_own_reshape(driver: Driver) -> None:
    serve_copy(driver, "m", "4,1,2", 8)
    serve_ensemble(driver, "m: X -> Y", name="inner", tensors=tensors(R, R))
    serve_ensemble(driver, "inner: X -> Y", tensors=tensors("2,2,2 -> 8", "2,2,2 -> 8"))
    assert answered_shape(driver, (3, 2, 2, 2)) == (3, 2, 2, 2)
