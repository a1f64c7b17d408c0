"""Distributions of latency, throughput against latency, Pareto fronts and ensemble graphs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure, SubFigure

import tritonnb as tnb
from tests.notebook.test_dashboard import TWICE
from tritonnb.core.errors import TritonError
from tritonnb.lab.figures.latency_cdf import describe_latencies
from tritonnb.lab.figures.picture import Picture
from tritonnb.lab.figures.sweep import pareto_front
from tritonnb.server.server import Server

EXAMPLES = Path(__file__).parents[3] / "model_repository"
CONFIG = "max_batch_size: 8 dynamic_batching { }"


@pytest.fixture(scope="module")
def rec() -> tnb.Recording:
    return tnb.simulate(CONFIG, tnb.poisson(200, 10, seed=1), tnb.linear(1, 4))


@pytest.fixture(scope="module")
def runs() -> list[tnb.Recording]:
    return [tnb.simulate(CONFIG, tnb.poisson(rate, 3, seed=1), tnb.linear(1, 4)) for rate in (500, 100, 300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(EXAMPLES / "add_sub", root / "add_sub")
    (root / "twice" / "1").mkdir(parents=True)
    (root / "twice" / "config.pbtxt").write_text(TWICE)
    with Server(root, port=0) as server:
        yield server


@pytest.fixture(scope="module")
def sweep(server: Server) -> tnb.SweepResult:
    fields: dict[str, Any] = {"max_batch_size": [2, 4, 8], "max_queue_delay_microseconds": [0, 5000]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tritonnb.lab.load.trial._REQUESTS", (100, 100))  # no test judges the rates
        return tnb.sweep(
            server["add_sub"], constraint="p99 < 20 ms", service=tnb.linear(1, 4), requests=100, **fields
        ).wait()


def values(data: Any) -> list[float]:
    """Coordinates of a line."""
    return np.asarray(data, np.float64).tolist()


def texts(figure: Figure | SubFigure) -> str:
    return " ".join(text.get_text().replace("\N{NO-BREAK SPACE}", " ") for ax in figure.axes for text in ax.texts)


@pytest.mark.parametrize(("log", "scale"), [(True, "log"), (False, "linear")])
def test_cumulative_distribution_reaches_all_requests(rec: tnb.Recording, log: bool, scale: str) -> None:
    [ax] = rec.plot.latency_cdf(log=log).axes
    [curve] = [line for line in ax.lines if len(values(line.get_xdata())) > 2]
    latencies = sorted(request.latency_ns / 1e6 for request in rec.requests)
    assert values(curve.get_xdata())[1:] == latencies
    assert values(curve.get_ydata())[-1] == 100
    assert ax.get_xscale() == scale
    assert f"n = {len(rec.requests):,}" in ax.get_xlabel()


def test_only_percentiles_of_enough_requests_are_labelled(rec: tnb.Recording) -> None:
    p99 = np.percentile([request.latency_ns / 1e6 for request in rec.requests], 99)
    assert f"p99 {p99:.3g} ms" in texts(rec.plot.latency_cdf())
    assert "p99.9" not in texts(rec.plot.latency_cdf())
    assert "p99" not in describe_latencies([1.0] * 999)
    assert "too few requests for percentiles" in describe_latencies([1.0] * 19)


@pytest.mark.slow
def test_figures_draw_into_given_axes_and_have_a_description(
    rec: tnb.Recording, runs: list[tnb.Recording], sweep: tnb.SweepResult
) -> None:
    curves = sweep.plot_throughput_latency()  # drawn once, since it simulates 32,000 requests
    drawers = [rec.plot.latency_cdf, lambda ax=None: tnb.plot_throughput_latency(runs, ax), sweep.plot_pareto,
               sweep.plot]  # fmt: skip
    for draw in drawers:
        ax = Figure().add_subplot()
        assert draw(ax) is ax.figure
    for figure in (curves, *(draw() for draw in drawers)):
        assert isinstance(figure, Picture)
        assert figure.alt
        assert figure.svg().startswith("<svg")


def test_throughput_rises_along_the_curve_and_theory_is_drawn(runs: list[tnb.Recording]) -> None:
    [ax] = tnb.plot_throughput_latency(runs).axes
    lines = {line.get_label(): line for line in ax.lines}
    assert {"mean", "p99", "M/D/1: without batching"} <= set(lines)
    throughput = values(lines["mean"].get_xdata())
    assert throughput == sorted(throughput)
    assert values(lines["mean"].get_ydata()) == sorted(values(lines["mean"].get_ydata()))
    capacity = 8 / (0.001 * (4 + 8))  # full batches
    assert f"capacity {capacity:,.0f}/s" in texts(ax.figure)


def test_several_series_are_named(runs: list[tnb.Recording]) -> None:
    figure = tnb.plot_throughput_latency({"one": runs[:2], "other": runs[1:]})
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[:4] == ["one: mean", "one: p99", "other: mean", "other: p99"]


def test_throughput_figure_without_recordings_is_an_error() -> None:
    with pytest.raises(TritonError, match="plot_throughput_latency expected at least one recording, got none"):
        tnb.plot_throughput_latency([])


def test_no_configuration_beats_one_of_the_front(sweep: tnb.SweepResult) -> None:
    front = pareto_front(sweep.trials)
    for trial in sweep.trials:
        assert trial in front or any(
            better.rate >= trial.rate and better.percentile(99) <= trial.percentile(99) for better in front
        )
    [ax] = sweep.plot_pareto().axes
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"Pareto front", "chosen", "running configuration"} <= set(labels)
    assert "p99 < 20 ms" in texts(ax.figure)


def test_sweep_names_the_origin_of_its_numbers(sweep: tnb.SweepResult) -> None:
    for shown in (repr(sweep), sweep._repr_html_(), sweep.plot().axes[0].get_xlabel()):
        assert "Simulated; instances are assumed not to share cores" in shown


def test_labels_of_bars_have_no_background_that_covers_them(sweep: tnb.SweepResult) -> None:
    assert [text for text in sweep.plot().axes[0].texts if text.get_bbox_patch() is not None] == []


def test_graph_of_an_ensemble_has_the_times_of_each_step(server: Server) -> None:
    with server.record() as rec:
        for _ in range(3):
            server["twice"](A=[[1.0, 2, 3, 4]], B=[[1.0, 1, 1, 1]])
    figure = rec.plot.graph()
    steps = {event.step_serial: event.step for event in rec.events if hasattr(event, "step_serial")}
    for step in (0, 1):
        times = [
            (request.exec_end_ns - request.exec_start_ns) / 1e6
            for request in rec.requests
            if steps.get(request.serial) == step
        ]
        assert len(times) == 3
        assert f"execution {np.mean(times):.3g} ms" in texts(figure)
    assert "Graph of the ensemble twice: 2 steps in 2 layers." in rec.plot.alt("graph")
    assert "difference, sum" in texts(figure)


def test_graph_needs_an_ensemble(rec: tnb.Recording) -> None:
    with pytest.raises(TritonError, match="figure 'graph' expected a recording of an ensemble"):
        rec.plot.graph()
