"""Service times by batch size: measured at every size, in this process and over URLs."""

from __future__ import annotations

import math
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.lab.analysis.typical_times import never_decreasing
from tritonnb.lab.load import service_times
from tritonnb.lab.load.load import find_model
from tritonnb.lab.load.service_times import Meter, measure
from tritonnb.server.server import Server

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _every_size_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_times, "_MAX_DURATION_S", 60)


def sleeping(server: Server, name: str = "sleeps", **fields: Any) -> None:
    """A model that takes 2 ms, and 0.5 ms for each row."""

    def sleeps(X: tnb.FP32[2]) -> tnb.FP32[2]:
        Event().wait(0.002 + 0.0005 * len(X))
        return X

    sleeps.__name__ = name
    options: dict[str, Any] = {"max_batch_size": 8, "dynamic_batching": {}}
    server.model(**options | fields)(sleeps)


def test_every_size_up_to_the_limit_is_measured(server: Server) -> None:
    sleeping(server)
    times = tnb.service_times(server["sleeps"])
    assert list(times) == list(range(1, 9))
    assert list(times.values()) == sorted(times.values())
    assert all(ms >= 2 + 0.5 * rows for rows, ms in times.items())


def test_batch_sizes_can_be_chosen(server: Server) -> None:
    assert list(tnb.service_times(server["held"], sizes=[8, 1])) == [1, 8]
    assert list(tnb.service_times(server["held"], rows=4)) == [4, 8]
    assert list(tnb.service_times(server, "held", sizes=[6], rows=3)) == [6]
    assert list(tnb.service_times(server["held"], sizes=[2], inputs={"X": [[1, 2]]})) == [2]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"sizes": [9]}, "sizes for 'held' expected numbers from 1 to 8, got 9"),
        ({"sizes": [0]}, "expected numbers from 1 to 8, got 0"),
        ({"sizes": [1.5]}, r"sizes expected a list of integers or None, got \[1.5\]"),
        ({"sizes": []}, r"sizes expected the rows of the batches to measure, .* got an empty collection"),
        ({"sizes": [3], "rows": 2}, "from 1 to 8 that are multiples of rows=2, got 3"),
        ({"sizes": [3], "rows": 0}, "rows must be positive, got 0"),
    ],
)
def test_invalid_sizes_are_named(server: Server, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(tnb.TritonError, match=complaint):
        tnb.service_times(server["held"], **options)


@pytest.mark.parametrize("scheme", ["http", "grpc", ""])
def test_model_behind_a_url_is_measured_by_its_statistics(server: Server, scheme: str) -> None:
    sleeping(server)
    port = server.grpc_port if scheme == "grpc" else server.port
    url = f"{scheme}://127.0.0.1:{port}" if scheme else f"127.0.0.1:{port}"
    times = tnb.service_times(url, "sleeps", sizes=[1, 8])
    assert times[1] >= 2.5
    assert times[8] >= 6


def test_model_without_batching_has_one_service_time(server: Server) -> None:
    sleeping(server, max_batch_size=0, dynamic_batching=None)
    assert list(tnb.service_times(server["sleeps"])) == [1]


def test_stateful_model_is_measured_with_its_sequences(server: Server) -> None:
    assert set(tnb.service_times(server["accumulate"])) <= {1, 2, 3, 4}


def test_error_explains_why_a_model_cannot_be_measured(server: Server) -> None:
    @server.model
    def fails(X: tnb.FP32[1]) -> tnb.FP32[1]:
        raise ValueError("no luck")

    with pytest.raises(
        tnb.TritonError, match=r"model 'fails': expected at least one successful execution to measure, got: .*no luck"
    ):
        tnb.service_times(server["fails"])


def test_refused_batch_sizes_have_no_service_time(server: Server) -> None:
    @server.model(max_batch_size=8, dynamic_batching={})
    def small(X: tnb.FP32[1]) -> tnb.FP32[1]:
        if len(X) > 5:
            raise ValueError("too many rows")
        return X

    assert list(tnb.service_times(server["small"])) == [1, 2, 3, 4, 5]
    result = tnb.sweep(server["small"], max_batch_size=[4, 8], clients=16, requests=200).wait()
    assert [trial.extrapolated for trial in result.trials] == [False, True]
    assert result.best is not result.trials[1]
    assert "batches of more than 5 rows were not measured" in result.verdict()


def test_service_times_include_the_overhead_of_a_server_in_this_process(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meter, "concurrent_load", lambda *_: (1000.0, 50.0))  # ms per request, and the highest rate
    models = (find_model(target, "held") for target in (server, server.url))
    here, outside = (measure(Meter(model, 1, {}, Event()), 8) for model in models)
    assert here.times[8] > 8 * 1000 > outside.times[8]
    assert (here.max_rate, outside.max_rate) == (50.0, math.inf)


@pytest.mark.usefixtures("short_searches")
def test_sweep_predicts_no_rate_above_what_the_server_reaches(server: Server) -> None:
    swept = tnb.sweep(server["held"], count=[1, 64], constraint="p99 < 1 s", requests=100).wait()
    assert swept.trials[0].rate <= swept.max_rate


def test_sweep_measures_batch_sizes_that_its_configurations_can_form(server: Server) -> None:
    sleeping(server)
    before = server["sleeps"].config.text
    result = tnb.sweep(server["sleeps"], max_batch_size=[2, 32], clients=64, requests=400).wait()
    assert max(result.service_times) == 32
    assert {2, 8, 32} <= set(result.service_times)
    assert not any(trial.extrapolated for trial in result.trials)
    assert result.best.edits == {"max_batch_size": 32}
    assert result.best.rate < 32 * 1000 / (2 + 0.5 * 32)  # no row is free
    assert server["sleeps"].config.text == before


def test_sweep_of_a_url_recommends_only_measured_configurations(server: Server, tmp_path: Path) -> None:
    sleeping(server)
    for url in (server.url, f"grpc://127.0.0.1:{server.grpc_port}"):
        result = tnb.sweep(url, "sleeps", max_batch_size=[2, 64], clients=64, requests=400).wait()
        assert result.best is result.running
        assert "batches of more than 8 rows were not measured" in result.verdict()
        assert "extrapolated: max_batch_size 64" in result.verdict()
        assert [trial.edits["max_batch_size"] for trial in result.trials] == [2, 64]
        assert "extrapolated" in repr(result)
        assert [path.name for path in result.export(tmp_path).iterdir()] == ["config.pbtxt"]
        assert result.apply() == "unchanged"
    live = tnb.sweep(server.url, "sleeps", max_batch_size=[2], clients=4, requests=20, live=True).wait()
    assert live.trials[0].mean_batch_size <= 2
    assert server["sleeps"].config.max_batch_size == 8


def test_sweep_with_measured_times_includes_their_spread(server: Server) -> None:
    sleeping(server)
    result = tnb.sweep(server["sleeps"], count=[1], clients=16, requests=200).wait()
    assert result.best is result.running  # it is the same configuration
    assert 0.01 <= result.noise < 2


def test_decreasing_service_times_are_levelled() -> None:
    assert never_decreasing({1: [1.0], 2: [1.5], 4: [2.0]}) == {1: 1.0, 2: 1.5, 4: 2.0}
    assert never_decreasing({1: [3.0], 2: [2.0], 4: [1.0]}) == {1: 2.0, 2: 2.0, 4: 2.0}
    assert never_decreasing({1: [3.0] * 2, 2: [2.0] * 9}) == {1: 2.0, 2: 2.0}  # the more executions, the more weight


def test_slow_model_is_measured_at_the_powers_of_two(server: Server) -> None:
    @server.model(max_batch_size=64, dynamic_batching={})
    def slow(X: tnb.FP32[2]) -> tnb.FP32[2]:
        Event().wait(0.02)
        return X

    times = tnb.service_times(server["slow"])
    assert {1, 2, 4, 8, 16, 32, 64} <= set(times)
