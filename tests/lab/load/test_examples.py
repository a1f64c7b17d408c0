"""Requests of a load are made from the model's metadata, or checked against it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.datatypes import DATATYPES, DataType
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import InferRequest, Tensor
from tritonnb.engine.models.validation import RequestValidator
from tritonnb.lab.load.examples import examples, prompts
from tritonnb.model_config.schema import ModelSpec


def spec(inputs: str, max_batch_size: int = 8) -> ModelSpec:
    config = text_format.Parse(f'name: "m" max_batch_size: {max_batch_size} {inputs}', pb.ModelConfig())
    return ModelSpec.from_config(config)


ONE = spec('input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }')
VARIABLE = spec('input { name: "X" data_type: TYPE_INT64 dims: [ -1, 3 ] }')


@pytest.mark.parametrize("kind", ["random", "zero"])
@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.name)
def test_generated_tensors_fit_the_model(kind: str, datatype: DataType) -> None:
    model = spec(f'input {{ name: "X" data_type: {datatype.config_name} dims: [ 2, 3 ] }}')
    array = examples(model, kind, {}, seed=1)(4)["X"]
    assert array.shape == (4, 2, 3)
    RequestValidator(model).check(InferRequest("m", {"X": Tensor("X", datatype, array)}, print))


def test_random_tensors_follow_the_seed_and_differ() -> None:
    first, again, other = (examples(ONE, "random", {}, seed) for seed in (1, 1, 2))
    one, two = first(1), first(1)
    np.testing.assert_array_equal(one["X"], again(1)["X"])
    assert (one["X"] != two["X"]).any()
    assert (one["X"] != other(1)["X"]).any()


def test_model_without_batching_gets_no_batch_dimension() -> None:
    assert examples(spec('input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }', 0), "zero", {}, 0)(1)["X"].shape == (
        2,
    )


def test_optional_inputs_are_left_out() -> None:
    optional = 'input { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] optional: true }'
    model = spec(f'input {{ name: "X" data_type: TYPE_FP32 dims: [ 2 ] }} {optional}')
    assert list(examples(model, "random", {}, 0)(1)) == ["X"]


def test_variable_dimensions_are_given_by_shapes() -> None:
    assert examples(VARIABLE, "zero", {"X": (5, 3)}, 0)(2)["X"].shape == (2, 5, 3)


def test_given_examples_are_sent_in_turn_unchanged() -> None:
    source = examples(ONE, [{"X": [[1, 2]]}, {"X": [[3, 4], [5, 6]]}], {}, 0)
    taken = [source(None)["X"].tolist() for _ in range(3)]
    assert taken == [[[1, 2]], [[3, 4], [5, 6]], [[1, 2]]]


def test_input_rows_are_repeated_or_cut_to_the_number_of_rows() -> None:
    source = examples(ONE, {"X": [[1, 2], [3, 4]]}, {}, 0)
    assert source(3)["X"].tolist() == [[1, 2], [3, 4], [1, 2]]
    assert source(1)["X"].tolist() == [[1, 2]]


TEXT = 'input { name: "text_input" data_type: TYPE_STRING dims: [ %s ] } '
SAMPLING = 'input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true } '
STREAM = 'input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }'


@pytest.mark.parametrize(
    ("model", "names", "shape"),
    [
        (spec(TEXT % 1 + SAMPLING + STREAM), ["text_input", "stream", "sampling_parameters"], (1, 1)),
        (spec(TEXT % 1 + SAMPLING), ["text_input", "sampling_parameters"], (1, 1)),
        (spec(TEXT % -1), ["text_input"], (1, 1)),
        (spec(TEXT % 1, 0), ["text_input"], (1,)),
    ],
)
def test_prompts_have_the_inputs_that_the_model_has(model: ModelSpec, names: list[str], shape: tuple[int, ...]) -> None:
    tensors = examples(model, prompts(["Once"], count=1), {}, 0)(None)
    assert list(tensors) == names
    assert tensors["text_input"].shape == shape
    assert tensors["text_input"].item() == b"Once"


@pytest.mark.parametrize(
    ("model", "inputs", "shapes", "complaint"),
    [
        (ONE, "ones", {}, "inputs expected 'random'"),
        (ONE, [], {}, "at least one example"),
        (ONE, {"X": np.zeros((1, 2))}, {}, "is FP32 .* got an array of float64"),
        (ONE, {"X": [[1, 2, 3]]}, {}, "unexpected shape for input 'X' for model 'm'"),
        (ONE, {"Z": [[1]]}, {}, "unexpected inference input 'Z'"),
        (ONE, {}, {}, "expected 1 inputs but got 0"),
        (ONE, prompts(count=1), {}, "prompts for model 'm' expected the input 'text_input', got a model with 'X'"),
        (VARIABLE, "random", {}, r"variable dimensions \[-1, 3\].*shapes=\{'X': \[16, 3\]\}"),
        (VARIABLE, "random", {"X": (5, 4)}, r"input 'X' of model 'm' expected \[-1, 3\] .*, got \[5, 4\]"),
        (VARIABLE, "random", {"Q": (5,)}, "shapes expected inputs of model 'm' .* got 'Q'"),
    ],
)
def test_invalid_load_is_refused_before_sending(
    model: ModelSpec, inputs: Any, shapes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        examples(model, inputs, shapes, 0)
