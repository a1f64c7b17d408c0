"""What a real Triton 2.51 answered, asked again of this server over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.endpoints.replay import differences, send
from tritonnb.endpoints.http.endpoint import HttpOptions
from tritonnb.server import Server

HERE = Path(__file__).parent
MODELS = HERE.parent / "models"
EXCHANGES = json.loads((HERE / "transcripts.json").read_text())
VARIATIONS = json.loads((HERE / "variations.json").read_text())


@pytest.fixture(scope="module", params=["fast", "tornado"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    names = [each.name for each in MODELS.iterdir() if each.name not in ("probe", "wont_load")]
    options = HttpOptions(transport=request.param)
    with Server(MODELS, port=0, http=options, model_control_mode="explicit", load_models=names) as server:
        assert not server.load_errors
        yield server


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda each: f"{each['area']}:{each['id']}")
def test_the_answer_is_the_recorded_one(server: Server, exchange: dict):
    assert differences(exchange, *send(server.port, exchange["request"])) == []


@pytest.mark.parametrize("area", ["request", "tensors", "generate"])
def test_variations_of_the_recorded_requests_are_answered_alike(server: Server, area: str):
    found = {
        each["id"]: different
        for each in VARIATIONS
        if each["area"] == area and (different := differences(each, *send(server.port, each["request"])))
    }
    assert found == {}
