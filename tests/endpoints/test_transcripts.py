"""Responses of a real Triton, compared with those of this server over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.newer_release import recordings, unused_changes
from tests.endpoints.recorded_models import MODELS, server_options
from tests.endpoints.replay import differences, send, shared_object
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.server.server import Server

HERE = Path(__file__).parent
SHARED = Path("/dev/shm")
EXCHANGES = recordings("transcripts.json")
VARIATIONS = recordings("variations.json")


@pytest.fixture(scope="module", params=["threads", "isolated"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    options = server_options(isolate=request.param == "isolated")
    options |= {"metrics_port": 0, "openai": OpenAiOptions(allow=False)}  # Triton has no paths under /v1
    with Server(MODELS, port=0, **options) as server:
        assert not server.load_errors
        yield server
    for key in {exchange["shared_memory"]["key"] for exchange in EXCHANGES if "shared_memory" in exchange}:
        (SHARED / key.lstrip("/")).unlink(missing_ok=True)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: f"{exchange['area']}:{exchange['id']}")
def test_response_equals_the_recorded_one(server: Server, exchange: dict[str, Any]) -> None:
    if "shared_memory" in exchange and not SHARED.is_dir():
        pytest.skip("shared memory objects are not files on this platform")
    metrics = server.endpoints.metrics
    assert metrics is not None
    port = metrics.port if exchange.get("endpoint") == "metrics" else server.port
    with shared_object(exchange) as changed:
        different = differences(exchange, *send(port, exchange["request"]))
    assert different + changed == []


@pytest.mark.parametrize("area", ["request", "tensors", "generate"])
def test_variations_of_recorded_requests_have_tritons_answers(server: Server, area: str) -> None:
    differing = {
        exchange["id"]: different
        for exchange in VARIATIONS
        if exchange["area"] == area and (different := differences(exchange, *send(server.port, exchange["request"])))
    }
    assert differing == {}


def test_every_listed_change_of_newer_releases_occurs_in_a_transcript() -> None:
    files = ("transcripts.json", "variations.json", "repository.json", "grpc_transcripts.json")
    assert unused_changes(*files) == set()
