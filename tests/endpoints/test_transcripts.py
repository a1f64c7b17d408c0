"""What a real Triton 2.51 answered, asked again of this server over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.replay import differences, send, shared_object
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.server.server import Server
from tritonnb.telemetry.trace_settings import TraceOptions

HERE = Path(__file__).parent
SHARED = Path("/dev/shm")
MODELS = HERE.parent / "models"
EXCHANGES = json.loads((HERE / "transcripts.json").read_text())
VARIATIONS = json.loads((HERE / "variations.json").read_text())


@pytest.fixture(scope="module", params=["fast", "tornado"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    names = [each.name for each in MODELS.iterdir() if each.name not in ("probe", "wont_load")]
    options = HttpOptions(transport=request.param)
    explicit: dict[str, Any] = {
        "model_control_mode": "explicit",
        "load_models": names,
        "trace": TraceOptions("trace.json"),
    }
    with Server(MODELS, port=0, http=options, metrics_port=0, **explicit) as server:
        assert not server.load_errors
        yield server
    for key in {each["shared_memory"]["key"] for each in EXCHANGES if "shared_memory" in each}:
        (SHARED / key.lstrip("/")).unlink(missing_ok=True)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda each: f"{each['area']}:{each['id']}")
def test_the_answer_is_the_recorded_one(server: Server, exchange: dict[str, Any]) -> None:
    if "shared_memory" in exchange and not SHARED.is_dir():
        pytest.skip("shared memory objects are not files on this platform")
    metrics = server.endpoints.metrics
    assert metrics is not None
    port = metrics.port if exchange.get("endpoint") == "metrics" else server.port
    with shared_object(exchange) as changed:
        found = differences(exchange, *send(port, exchange["request"]))
    assert found + changed == []


@pytest.mark.slow
@pytest.mark.parametrize("area", ["request", "tensors", "generate"])
def test_variations_of_the_recorded_requests_are_answered_alike(server: Server, area: str) -> None:
    found = {
        each["id"]: different
        for each in VARIATIONS
        if each["area"] == area and (different := differences(each, *send(server.port, each["request"])))
    }
    assert found == {}
