"""The keyword options of `Server`, `serve` and inference methods: typed, and shown by completion."""

from __future__ import annotations

import dataclasses
import inspect
from typing import get_type_hints

import pytest

import tritonnb as tnb
from tritonnb.client.array_requests import REQUEST_OPTIONS
from tritonnb.endpoints.endpoint_set import ListenOptions
from tritonnb.engine.options import EngineOptions
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.options import EngineKeywords, KeywordsWithPort


def test_every_engine_option_is_a_keyword_of_the_same_type() -> None:
    hints = get_type_hints(EngineOptions)
    expected = {field.name: hints[field.name] for field in dataclasses.fields(EngineOptions)}
    del expected["model_repositories"]
    assert get_type_hints(EngineKeywords) == expected


def test_serve_accepts_the_keywords_of_server_except_replaces() -> None:
    server = inspect.signature(tnb.Server).parameters
    assert set(inspect.signature(tnb.serve).parameters) == set(server) - {"replaces"}
    assert server["host"].default == "127.0.0.1"
    assert server["model_control_mode"].default == "none"


def test_remaining_server_keywords_are_endpoint_options() -> None:
    own_keywords = get_type_hints(KeywordsWithPort).keys() - get_type_hints(EngineKeywords).keys()
    assert own_keywords == {field.name for field in dataclasses.fields(ListenOptions)}


@pytest.mark.parametrize("method", ["__call__", "infer", "infer_async", "infer_all"])
def test_inference_methods_show_the_request_options(method: str) -> None:
    parameters = inspect.signature(getattr(ModelHandle, method)).parameters
    assert REQUEST_OPTIONS.keys() < parameters.keys()
    assert parameters["tensors"].kind is inspect.Parameter.VAR_KEYWORD
