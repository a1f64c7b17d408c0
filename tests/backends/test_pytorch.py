"""The PyTorch backend: the arguments of tensors, checks, states."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
import torch

from tests.backends.models import TENSORS, Loaded, config_of, request, rows, save_scripted, write_identity
from tritonnb.core.datatypes import FP32
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor


class Subtract(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left - right, right - left


class FromDict(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return tensors["a"] - tensors["b"]


def load(module: torch.nn.Module, directory: Path, inputs: list[str], outputs: list[str], **config: Any) -> Loaded:
    save_scripted(module, directory)
    tensors = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: 1 }}' for name in inputs)
    tensors += "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: 1 }}' for name in outputs)
    return Loaded(config_of("pytorch", tensors, **config), directory)


def values(answer: InferResponse | None) -> dict[str, float]:
    assert answer is not None
    return {output.name: output.array.item() for output in answer.outputs}


def test_argument_names_take_precedence_over_the_order(tmp_path: Path) -> None:
    loaded = load(Subtract(), tmp_path, ["right", "left"], ["d", "n"])
    (answer,) = loaded.run(request(right=rows(1), left=rows(5)))
    assert values(answer) == {"d": 4, "n": -4}


def test_indices_in_tensor_names_are_used_without_argument_names(tmp_path: Path) -> None:
    loaded = load(Subtract(), tmp_path, ["IN__1", "IN__0"], ["OUT__1", "OUT__0"])
    (answer,) = loaded.run(request(IN__1=rows(1), IN__0=rows(5)))
    assert values(answer) == {"OUT__1": -4, "OUT__0": 4}


def test_unnamed_tensors_follow_the_configured_order(tmp_path: Path) -> None:
    loaded = load(Subtract(), tmp_path, ["x", "y"], ["d", "n"])
    (answer,) = loaded.run(request(x=rows(5), y=rows(1)))
    assert values(answer) == {"d": 4, "n": -4}


def test_module_with_a_dictionary_argument_receives_tensors_by_name(tmp_path: Path) -> None:
    loaded = load(FromDict(), tmp_path, ["b", "a"], ["d"])
    (answer,) = loaded.run(request(b=rows(1), a=rows(5)))
    assert values(answer) == {"d": 4}


def test_fewer_results_than_outputs_are_an_error(tmp_path: Path) -> None:
    loaded = load(FromDict(), tmp_path, ["a", "b"], ["d", "e"])
    with pytest.raises(InvalidArgumentError, match=r"The output e .* doesn't exist\. This model has 1 outputs"):
        loaded.run(request(a=rows(1), b=rows(1)))


def test_too_many_inputs_fail_the_load(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="configuration expects 3 inputs, model provides 2"):
        load(Subtract(), tmp_path, ["x", "y", "z"], ["d", "n"])


def test_output_of_wrong_type_is_an_error(tmp_path: Path) -> None:
    write_identity("pytorch", tmp_path)
    tensors = 'input { name: "IN0" data_type: TYPE_FP32 dims: 1 } output { name: "OUT0" data_type: TYPE_INT64 dims: 1 }'
    loaded = Loaded(config_of("pytorch", tensors), tmp_path)
    with pytest.raises(InvalidArgumentError, match="expects datatype TYPE_INT64 for output 'OUT0'"):
        loaded.run(request(IN0=rows(1)))


def test_load_fails_if_the_file_is_not_torchscript(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.pt").write_bytes(b"nonsense")
    with pytest.raises(InternalError, match="failed to load model 'm'"):
        Loaded(config_of("pytorch"), tmp_path)


def test_datatype_without_torch_dtype_is_refused(tmp_path: Path) -> None:
    write_identity("pytorch", tmp_path)
    tensors = (
        'input { name: "IN0" data_type: TYPE_UINT16 dims: 1 } output { name: "OUT0" data_type: TYPE_FP32 dims: 1 }'
    )
    with pytest.raises(InternalError, match="unsupported datatype TYPE_UINT16 for input 'IN0' for model 'm'"):
        Loaded(config_of("pytorch", tensors), tmp_path)


@pytest.mark.parametrize("name", ["INFERENCE_MODE", "DISABLE_OPTIMIZED_EXECUTION", "ENABLE_WEIGHT_SHARING"])
def test_boolean_parameters_are_accepted_in_any_case(tmp_path: Path, name: str) -> None:
    write_identity("pytorch", tmp_path)
    for text in ("true", "FALSE"):
        extra = f'parameters {{ key: "{name}" value {{ string_value: "{text}" }} }}'
        assert (
            Loaded(config_of("pytorch", extra=extra), tmp_path).run(request(IN0=rows(3)))[0].outputs[0].array.item()
            == 3
        )
    extra = f'parameters {{ key: "{name}" value {{ string_value: "maybe" }} }}'
    with pytest.raises(
        InvalidArgumentError, match=f"model 'm': parameter '{name}' expected 'true' or 'false', got 'maybe'"
    ):
        Loaded(config_of("pytorch", extra=extra), tmp_path)


class WithDefault(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: Optional[torch.Tensor] = None, c: Optional[torch.Tensor] = None) -> Any:  # noqa: UP045
        if b is not None:
            a = a + b * 10
        return a if c is None else a + c * 100


class NoTensor(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> list[int]:
        return [1]


class Weight(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 1))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.weight * a


def test_omitted_input_does_not_change_the_positions_of_the_others(tmp_path: Path) -> None:
    loaded = load(WithDefault(), tmp_path, ["a", "b", "c"], ["d"])
    (answer,) = loaded.run(request(a=rows(1), c=rows(3)))
    assert values(answer) == {"d": 301}


def test_omitted_input_without_a_default_is_an_error(tmp_path: Path) -> None:
    loaded = load(Subtract(), tmp_path, ["x", "y"], ["d", "n"])
    with pytest.raises(InvalidArgumentError, match="model 'm': expected input 'x', got none"):
        loaded.run(request(y=rows(1)))


def test_non_tensor_result_is_an_error(tmp_path: Path) -> None:
    loaded = load(NoTensor(), tmp_path, ["a"], ["d"])
    with pytest.raises(InternalError, match=r"output must be of type Tensor or List\[str\], received List\[int\]"):
        loaded.run(request(a=rows(1)))


def test_model_outside_inference_mode_can_return_its_weights(tmp_path: Path) -> None:
    extra = 'parameters { key: "INFERENCE_MODE" value { string_value: "false" } }'
    (answer,) = load(Weight(), tmp_path, ["a"], ["d"], extra=extra).run(request(a=rows(2)))
    assert values(answer) == {"d": 2}


class Shout(torch.nn.Module):
    def forward(self, texts: list[str], count: torch.Tensor) -> tuple[list[str], torch.Tensor]:
        return [text + "!" for text in texts], count


STRINGS = """
    input { name: "texts" data_type: TYPE_STRING dims: 1 reshape { shape: [ ] } }
    input { name: "count" data_type: TYPE_INT64 dims: 1 }
    output { name: "loud" data_type: TYPE_STRING dims: 1 reshape { shape: [ ] } }
    output { name: "same" data_type: TYPE_INT64 dims: 1 }
