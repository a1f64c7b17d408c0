"""The targets, and the part of the report on those that are not reached: by how much, and what the profile says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.http import INLINE
from benchmarks.stages import DEFAULT, THREAD_TIMES

#: How many times the requests per second of Triton, by benchmark, case and connections; the main targets are those of
#: `benchmarks.ratios`, and the table of the page says which are missed.
_SEVERAL = {"1": 1.2, "8": 1.2, "32": 1.4}
_RATES: dict[str, dict[str, dict[str, float]]] = {
    "http": {
        "two models in turn": _SEVERAL,
        "two instances": _SEVERAL,
    },
    "grpc": {
        "two models in turn": _SEVERAL,
        "two instances": _SEVERAL,
    },
}
#: The same of models with EXECUTE_ON_ANY_THREAD, and of sequences.
_INLINE_RATE, _SEQUENCES_RATE = 2.0, 1.5
#: In-process calls by the number of threads: how many times the requests per second of ``wrk`` over HTTP.
_CALLS = {"1 threads": 1.0}
#: With a batch view, divided by those without one.
_WATCHED_P99, _WATCHED_RATE = 1.05, 0.95
#: Rows per second of dense from 32 clients with a row each, divided by those of bare threads with such batches.
_DENSE, _THREADS, _SHARE = "dense, 1 rows", "2 threads, batches of 16", 0.9
#: This server, and what the report says of it.
_OWN = {"tritonnb": "", INLINE: " with EXECUTE_ON_ANY_THREAD"}
TITLES = {
    "http": "HTTP", "grpc": "gRPC", "accumulator": "sequences", "inprocess": "in process",
    "models": "compute-bound models", "watch": "a batch view",
}  # fmt: skip


def below_target(figures: Mapping[str, Any]) -> tuple[list[tuple[str, str, str, str]], str]:
    """List the figures below their targets (subject, connections, targets, measured figures), and the reasons.

    Parameters
    ----------
    figures : mapping
        The figures of each benchmark, by its name.
    """
    missed: dict[tuple[str, str], list[tuple[str, float, float]]] = {}
    for name in TITLES:
        for what, connections, target, got, is_most in _MEASURED[name](name, figures[name]) if name in figures else ():
            if got > target if is_most else got < target:
                limit = "at most" if is_most else "at least"
                missed.setdefault((f"{TITLES[name]}: {what}", limit), []).append((connections, target, got))
    rows = [(what, *_joined(limit, misses)) for (what, limit), misses in missed.items()]
    reasons = [_of_requests(figures["stages"])] if "stages" in figures else []
    reasons += [why for name, why in _REASONS.items() if any(row[0].startswith(f"{TITLES[name]}:") for row in rows)]
    return rows, "\n\n".join(reasons)


def _joined(limit: str, misses: Sequence[tuple[str, float, float]]) -> tuple[str, str, str]:
    """The connections, targets and figures of the same quantity; equal targets are written once."""
    connections, targets, got = zip(*misses, strict=True)
    targets = targets[:1] if len(set(targets)) == 1 else targets
    texts = (", ".join(f"{value:.2f}" for value in values) for values in (targets, got))
    return (", ".join(connections), f"{limit} {next(texts)}", next(texts))


#: What was measured, with how many connections (empty if that does not vary), its target, the figure, and whether the
#: target is an upper bound.
_Figures = Iterator[tuple[str, str, float, float, bool]]


def _by_case(name: str, figures: Mapping[str, Any]) -> _Figures:
    for case, targets in _RATES[name].items():
        for what, connections, target, got, is_most in _against_triton(figures[case], targets):
            yield f"{case}: {what}", connections, target, got, is_most


def _against_triton(figures: Mapping[str, Any], targets: Mapping[str, float]) -> _Figures:
    for key, own in figures.items():
        server, _, count = key.rpartition(" at ")
        if server in _OWN:
            triton, what = figures[f"triton at {count}"], _OWN[server]
            target = targets[count] if server == "tritonnb" else _INLINE_RATE
            yield f"requests/s{what}", count, target, own["times_triton"], False
            yield f"p99{what}", count, 1.0, own["p99_ms"] / triton["p99_ms"], True


def _sequences(name: str, figures: Mapping[str, Any]) -> _Figures:
    rates, latencies = figures["rate"], figures["p99_ms"]
    for server, what in _OWN.items():
        yield f"requests/s{what}", "", _SEQUENCES_RATE, rates[server] / rates["triton"], False
        yield f"p99{what}", "", 1.0, latencies[server] / latencies["triton"], True


def _in_process(name: str, figures: Mapping[str, Any]) -> _Figures:
    for callers, target in _CALLS.items():
        rates = figures[callers]
        ratio = median(own / other for own, other in zip(rates["in process"], rates["wrk"], strict=True))
        yield f"calls/s of {callers}, times those of wrk over HTTP", "", target, ratio, False


def _compute_bound(name: str, figures: Mapping[str, Any]) -> _Figures:
    what = f"rows/s of {_DENSE}, times those of {_THREADS}, without a server"
    yield what, "", _SHARE, figures[_DENSE][_THREADS], False


def _watched(name: str, figures: Mapping[str, Any]) -> _Figures:
    ratios = figures["ratios"]
    yield "p99 at 1,000/s, times that without it", "", _WATCHED_P99, ratios["p99_ms"], True
    yield "requests/s at saturation, times those without it", "", _WATCHED_RATE, ratios["rate"], False


_MEASURED = {
    "http": _by_case, "grpc": _by_case, "accumulator": _sequences,
    "inprocess": _in_process, "models": _compute_bound, "watch": _watched,
}  # fmt: skip


#: By benchmark: the reason, if one of its figures is below its target.
_REASONS = {
    "inprocess": "Threads that call in process share the interpreter lock, while `wrk` runs on the other core.",
    "models": "The instances of a compute-bound model share the cores with the event loop and the load generator, and "
    "wait for the next requests of the clients of their last batch.",
    "watch": "With a batch view open, a third runnable thread on two cores sets the p99, whatever that thread does "
    "([an experiment](decisions/0038-pushed-views.md)).",
}


def _of_requests(stages: Mapping[str, Any]) -> str:
    """Explain the limits of requests by the stages of a request and the processor time of threads."""
    default, inline = stages[DEFAULT], stages[INLINE]
    shares = [
        f"{sum(values[name] for name in THREAD_TIMES):.0f} of {1e6 / values['rate']:.0f} µs with {count} connections"
        for count, values in default.items()
        if count != "1"
    ]
    gains = ", ".join(f"{values['rate'] / default[count]['rate']:.2f}" for count, values in inline.items())
    return (
        f"Over one connection, {_woken_us(default['1']):.0f} of {1e6 / default['1']['rate']:.0f} µs pass while a "
        "thread wakes up and gets the interpreter lock: the instance before the execution, the event loop after it. "
        "With more connections the interpreter lock limits the server to about one core: the event loop and the "
        f"instance use {', '.join(shares)}. EXECUTE_ON_ANY_THREAD multiplies the rate by {gains}."
    )


def _woken_us(stages: Mapping[str, float]) -> float:
    return stages["to the instance"] + stages["back to the event loop"]
