"""The targets, and the part of the report on those that are not reached: by how much, and what the profile says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.stages import THREAD_TIMES

#: Of a benchmark: how many times the requests per second of Triton.
_RATES = {"http": 2.0, "grpc": 2.0, "ensemble": 1.5, "accumulator": 1.5}
#: In-process calls by the number of threads: how many times the requests per second of ``wrk`` over HTTP.
_CALLS = {"1 threads": 2.0, "8 threads": 1.2}
#: With a batch view, divided by those without one.
_WATCHED_P99, _WATCHED_RATE = 1.05, 0.95
_TITLES = {
    "http": "HTTP", "grpc": "gRPC", "ensemble": "ensemble", "accumulator": "sequences", "inprocess": "in process",
    "watch": "a batch view",
}  # fmt: skip


def below_target(figures: Mapping[str, Any]) -> tuple[list[tuple[str, str, str]], str]:
    """What is below its target: rows of what, target and measured figure; and why.

    Parameters
    ----------
    figures : mapping
        The figures of each benchmark, by its name.
    """
    rows = [
        (f"{_TITLES[name]}: {what}", f"{'at most' if is_most else 'at least'} {target:.2f}", f"{got:.2f}")
        for name in _TITLES
        if name in figures
        for what, target, got, is_most in _MEASURED[name](name, figures[name])
        if (got > target if is_most else got < target)
    ]
    return rows, _reasons(figures["stages"]) if "stages" in figures else ""


#: What was measured, its target, the figure, and whether the target is an upper bound.
_Figures = Iterator[tuple[str, float, float, bool]]


def _against_triton(name: str, figures: Mapping[str, Any]) -> _Figures:
    for key, triton in figures.items():
        if key.startswith("triton at "):
            connections = key.removeprefix("triton at ")
            own = figures[f"tritonnb at {connections}"]
            yield f"requests/s at {connections}, times Triton's", _RATES[name], triton["ratio"], False
            yield f"p99 at {connections}, times Triton's", 1.0, own["p99_ms"] / triton["p99_ms"], True


def _sequences(name: str, figures: Mapping[str, Any]) -> _Figures:
    yield "requests/s, times Triton's", _RATES[name], figures["ratio"], False
    yield "p99, times Triton's", 1.0, figures["p99_ms"]["tritonnb"] / figures["p99_ms"]["triton"], True


def _in_process(name: str, figures: Mapping[str, Any]) -> _Figures:
    for callers, target in _CALLS.items():
        rates = figures[callers]
        ratio = median(own / other for own, other in zip(rates["in process"], rates["wrk"], strict=True))
        yield f"calls/s of {callers}, times those of wrk over HTTP", target, ratio, False


def _watched(name: str, figures: Mapping[str, Any]) -> _Figures:
    ratios = figures["ratios"]
    yield "p99 at 1,000/s, times that without it", _WATCHED_P99, ratios["p99_ms"], True
    yield "requests/s at saturation, times those without it", _WATCHED_RATE, ratios["rate"], False


_MEASURED = {
    "http": _against_triton, "grpc": _against_triton, "ensemble": _against_triton, "accumulator": _sequences,
    "inprocess": _in_process, "watch": _watched,
}  # fmt: skip


def _reasons(stages: Mapping[str, Any]) -> str:
    """What the stages of a request, and the processor time of threads, say about the limits."""
    one = stages["in process"]["1"]
    woken_us, all_us = one["to the instance"] + one["back to the event loop"], 1e6 / one["rate"]
    shares = [
        f"{sum(values[name] for name in THREAD_TIMES):.0f} of {1e6 / values['rate']:.0f} µs with {count} connections"
        + ("" if case == "in process" else " to an ensemble of two")
        for case in ("in process", "ensemble of two")
        for count, values in stages[case].items()
        if count != "1"
    ]
    return (
        f"Over one connection, {woken_us:.0f} of {all_us:.0f} µs pass from the decision to the begin of the execution "
        "and from its end to the event loop, while a sleeping thread wakes up and gets the interpreter lock. The same "
        "holds for a call in process, which changes between its thread and the event loop twice, as the event loop "
        "decides.\n\n"
        "With more connections the interpreter lock is the limit: it is passed between the event loop and the "
        f"instances, whose processor time takes {', '.join(shares)}. So one process uses about one core, and more "
        "requests per second need less work for each. What each optimisation does about that is in the table of "
        "optimisations; the profile is flat otherwise.\n\n"
        "The p99 with a batch view is that of a third thread that wants to run on two cores, whatever it does "
        "(decision 138 has the experiment)."
    )
