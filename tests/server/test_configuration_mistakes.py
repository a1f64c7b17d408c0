"""Mistakes in a configuration, or in a function that is served: the error names the field or the parameter."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import tritonnb as tnb
from tests.mistakes import FORMS, text_of
from tritonnb.server.server import Server


def test_unreadable_configuration_in_a_load_request_is_refused(server: Server) -> None:
    assert text_of(lambda: server.load("add_sub", {"max_batch_size": "two"})) == (
        "field 'max_batch_size' expected an integer from -2**31 to 2**31 - 1, got 'two'"
    )
    assert text_of(lambda: server.load("add_sub", 2)) == (f"configuration expected {FORMS}, got 2")
    assert server["add_sub"].config.max_batch_size == 8


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"max_batchsize": 3},
            "the configuration has no field 'max_batchsize'; did you mean 'max_batch_size'?",
        ),
        (
            {"dynamic_batching": {"max_queue_delay": 3}},
            "the configuration has no field 'dynamic_batching.max_queue_delay'; did you mean "
            "'max_queue_delay_microseconds'?",
        ),
        (
            {"dynamic_batching": True},
            "field 'dynamic_batching' expected a dict of the fields of ModelDynamicBatching, got True; give {} for its "
            "defaults",
        ),
        ({"cuont": 2}, "the configuration has no field 'cuont'; did you mean 'count'?"),
        (
            {"preferred_batch_size": [2]},
            "field 'preferred_batch_size' expected a configuration with dynamic_batching, got one without it",
        ),
        (
            {"max_sequence_idle_microseconds": 2},
            "field 'max_sequence_idle_microseconds' expected a configuration with sequence_batching, got one without "
            "it",
        ),
        ({"count": 0}, "count expected a number of instances of at least 1, got 0"),
    ],
)
def test_mistake_in_a_field_of_a_function_configuration_is_named(
    server: Server, fields: dict[str, Any], words: str
) -> None:
    def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    assert text_of(lambda: server.model("m")) == "expected a function to serve as a model, got 'm'"  # type: ignore[call-overload]
    assert text_of(lambda: server.model(m, **fields)) == f"model 'm': {words}"


def test_function_without_annotations_or_result_is_an_error(server: Server) -> None:
    assert "the parameter 'x' has no annotation: expected a tensor type with dims, such as FP32[1]" in (
        text_of(lambda: server.model(lambda x: x))
    )

    @server.model(max_batch_size=4)
    def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
        pass

    assert text_of(lambda: server["m"](X=[[1.0]])) == (
        "model 'm': output 'OUTPUT' expected FP32 values, got None: does the function return them?"
    )


def test_mistake_in_a_field_of_a_running_configuration_is_named(server: Server) -> None:
    config = server["add_sub"].config
    words = "model configuration: expected a field of ModelConfig, got 'max_batchsize'; did you mean 'max_batch_size'?"
    assert text_of(lambda: config.max_batchsize) == words
    assert text_of(lambda: setattr(config, "max_batchsize", 3)) == words
    assert {"max_batch_size", "dynamic_batching", "apply"} <= set(dir(config))
    assert text_of(lambda: copy.copy(config)) == (
        "configuration of model 'add_sub' cannot be copied or sent to another process: copy its text (config.text)"
    )


def test_invalid_field_value_changes_nothing(server: Server) -> None:
    config = server["add_sub"].config
    assert text_of(lambda: setattr(config, "max_batch_size", "x")) == (
        "field 'max_batch_size' expected an integer from -2**31 to 2**31 - 1, got 'x'"
    )
    assert text_of(lambda: setattr(config, "dynamic_batching", True)) == (
        "field 'dynamic_batching' expected a dict of the fields of ModelDynamicBatching, got True; give {} for its "
        "defaults"
    )
    assert text_of(lambda: setattr(config, "input", [5])) == (
        "field 'input[0]' expected a dict of the fields of ModelInput, got 5"
    )
    assert text_of(lambda: setattr(config, "text", "max_batchsize: 8")) == (
        '1:14: Message type "inference.ModelConfig" has no field named "max_batchsize"; did you mean '
        "'max_batch_size'?"
    )
    assert config.diff() == ""
    config.input = config.input
    assert config.diff() == ""