"""


def test_correlation_id_is_converted_to_a_torch_datatype(tmp_path: Path) -> None:
    write_identity("pytorch", tmp_path)
    control = "control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT32 }"
    sequence = f'sequence_batching {{ control_input {{ name: "CORRID__1" {control} }} }}'
    with pytest.raises(InternalError, match=r"^input 'CORRID__1' type 'TYPE_UINT32' is not supported by PyTorch\.$"):
        Loaded(config_of("pytorch", TENSORS, sequence), tmp_path)


def test_modes_of_a_model_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_identity("pytorch", tmp_path)
    caplog.set_level("INFO", "tritonnb")
    parameters = 'parameters { key: "INFERENCE_MODE" value { string_value: "false" } }'
    Loaded(config_of("pytorch", TENSORS, parameters), tmp_path)
    assert "Inference Mode is disabled for model instance 'm'" in caplog.messages
    assert "Optimized execution is enabled for model instance 'm'" in caplog.messages


def test_output_strings_are_lists_with_one_string_per_row(tmp_path: Path) -> None:
    save_scripted(Shout(), tmp_path)
    loaded = Loaded(config_of("pytorch", STRINGS), tmp_path)
    texts = [np.array([b"a", "ö".encode()], object), np.array([b""], object)]
    answers = loaded.run(*(request(texts=text, count=np.zeros((len(text), 1), np.int64)) for text in texts))
    loud = [answer.outputs[0].array.tolist() for answer in answers]
    assert loud == [[[b"a!"], ["ö!".encode()]], [[b"!"]]]


def test_non_utf8_string_fails_only_its_request(tmp_path: Path) -> None:
    save_scripted(Shout(), tmp_path)
    loaded = Loaded(config_of("pytorch", STRINGS), tmp_path)
    texts = [np.array([text], object) for text in (b"\xfa", b"a")]
    refused, answer = loaded.run(*(request(texts=text, count=np.zeros((1, 1), np.int64)) for text in texts))
    assert "input 'texts' has a string that is not UTF-8" in str(refused.error)
    assert answer.outputs[0].array.tolist() == [[b"a!"]]


def test_string_tensors_must_have_one_dimension(tmp_path: Path) -> None:
    write_identity("pytorch", tmp_path)
    tensors = (
        'input { name: "IN0" data_type: TYPE_STRING dims: 1 } output { name: "OUT0" data_type: TYPE_FP32 dims: 1 }'
    )
    with pytest.raises(InternalError, match="only supports 1 dimensional List of String as input for 'IN0'"):
        Loaded(config_of("pytorch", tensors), tmp_path)


class Remembering(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros(1, 1))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        self.total += a
        return self.total


def test_response_does_not_share_memory_with_the_model(tmp_path: Path) -> None:
    loaded = load(Remembering(), tmp_path, ["a"], ["d"])
    (first,) = loaded.run(request(a=rows(2)))
    loaded.run(request(a=rows(3)))
    assert values(first) == {"d": 2}


# --- sequences: control tensors and implicit state -----------------------------------------------


class States:
    """The states of one sequence as the runtime passes them: by output name, the input's name."""

    def __init__(self, names: dict[str, str], **arrays: np.ndarray) -> None:
        self._names = names
        self.inputs = {name: Tensor(name, FP32, array) for name, array in arrays.items()}

    def update(self, output_name: str, array: Any) -> None:
        self.inputs[self._names[output_name]] = Tensor(self._names[output_name], FP32, array)

    def values(self) -> dict[str, list[list[float]]]:
        return {name: tensor.array.tolist() for name, tensor in self.inputs.items()}


