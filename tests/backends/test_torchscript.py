"""The PyTorch backend: how tensors find their arguments, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest
import torch

from tests.backends.models import Loaded, config_of, request, rows, write_identity
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError


class Subtract(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left - right, right - left


class FromDict(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return tensors["a"] - tensors["b"]


def load(module: torch.nn.Module, directory: Path, inputs: list[str], outputs: list[str], **config) -> Loaded:
    (directory / "1").mkdir(parents=True, exist_ok=True)
    torch.jit.script(module).save(str(directory / "1" / "model.pt"))
    tensors = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: 1 }}' for name in inputs)
    tensors += "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: 1 }}' for name in outputs)
    return Loaded(config_of("pytorch", tensors, **config), directory)


def values(answer) -> dict[str, float]:
    return {each.name: each.array.item() for each in answer.outputs}


def test_names_of_arguments_decide_whatever_the_order(tmp_path: Path):
    loaded = load(Subtract(), tmp_path, ["right", "left"], ["d", "n"])
    (answer,) = loaded.run(request(right=rows(1), left=rows(5)))
    assert values(answer) == {"d": 4, "n": -4}


def test_indices_in_names_decide_where_names_do_not(tmp_path: Path):
    loaded = load(Subtract(), tmp_path, ["IN__1", "IN__0"], ["OUT__1", "OUT__0"])
    (answer,) = loaded.run(request(IN__1=rows(1), IN__0=rows(5)))
    assert values(answer) == {"OUT__1": -4, "OUT__0": 4}


def test_otherwise_the_order_of_the_configuration_decides(tmp_path: Path):
    loaded = load(Subtract(), tmp_path, ["x", "y"], ["d", "n"])
    (answer,) = loaded.run(request(x=rows(5), y=rows(1)))
    assert values(answer) == {"d": 4, "n": -4}


def test_a_dictionary_gets_the_tensors_by_name(tmp_path: Path):
    loaded = load(FromDict(), tmp_path, ["b", "a"], ["d"])
    (answer,) = loaded.run(request(b=rows(1), a=rows(5)))
    assert values(answer) == {"d": 4}


def test_fewer_tensors_than_outputs_is_an_error(tmp_path: Path):
    loaded = load(FromDict(), tmp_path, ["a", "b"], ["d", "e"])
    with pytest.raises(InternalError, match="model 'm' returned 1 tensors, the configuration has 2 outputs"):
        loaded.run(request(a=rows(1), b=rows(1)))


def test_too_many_inputs_fail_the_load(tmp_path: Path):
    with pytest.raises(InvalidArgumentError, match="configuration expects 3 inputs, model provides 2"):
        load(Subtract(), tmp_path, ["x", "y", "z"], ["d", "n"])


def test_an_output_of_another_type_is_an_error(tmp_path: Path):
    write_identity("pytorch", tmp_path)
    tensors = 'input { name: "IN0" data_type: TYPE_FP32 dims: 1 } output { name: "OUT0" data_type: TYPE_INT64 dims: 1 }'
    loaded = Loaded(config_of("pytorch", tensors), tmp_path)
    with pytest.raises(InvalidArgumentError, match="expects datatype TYPE_INT64 for output 'OUT0'"):
        loaded.run(request(IN0=rows(1)))


def test_a_file_that_is_no_torchscript_fails_the_load(tmp_path: Path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.pt").write_bytes(b"nonsense")
    with pytest.raises(InternalError, match="failed to load model 'm'"):
        Loaded(config_of("pytorch"), tmp_path)


def test_a_datatype_without_a_torch_dtype_is_refused(tmp_path: Path):
    write_identity("pytorch", tmp_path)
    tensors = (
        'input { name: "IN0" data_type: TYPE_UINT16 dims: 1 } output { name: "OUT0" data_type: TYPE_FP32 dims: 1 }'
    )
    with pytest.raises(UnsupportedError, match="'IN0' of model 'm': datatype UINT16"):
        Loaded(config_of("pytorch", tensors), tmp_path)


@pytest.mark.parametrize("name", ["INFERENCE_MODE", "DISABLE_OPTIMIZED_EXECUTION", "ENABLE_WEIGHT_SHARING"])
def test_parameters_are_booleans(tmp_path: Path, name: str):
    write_identity("pytorch", tmp_path)
    for text in ("true", "FALSE"):
        extra = f'parameters {{ key: "{name}" value {{ string_value: "{text}" }} }}'
        assert (
            Loaded(config_of("pytorch", extra=extra), tmp_path).run(request(IN0=rows(3)))[0].outputs[0].array.item()
            == 3
        )
    extra = f'parameters {{ key: "{name}" value {{ string_value: "maybe" }} }}'
    with pytest.raises(InvalidArgumentError, match=f"'{name}' of model 'm' must be 'true' or 'false', got 'maybe'"):
        Loaded(config_of("pytorch", extra=extra), tmp_path)


class WithDefault(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: Optional[torch.Tensor] = None, c: Optional[torch.Tensor] = None):  # noqa: UP045
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


def test_an_absent_input_leaves_its_neighbours_where_they_are(tmp_path: Path):
    loaded = load(WithDefault(), tmp_path, ["a", "b", "c"], ["d"])
    (answer,) = loaded.run(request(a=rows(1), c=rows(3)))
    assert values(answer) == {"d": 301}


def test_an_absent_input_that_has_only_a_position_is_missed(tmp_path: Path):
    loaded = load(Subtract(), tmp_path, ["x", "y"], ["d", "n"])
    with pytest.raises(InvalidArgumentError, match="input 'x' of model 'm' is missing"):
        loaded.run(request(y=rows(1)))


def test_a_result_that_is_no_tensor_is_an_error(tmp_path: Path):
    loaded = load(NoTensor(), tmp_path, ["a"], ["d"])
    with pytest.raises(InternalError, match="returned no tensor for output 'd' but 'int'"):
        loaded.run(request(a=rows(1)))


def test_a_model_outside_inference_mode_may_answer_with_its_weights(tmp_path: Path):
    extra = 'parameters { key: "INFERENCE_MODE" value { string_value: "false" } }'
    (answer,) = load(Weight(), tmp_path, ["a"], ["d"], extra=extra).run(request(a=rows(2)))
    assert values(answer) == {"d": 2}
