"""Figures of the statistics extension, and what happened between two of its answers."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from tritonnb.lab.figures.statistics import StatisticsPlot
from tritonnb.telemetry.statistics_entry import difference


def counter(count: int, ms: float) -> dict[str, int]:
    return {"count": count, "ns": round(count * ms * 1e6)}


def stats(batches: dict[int, tuple[int, float]], requests: int) -> dict[str, Any]:
    names = ("compute_input", "compute_infer", "compute_output")
    return {
        "name": "m",
        "last_inference": 1000 + requests,
        "inference_count": requests,
        "execution_count": sum(count for count, _ in batches.values()),
        "inference_stats": {
            "success": counter(requests, 10),
            "fail": counter(0, 0),
            "queue": counter(requests, 4),
            **{name: counter(requests, 2) for name in names},
        },
        "batch_stats": [
            {"batch_size": size, **{name: counter(count, ms / 3) for name in names}}
            for size, (count, ms) in batches.items()
        ],
    }


EARLY, LATE = stats({1: (5, 3.0), 4: (2, 6.0)}, 13), stats({1: (5, 3.0), 4: (6, 6.0), 8: (1, 12.0)}, 37)


def test_difference_of_statistics_covers_the_time_between() -> None:
    between = difference(LATE, EARLY)
    assert (between["inference_count"], between["execution_count"]) == (24, 5)
    assert between["inference_stats"]["queue"]["count"] == 24
    assert [(entry["batch_size"], entry["compute_infer"]["count"]) for entry in between["batch_stats"]] == [
        (4, 4),
        (8, 1),
    ]
    assert (between["name"], between["last_inference"]) == ("m", 1037)


def test_batch_sizes_are_available_from_statistics() -> None:
    figure = StatisticsPlot(LATE).batch_sizes()
    assert "5 batches of 1 row, 3.0 ms; 6 batches of 4 rows, 6.0 ms" in figure.alt  # type: ignore[attr-defined]
    assert "Fewer than two sizes have 20 batches" in figure.alt  # type: ignore[attr-defined]
    one = StatisticsPlot(stats({1: (40, 3.0)}, 40)).batch_sizes()
    assert "Fewer than two sizes have 20 batches" in one.alt  # type: ignore[attr-defined]
    rare = StatisticsPlot(stats({1: (20, 3.0), 4: (30, 6.0), 8: (5, 8.0)}, 180)).batch_sizes()
    assert "shortest time per row has fewer than 20 batches" in rare.alt  # type: ignore[attr-defined]
    many = StatisticsPlot(stats({1: (20, 3.0), 4: (30, 6.0), 8: (1, 12.0)}, 148)).batch_sizes()
    assert "within 5% of its minimum from 4 rows on: 1.5 ms (n = 30)" in many.alt  # type: ignore[attr-defined]
    assert "5 of 1 rows" not in StatisticsPlot(LATE).batch_sizes(since=EARLY).alt  # type: ignore[attr-defined]
    assert StatisticsPlot(LATE).batch_sizes(since=LATE).alt == "Batch sizes. Nothing was executed."  # type: ignore[attr-defined]


@pytest.mark.parametrize("since", [None, EARLY, LATE])
def test_parts_of_a_request_add_up(since: Any) -> None:
    ax = Figure().add_subplot()
    assert StatisticsPlot(LATE).parts(ax=ax, since=since) is ax.figure
    alt = StatisticsPlot(LATE).parts(since=since).alt  # type: ignore[attr-defined]
    assert alt.startswith(
        "Parts of a request. Nothing was executed." if since is LATE else "A request takes 10.0 ms, the mean of"
    )


def test_plot_draws_both_figures() -> None:
    plot = StatisticsPlot(LATE)
    assert plot(since=EARLY).alt == f"{plot.parts(since=EARLY).alt} {plot.batch_sizes(since=EARLY).alt}"  # type: ignore[attr-defined]
    assert plot().savefig  # type: ignore[truthy-function]


@pytest.mark.parametrize("since", [None, EARLY])
def test_duration_below_zero_is_said_and_not_drawn(since: Any) -> None:
    """As of PyTorch 2 archives on releases 26.05 to 26.08 (server #8874)."""
    wrong = stats({1: (5, 3.0), 4: (6, 6.0)}, 29)
    wrapped = {"count": 29, "ns": 2**64 - 4_000_000}
    wrong["inference_stats"]["compute_infer"] = wrapped
    wrong["batch_stats"][1]["compute_infer"] = wrapped
    alt = StatisticsPlot(wrong)(since=since).alt  # type: ignore[attr-defined]
    assert "Not drawn, because the server counted less than zero (server #8874): compute infer." in alt
    assert "compute output 2.0 ms" in alt
    assert "of 4 rows" not in alt
    assert "years" not in alt