class SumAndCount(torch.nn.Module):
    """Two states; it writes them in place and then refuses what is negative."""

    def forward(self, x: torch.Tensor, total: torch.Tensor, count: torch.Tensor) -> Any:
        total += x
        count += 1
        if bool((x < 0).any()):
            raise ValueError("negative")
        return total / count, total, count


TWO_STATES = """
    sequence_batching { direct { }
        state { input_name: "TOTAL__1" output_name: "TOTAL_OUT__1" data_type: TYPE_FP32 dims: 1 }
        state { input_name: "COUNT__2" output_name: "COUNT_OUT__2" data_type: TYPE_FP32 dims: 1 }
    }
"""


def load_mean(directory: Path, outputs: list[str]) -> Loaded:
    return load(SumAndCount(), directory, ["X__0"], outputs, extra=TWO_STATES)


def sequence(total: float = 0, count: float = 0) -> States:
    names = {"TOTAL_OUT__1": "TOTAL__1", "COUNT_OUT__2": "COUNT__2"}
    return States(names, TOTAL__1=rows(total), COUNT__2=rows(count))


def step(x: float, states: States) -> InferRequest:
    created = request(X__0=rows(x))
    created.states = states
    return created


def test_states_are_passed_from_request_to_request(tmp_path: Path) -> None:
    loaded = load_mean(tmp_path, ["MEAN__0"])
    states = sequence()
    means = [values(loaded.run(step(x, states))[0]) for x in (1, 3, 8)]
    assert means == [{"MEAN__0": 1}, {"MEAN__0": 2}, {"MEAN__0": 4}]
    assert states.values() == {"TOTAL__1": [[12]], "COUNT__2": [[3]]}


def test_each_sequence_of_a_batch_gets_its_own_rows_of_the_states(tmp_path: Path) -> None:
    loaded = load_mean(tmp_path, ["MEAN__0"])
    one, two = sequence(), sequence(total=10, count=4)
    answers = loaded.run(step(4, one), step(0, two))
    assert [values(answer)["MEAN__0"] for answer in answers] == [4, 2]
    assert (one.values()["TOTAL__1"], two.values()["TOTAL__1"]) == ([[4]], [[10]])


def test_request_with_another_state_shape_fails_alone(tmp_path: Path) -> None:
    loaded = load_mean(tmp_path, ["MEAN__0"])
    one, two = sequence(), States({}, TOTAL__1=np.zeros((1, 3), np.float32), COUNT__2=rows(0))
    first, second = loaded.run(step(4, one), step(0, two))
    assert values(first)["MEAN__0"] == 4
    assert "input 'TOTAL__1' expected shape [-1,1], as the first request of the batch has" in str(second.error)
    assert two.inputs["TOTAL__1"].shape == (1, 3)


