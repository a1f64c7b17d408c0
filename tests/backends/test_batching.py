"""Gathering a batch and scattering its outputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backends.models import request, rows
from tritonnb.backends.batching import gather, scatter, undo_reshape
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import FP32
from tritonnb.core.errors import InternalError, Status, UnsupportedError
from tritonnb.core.messages import InferRequest
from tritonnb.model_config.schema import TensorSpec

OUT = TensorSpec("OUT", FP32, (1,))


def execution_of(*requests: InferRequest) -> Execution:
    return Execution(list(requests), sum(request.batch_size for request in requests), lambda *_: None)


def test_single_request_is_not_copied() -> None:
    array = rows(1, 2)
    assert gather(execution_of(request(X=array)), "X") is array


def test_missing_optional_input_is_none() -> None:
    assert gather(execution_of(request(X=rows(1)), request(X=rows(2))), "Y") is None


def test_request_without_the_input_fails_without_affecting_other_rows() -> None:
    execution = execution_of(request(X=rows(1)), request(Z=rows(0, 0)), request(X=rows(4)))
    batch = gather(execution, "X")
    assert batch is not None
    assert batch.ravel().tolist() == [1, 0, 0, 4]
    scatter(execution, {"OUT": (OUT, batch)}, batching=True)
    assert execution.responses[1].error.status is Status.INVALID_ARG
    assert execution.responses[2].outputs[0].array.tolist() == [[4]]


def test_request_with_another_shape_fails_without_affecting_other_rows() -> None:
    execution = execution_of(request(X=rows(1)), request(X=np.ones((1, 2), np.float32)), request(X=rows(4)))
    assert gather(execution, "X").ravel().tolist() == [1, 0, 4]
    assert str(execution.responses[1].error) == (
        "input 'X' expected shape [-1,1], as the first request of the batch has, got [1,2]; "
        "pad inputs and states to one shape, or set max_batch_size to 1"
    )
    assert execution.responses[0] is execution.responses[2] is None


def test_every_request_gets_a_copy_of_its_rows_of_the_batch() -> None:
    execution = execution_of(request(X=rows(1)), request(X=rows(2)))
    batch = rows(10, 20)
    scatter(execution, {"OUT": (OUT, batch)}, batching=True)
    batch[:] = 0  # the model writes its buffer again
    assert [answer.outputs[0].array.tolist() for answer in execution.responses] == [[[10]], [[20]]]


def test_read_only_input_is_copied_for_a_model_that_writes_to_it() -> None:
    private, shared = rows(1), rows(2)
    shared.flags.writeable = False
    assert gather(execution_of(request(X=private)), "X", writeable=True) is private
    assert gather(execution_of(request(X=shared)), "X") is shared
    copy = gather(execution_of(request(X=shared)), "X", writeable=True)
    assert copy.flags.writeable
    assert not np.shares_memory(copy, shared)


def test_missing_output_rows_fail_their_requests() -> None:
    execution = execution_of(request(X=rows(1)), request(X=rows(2, 3)))
    scatter(execution, {"OUT": (OUT, rows(1, 2))}, batching=True)
    assert execution.responses[0].error is None
    error = execution.responses[1].error
    assert isinstance(error, UnsupportedError)
    assert str(error) == (
        "failed to split the output tensor 'OUT' in responses: expected batch size of at least 3 in model output, got 2"
    )


def test_request_receives_only_one_response() -> None:
    execution = execution_of(request(X=rows(1)))
    execution.respond(0, [])
    with pytest.raises(InternalError, match="request 0 of the batch: expected one response, got a second one"):
        execution.respond(0, [])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_gather_and_scatter_round_trip(sizes: list[int]) -> None:
    requests = [request(X=rows(*(100 * index + row for row in range(size)))) for index, size in enumerate(sizes)]
    execution = execution_of(*requests)
    batch = gather(execution, "X")
    assert batch is not None
    scatter(execution, {"OUT": (OUT, batch)}, batching=True)
    for sent, answer in zip(requests, execution.responses, strict=True):
        assert answer.outputs[0].array.tolist() == sent.inputs["X"].array.tolist()


def test_missing_string_rows_are_empty_strings() -> None:
    execution = execution_of(request(S=np.array([[b"a"]], object)), request(Z=rows(0)))
    assert gather(execution, "S").tolist() == [[b"a"], [b""]]


def test_reshape_of_an_output_is_undone() -> None:
    spec = TensorSpec("OUT", FP32, (1, -1), reshape=(-1,))
    execution = execution_of(request(X=rows(1)), request(X=rows(2, 3)))
    scatter(execution, {"OUT": (spec, np.zeros((3, 5), np.float32))}, batching=True)
    assert [answer.outputs[0].shape for answer in execution.responses] == [(1, 1, 5), (2, 1, 5)]


@pytest.mark.parametrize(
    ("dims", "reshape", "shape", "undone"),
    [
        ((8,), (4, 1, 2), (3, 4, 1, 2), (3, 8)),
        ((8,), (4, 1, 2), (3, 2, 4), (3, 8)),  # the number of dimensions does not matter, as on Triton
        ((-1, 4), (-1, 2, 2), (3, 5, 4), (3, 5, 4)),
        ((1,), (), (3,), (3, 1)),
        ((8,), (4, 1, 2), (3, 7), (3, 7)),  # these have too few elements
        ((4, -1), (2, 2, -1), (3, 4, 5), (3, 4, 5)),  # this has no third dimension
    ],
)
def test_reshape_is_undone_if_the_number_of_elements_matches(
    dims: tuple[int, ...], reshape: tuple[int, ...], shape: tuple[int, ...], undone: tuple[int, ...]
) -> None:
    array = np.zeros(shape, np.float32)
    assert undo_reshape(TensorSpec("OUT", FP32, dims, reshape), array, batching=True).shape == undone
