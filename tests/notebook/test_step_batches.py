"""The batches of the steps of an ensemble in one picture."""

from __future__ import annotations

import tritonnb as tnb
from tests.lab.simulation.test_pipelines import PAIR
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import pack
from tritonnb.notebook.step_batches import MOST_REQUESTS, newest_requests


def picture(requests: int = 30) -> Json:
    models = {"pair": PAIR, "a": "max_batch_size: 8 dynamic_batching { }", "b": "max_batch_size: 8"}
    rec = tnb.simulate(models, tnb.constant(100, requests / 100), {"a": tnb.fixed(25), "b": tnb.fixed(6)})
    return newest_requests(map(pack, rec.events), "pair", ["a", "b"])


def test_picture_has_the_newest_requests_on_one_time_axis() -> None:
    shown = picture()
    assert len(shown["requests"]) == MOST_REQUESTS
    assert shown["lanes"] == ["a_0_0", "b_0_0"]
    for number, request in enumerate(shown["requests"]):
        assert 0 <= request["begin"] < request["end"] <= shown["span"]
        assert [step["model"] for step in request["steps"]] == ["a", "b"]
        first, second = (shown["batches"][step["batch"]] for step in request["steps"])
        assert number in first["requests"]
        assert number in second["requests"]
        assert first["end"] == request["steps"][1]["begin"]  # one clock
        assert second["end"] == request["end"]


def test_picture_is_empty_before_the_first_request() -> None:
    assert newest_requests([], "pair", ["a", "b"]) == {}