def test_state_can_be_requested_as_an_output(tmp_path: Path) -> None:
    loaded = load_mean(tmp_path, ["COUNT_OUT__2", "MEAN__0"])
    states = sequence()
    (answer,) = loaded.run(step(6, states))
    assert values(answer) == {"COUNT_OUT__2": 1, "MEAN__0": 6}
    (answer,) = loaded.run(step(6, states))
    assert values(answer) == {"COUNT_OUT__2": 2, "MEAN__0": 6}


def test_failed_request_does_not_change_its_states(tmp_path: Path) -> None:
    loaded = load_mean(tmp_path, ["MEAN__0"])
    states = sequence(total=5, count=1)
    with pytest.raises(InternalError, match="PyTorch execute failure"):
        loaded.run(step(-1, states))
    assert states.values() == {"TOTAL__1": [[5]], "COUNT__2": [[1]]}


def test_state_does_not_share_memory_with_a_response(tmp_path: Path) -> None:
    loaded = load_mean(tmp_path, ["TOTAL_OUT__1"])
    states = sequence()
    (first,) = loaded.run(step(1, states))
    loaded.run(step(1, states))
    assert values(first) == {"TOTAL_OUT__1": 1}


def test_state_of_wrong_datatype_is_refused_and_not_stored(tmp_path: Path) -> None:
    extra = TWO_STATES.replace("TYPE_FP32", "TYPE_INT32", 1)
    loaded = load(SumAndCount(), tmp_path, ["X__0"], ["MEAN__0"], extra=extra)
    states = sequence()
    complaint = "configuration expects datatype TYPE_INT32 for output 'TOTAL_OUT__1', model provides TYPE_FP32"
    with pytest.raises(InvalidArgumentError, match=complaint):
        loaded.run(step(1, states))
    assert states.values() == {"TOTAL__1": [[0]], "COUNT__2": [[0]]}


def test_control_tensors_are_arguments_by_index(tmp_path: Path) -> None:
    control = 'name: "START__0" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }'
    extra = f"sequence_batching {{ control_input {{ {control} }} }}"
    loaded = load(Subtract(), tmp_path, ["IN__1"], ["d", "n"], extra=extra)
    (answer,) = loaded.run(request(IN__1=rows(5), START__0=rows(1)))
    assert values(answer) == {"d": -4, "n": 4}


@pytest.mark.parametrize(
    ("inputs", "outputs", "states", "complaint"),
    [
        (["X"], ["MEAN__0"], TWO_STATES, "not all inputs and outputs follow the <name>__<index> naming convention"),
        (["x"], ["MEAN__0"], TWO_STATES, "not all inputs and outputs follow the <name>__<index> naming convention"),
        (["X__0"], ["MEAN"], TWO_STATES, "not all inputs and outputs follow the <name>__<index> naming convention"),
        (["X__0"], ["MEAN__0"], TWO_STATES.replace("TOTAL__1", "TOTAL"), "state 'TOTAL' does not follow the"),
        (["X__0"], ["MEAN__0"], TWO_STATES.replace("COUNT_OUT__2", "C__x"), "state 'C__x' does not follow the"),
        (["X__0"], ["MEAN__0"], TWO_STATES.replace("COUNT__2", "C__1"), "'TOTAL__1' and 'C__1' refer to the same"),
        (["X__3"], ["MEAN__0"], TWO_STATES, "'X__3' refers to an argument which doesn't exist: 'forward' has 3"),
    ],
)
def test_tensor_names_of_a_stateful_model_need_an_index(
    tmp_path: Path, inputs: list[str], outputs: list[str], states: str, complaint: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        load(SumAndCount(), tmp_path, inputs, outputs, extra=states)


def test_load_fails_if_a_control_tensor_has_no_index(tmp_path: Path) -> None:
    control = 'name: "left" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }'
    extra = f"sequence_batching {{ control_input {{ {control} }} }}"
    with pytest.raises(InternalError, match="input 'left' does not follow <name>__<index> naming convention"):
        load(Subtract(), tmp_path, ["right"], ["d", "n"], extra=extra)


def test_too_few_inputs_fail_the_load(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="configuration expects 1 inputs, model provides 2"):
        load(Subtract(), tmp_path, ["x"], ["d", "n"])
