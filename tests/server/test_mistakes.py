"""What people mistype: an error of one line that names what was meant, without a chain of other people's errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.server.conftest import EXAMPLES
from tritonnb.server import Server

X = [[1.0, 2.0, 3.0, 4.0]]
BATCHING = "max_batch_size: 3 dynamic_batching { }"


def told(mistake: Callable[[], object]) -> str:
    """The error's text; it is of one line and alone."""
    with pytest.raises((tnb.TritonError, TypeError, AttributeError)) as caught:
        mistake()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((1, 4), np.float32), "inputs of model 'add_sub' are given by name (INPUT0=, INPUT1=), got ndarray"),
        ({"INPUT0": "one"}, "input 'INPUT0' of model 'add_sub' is FP32, and could not convert string to float: 'one'"),
        ({"INPUT": X}, "unexpected inference input 'INPUT' for model 'add_sub': it has 'INPUT0', 'INPUT1'"),
    ],
)  # fmt: skip
def test_an_input_that_cannot_be(server: Server, inputs: Any, words: str):
    assert told(lambda: server["add_sub"](inputs)) == words


def test_a_model_that_is_called_otherwise(server: Server):
    assert told(lambda: server["addsub"]) == (
        "Request for unknown model: 'addsub' is not found; did you mean 'add_sub'?"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prot": 1}, "Server has no option 'prot'; did you mean 'port'?"),
        ({"load_model": ["m"]}, "Server has no option 'load_model'; did you mean 'load_models'?"),
        ({"model_control_mode": "manual"}, "model_control_mode cannot be 'manual': one of 'none', 'explicit', 'poll'"),
        ({"rate_limit": "on"}, "rate_limit cannot be 'on': one of 'off', 'execution_count'"),
        ({"port": 99_999}, "cannot listen on 127.0.0.1:99999: ports end at 65535"),
    ],
)  # fmt: skip
def test_an_option_that_there_is_not(options: dict[str, Any], words: str):
    assert told(lambda: Server(**options)) == words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_batchsize": 3}, "field named \"max_batchsize\"; did you mean 'max_batch_size'?"),
        (
            {"dynamic_batching": {"max_queue_delay": 3}},
            "field named \"max_queue_delay\"; did you mean 'max_queue_delay_microseconds'?",
        ),
    ],
)
def test_a_field_of_a_functions_configuration(server: Server, fields: dict[str, Any], words: str):
    def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    text = told(lambda: server.model(m, **fields))
    assert text.startswith("model 'm': Message type ")
    assert text.endswith(words)


def test_a_function_without_annotations_and_one_that_returns_nothing(server: Server):
    assert "the parameter 'x' needs a tensor type with dims, such as FP32[1], not nothing" in (
        told(lambda: server.model(lambda x: x))
    )

    @server.model(max_batch_size=4)
    def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
        pass

    assert told(lambda: server["m"](X=[[1.0]])) == "model 'm' gave None for the output 'OUTPUT'"


def test_a_field_of_a_running_configuration(server: Server):
    config = server["add_sub"].config
    words = "a model configuration has no field 'max_batchsize'; did you mean 'max_batch_size'?"
    assert told(lambda: config.max_batchsize) == words
    assert told(lambda: setattr(config, "max_batchsize", 3)) == words
    assert {"max_batch_size", "dynamic_batching", "apply"} <= set(dir(config))
    assert copy.copy(config).max_batch_size == 8


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ([5], "an arrival is an Arrival or (time in µs, rows), got 5"),
        ([(0, 9)], "inference request batch-size must be <= 3 for 'simulated', got 9"),
    ],
)
def test_an_arrival_that_cannot_be(arrivals: list[Any], words: str):
    assert told(lambda: tnb.simulate(BATCHING, arrivals, tnb.fixed(1))) == words


def test_a_field_to_try():
    rec = tnb.simulate(BATCHING, [(0, 1)], tnb.fixed(1))
    assert told(lambda: rec.what_if(max_queue_delay=3)) == (
        "the configuration has no field 'max_queue_delay' to edit; did you mean 'max_queue_delay_microseconds'?"
    )


def test_a_model_in_place_of_a_repository(tmp_path: Path, capsys):
    tnb.serve(EXAMPLES / "add_sub", port=0).stop()
    words = f"'{EXAMPLES / 'add_sub'}' looks like a model: serve the directory that it lies in, '{EXAMPLES}'"
    assert words in capsys.readouterr().out
