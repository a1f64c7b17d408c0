"""Views of another server from its statistics: columns of batch sizes, and a dashboard of all models."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tritonnb as tnb
from tritonnb.notebook.statistics_view import Second, StatisticsDashboard, StatisticsHistory, picture, tiles
from tritonnb.server.server import Server


@pytest.fixture(scope="module")
def remote() -> Iterator[tnb.Remote]:
    with Server(port=0, grpc_port=0) as server:

        @server.model(max_batch_size=8, dynamic_batching={})
        def fails(X: tnb.FP32[1]) -> tnb.FP32[1]:
            if np.min(X) < 0:
                raise ValueError("no luck")
            return X

        @server.model
        def idle(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X

        with tnb.connect(server.url) as remote:
            yield remote


def test_seconds_are_differences_of_the_statistics(remote: tnb.Remote) -> None:
    model = remote["fails"]
    history = StatisticsHistory(model.stats())
    model(X=[[1.0]] * 3)
    model(X=[[1.0]])
    history.add(model.stats())
    with pytest.raises(tnb.TritonError):
        model(X=[[-1.0]])
    history.add(model.stats())
    first, second = history.seconds
    assert (first.sizes, second.sizes) == ({1: 1, 3: 1}, {1: 1})
    assert (round(first.rate * first.seconds), first.errors, second.rate) == (2, 0, 0)
    assert round(second.errors * second.seconds) == 1
    recent = history.recent()
    assert recent is not None
    assert recent.sizes == {1: 2, 3: 1}
    assert [tile["level"] for tile in tiles(recent)] == ["", "error", "", "", ""]
    drawn = picture(history.seconds)
    assert "requests/s; executions by rows: 1 of 1, 1 of 3" in drawn
    assert drawn.count("<g>") == 2


@pytest.mark.parametrize("sizes", [1, 12, 13, 64])
def test_every_batch_size_is_drawn(sizes: int) -> None:
    def duration(count: int) -> dict[str, int]:
        return {"count": count, "ns": 1000}

    parts = {name: duration(1) for name in ("success", "fail", "queue", "compute_input", "compute_infer",
                                            "compute_output")}  # fmt: skip
    rows = [{"batch_size": size, "compute_infer": duration(2)} for size in range(1, sizes + 1)]
    drawn = picture([Second(0, 1, {"inference_stats": parts, "batch_stats": rows})])
    assert drawn.count("fill-opacity") == min(sizes, 12 if sizes <= 12 else -(-sizes // -(-sizes // 12)))


@pytest.mark.parametrize("address", ["url", "grpc"])
def test_dashboard_of_another_server_lists_its_models(address: str) -> None:
    with Server(port=0, grpc_port=0) as server:

        @server.model(max_batch_size=8)
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        @server.model
        def idle(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X

        with tnb.connect(server.url if address == "url" else f"grpc://127.0.0.1:{server.grpc_port}") as remote:
            dashboard = remote.dashboard()
            assert isinstance(dashboard, StatisticsDashboard)
            assert [model["name"] for model in dashboard.models.models] == ["double", "idle"]
            server["double"](X=[[1.0]] * 4)
            dashboard.refresh()
            assert "of 4" in dashboard.picture.value
            assert dashboard.details.value.count("on average") == 1  # the numbers of one moment
            (listed,) = (model for model in dashboard.models.models if model["name"] == "double")
            assert listed["rate"] > 0
            server.unload("idle")
            dashboard.models.selected = "idle"
            dashboard.refresh()
            assert "No execution yet" in dashboard.picture.value
            assert dashboard.models.shown == "idle"
            dashboard.close()
            dashboard.close()
