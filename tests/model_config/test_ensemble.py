"""The rules for an ensemble together with the models of its steps."""

from __future__ import annotations

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.ensemble import StepModel, check_ensemble, check_no_cycle
from tritonnb.model_config.parse import parse_text


def model(name: str, inputs: str = "X", decoupled: bool = False) -> StepModel:
    tensors = " ".join(f'input {{ name: "{tensor}" data_type: TYPE_FP32 dims: 4 }}' for tensor in inputs)
    policy = "model_transaction_policy { decoupled: true }" if decoupled else ""
    text = f'name: "{name}" {tensors} output {{ name: "Y" data_type: TYPE_FP32 dims: 4 }} {policy}'
    return StepModel(parse_text(text).config, (1,))


def ensemble(*steps: str) -> pb.ModelConfig:
    """Steps such as ``"a: in -> mid"``; tensors ``in`` and ``out`` are the ensemble's own."""
    written = ""
    for step in steps:
        model_name, read, write = step.replace(":", " ").replace("->", " ").split()
        maps = " ".join(
            f'input_map {{ key: "{key}" value: "{tensor}" }}'
            for key, tensor in zip("XZ", read.split(","), strict=False)
        )
        written += (
            f'step {{ model_name: "{model_name}" model_version: -1 {maps} output_map {{ key: "Y" value: "{write}" }} }}'
        )
    return parse_text(f"""
        name: "e" platform: "ensemble"
        input {{ name: "in" data_type: TYPE_FP32 dims: 4 }}
        output {{ name: "out" data_type: TYPE_FP32 dims: 4 }}
        ensemble_scheduling {{ {written} }}
    """).config


def test_ensemble_is_decoupled_when_one_of_its_steps_is() -> None:
    config = ensemble("a: in -> mid", "b: mid -> out")
    assert not check_ensemble(config, {"a": model("a"), "b": model("b")})
    assert check_ensemble(config, {"a": model("a"), "b": model("b", decoupled=True)})


def test_step_may_not_read_from_different_decoupled_steps() -> None:
    config = ensemble("a: in -> left", "b: in -> right", "join: left,right -> out")
    plain = {"a": model("a"), "b": model("b"), "join": model("join", inputs="XZ")}
    assert not check_ensemble(config, plain)
    with pytest.raises(
        InvalidArgumentError, match="step of model 'e' receives inputs originated from different decoupled"
    ):
        check_ensemble(config, {**plain, "a": model("a", decoupled=True)})


def test_error_of_a_step_that_failed_to_load_is_reported() -> None:
    failed = StepModel(None, (), "version 1 is at UNAVAILABLE state: Internal: no;")
    with pytest.raises(InvalidArgumentError) as caught:
        check_ensemble(ensemble("a: in -> out"), {"a": failed})
    assert str(caught.value) == (
        "ensemble 'e' depends on 'a' which has no loaded version. Model 'a' loading failed with error: "
        "version 1 is at UNAVAILABLE state: Internal: no;"
    )


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ({"e": ["e"]}, "e -> ... -> e -> e"),
        ({"e": ["f"], "f": ["e"]}, "e -> ... -> f -> e"),
        ({"e": ["x", "f"], "f": ["g"], "g": ["x", "e"]}, "e -> ... -> g -> e"),
        ({"e": ["f"], "f": ["g"], "g": ["f"]}, ""),
        ({"e": ["f", "g"], "f": ["x"], "g": ["x"]}, ""),
    ],
)
def test_ensemble_that_contains_itself_is_refused(steps: dict[str, list[str]], complaint: str) -> None:
    def check() -> None:
        check_no_cycle("e", lambda name: steps.get(name, []))

    if not complaint:
        check()
        return
    with pytest.raises(InvalidArgumentError) as caught:
        check()
    assert str(caught.value) == f"circular dependency between ensembles: {complaint}"


def test_first_missing_step_model_is_named_and_first_failed_one_by_name() -> None:
    config = ensemble("z: in -> mid", "a: mid -> out")
    with pytest.raises(InvalidArgumentError, match=r"not available or ambiguous: z$"):
        check_ensemble(config, {})
    failed = {name: StepModel(None, (), f"no {name}") for name in "az"}
    with pytest.raises(InvalidArgumentError, match="depends on 'a' which has no loaded version"):
        check_ensemble(config, failed)
