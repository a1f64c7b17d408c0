"""Predictions of twins against what servers then do: random configurations, rates and traffic of seven models.

The speed of a machine changes within minutes. So each model is recorded again before each run: the twin of the
recording predicts the configuration, and `Twin.verify` applies it and sends the arrivals, several times, so that the
scatter of equal runs is known. These are twice as far apart in time as a run and its recording, and each loads the
model anew. Three models sleep, four compute; three of them run on a real Triton; one has stalls that are injected, and
half of the traffic has bursts, so that large batches are rare. The instances of *computing* use one thread each, as
those of the models in this process; those of *threading* use as many as there are cores, the default of NumPy.

Each run draws fresh seeds, so nothing was tuned on what it publishes. A third of the configurations is kept for
publication: their figures are never printed one by one, so that nobody tunes on them later either.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import tritonnb as tnb
from benchmarks import servers
from benchmarks.recordings import Setup
from benchmarks.tables import table
from tritonnb.client.model import Model
from tritonnb.core.errors import TritonError
from tritonnb.lab.figures.picture import Picture
from tritonnb.lab.prediction.prediction import SHARE, Figures, simulated_figures
from tritonnb.lab.prediction.timed_models import TimedModels
from tritonnb.lab.prediction.twin import Twin
from tritonnb.lab.prediction.verify import COMPARED, Verification
from tritonnb.recording.arrivals import Arrival
from tritonnb.server.model_handle import ModelHandle

PICTURE = servers.ROOT / "docs" / "parity.svg"
#: Random configurations of each model; one of `_PUBLISHED` of them is kept for publication.
COUNT, _PUBLISHED = 9, 3
#: Bursts per second where traffic has them, and their requests.
_BURSTS_PER_S, _BURST = 1.0, (4, 12)
#: Predictions should be that near to the measured figure, in that share of the configurations.
TARGETS = {"latency_p50_ms": (0.10, 0.85), "mean_batch_size": (0.10, 0.85), "latency_p99_ms": (0.20, 0.75)}
#: Of models that compute, the target for the p50.
_COMPUTING_TARGET = 0.75
#: The columns of a line for a class of configurations.
_HEADS = (
    "configurations",
    *(f"{name} within {within:.0%} (equal runs)" for name, (within, _) in TARGETS.items()),
    "inside the ranges",
    "inside those for the requests as they reached the server",
    f"difference of equal runs in {', '.join(TARGETS)} (median)",
)
_SLEEPING = Setup(instances=2, max_rows=8, delay_us=1000, base_ms=4.0, row_ms=0.5, rate=0.0)
#: A rate above what any of the models can execute, in requests per second.
_OVERLOAD = 100_000.0
#: Shares of the time in which instances are busy, and in how many steps a rate for them is sought.
_UTILIZATION, _HALVINGS = (0.2, 0.9), 7
#: The rates of a recording, as shares of that of many clients who wait for their responses. Those of the runs lie
#: between.
_RECORDED = (0.05, 0.12, 0.3, 0.7)
_CLIENTS, _REQUESTS = 32, 500
#: A server may crash so many times while one model runs; the configuration that it ran is run again.
_MOST_CRASHES = 5
#: A verification takes this many times the seconds of the option: as long as a recording.
_VERIFIED = len(_RECORDED)
#: The figures of the twin of a recording from before all runs of the model, and the measured ones.
_EARLIER = ("from_earlier", "measured")
#: The predicted figures for the requests as they reached the server, and the measured ones.
_ARRIVED = ("for_arrived", "measured")
#: The figures of a twin of the first run itself, and of this run.
_ITSELF = ("from_itself", "first")


def predictions(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Random configurations of seven models, predicted and measured, with fresh seeds; a third of them is published."""
    rounds = max(2, rounds)
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}", flush=True)
    rows = list(_verified(scratch, seconds, rounds, random.Random(seed)))
    print(table(_HEADS, _class_lines(rows)))
    return {"rows": rows, "rounds": rounds, "seconds": seconds * _VERIFIED, "seed": seed}


def inside_share(rows: list[dict[str, Any]], which: str = "inside") -> float:
    """Return the share of the measured figures of single runs that are inside the stated ranges.

    With ``inside_arrived``, of the ranges for the requests as they reached the server.
    """
    shares: list[float] = [row[name][which] for row in rows for name in COMPARED]
    return statistics.mean(shares)


def describe(figures: dict[str, Any]) -> str:
    """Draw predicted against measured values, and list the shares and every miss, in Markdown."""
    rows: list[dict[str, Any]] = figures["rows"]
    draw(rows)
    shares = _class_lines(rows)
    models = {_model(row): [other for other in rows if other["model"] == row["model"]] for row in rows}
    worst = min(models, key=lambda model: share(models[model], "latency_p50_ms", TARGETS["latency_p50_ms"][0]))
    repeatable = {name: _repeatable(rows, name) for name in TARGETS}
    others = {
        "for the requests as they reached the server": _ARRIVED,
        "recorded once, before all runs of the model": _EARLIER,
        "learned from the first run itself": _ITSELF,
    }
    for title, pair in others.items():
        shares.append((title, *(f"{share(rows, name, TARGETS[name][0], pair):.0%}" for name in TARGETS), "", "", ""))
    shares.append(
        (
            "those whose equal runs differ by less",
            *(
                f"{share(equal, name, TARGETS[name][0]):.0%} of {len(equal)}" if equal else "none"
                for name, equal in repeatable.items()
            ),
            *("", "", ""),
        )
    )
    shares.append(("target", *(f"{target:.0%}" for _, target in TARGETS.values()), "", f"{SHARE:.0%}", ""))
    shares.append(("target for models that compute", f"{_COMPUTING_TARGET:.0%}", *[""] * 5))
    most = 1 + max(row["latency_p50_ms"]["scatter"] for row in rows)
    misses = {
        f"{_titled(row)}, {row['duration']:.2f}": [
            "" if is_near(row[name], within) else f"{row[name]['predicted']:.2f}/{row[name]['measured']:.2f}"
            for name, (within, _) in TARGETS.items()
        ]
        for row in rows
    }
    return (
        f"{len(rows)} random configurations of seven models, three of them on a real Triton, of a run with the fresh "
        f"seed {figures['seed']}: nothing was tuned on them. The worst class is *{worst}*. Each was recorded, "
        f"predicted and run in turn, {figures['rounds']} times for {figures['seconds']} s each, since the speed of the "
        "machine changes; predicted and measured figures are the medians. Of the measured figures of single runs, "
        f"{inside_share(rows):.0%} are inside the stated ranges, which should contain {SHARE:.0%}, and "
        f"{inside_share(rows, 'inside_arrived'):.0%} inside the ranges for the requests as they reached the server: "
        "some later than planned, and then closer together. Ranges do not account for that. *Learned from the first "
        "run itself*: the error of the twin's model, without that of a machine that is faster or slower than in "
        "the recording. *Equal runs*: how well half of the runs predict the others, which had the same requests and "
        "configuration, and were twice as far apart in time as a run and its recording; their p50 differed by up to "
        f"{most:.1f} times. *threading* computes with as many threads in each instance as there are cores.\n\n"
        f"![Predicted against measured values]({PICTURE.name})\n\n"
        + table(_HEADS, shares)
        + "\nThe misses, predicted/measured; 2×16 are two instances with at most 16 rows, 1.15 means that executions "
        "took 1.15 times as long as predicted for that configuration:\n\n"
        + table(("configuration", *TARGETS), [(title, *missed) for title, missed in misses.items() if any(missed)])
    )


def _class_lines(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the line of each model, of those that sleep and compute, of the kept third, and of all, for `_HEADS`."""
    groups = {_model(row): [other for other in rows if other["model"] == row["model"]] for row in rows}
    groups |= {
        "all models that sleep": [row for row in rows if not _computes(row)],
        "all models that compute": [row for row in rows if _computes(row)],
        "the third kept for publication": [row for row in rows if row["published"]],
        "all": rows,
    }
    return [
        (
            f"{title} ({len(group)})",
            *(
                f"{share(group, name, within):.0%} ({len(_repeatable(group, name)) / len(group):.0%})"
                for name, (within, _) in TARGETS.items()
            ),
            f"{inside_share(group):.0%}",
            f"{inside_share(group, 'inside_arrived'):.0%}",
            ", ".join(f"{scatter(group, name):.0%}" for name in TARGETS),
        )
        for title, group in groups.items()
        if group
    ]


def _computes(row: Mapping[str, Any]) -> bool:
    return not str(row["model"]).startswith(("sleeping", "stalling"))


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw a point for each configuration and figure to *docs/parity.svg*."""
    figure = Picture(figsize=(10, 3.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(TARGETS)), TARGETS, strict=True):
        for model in dict.fromkeys(row["model"] for row in rows):
            pairs = [(row[name]["measured"], row[name]["predicted"]) for row in rows if row["model"] == model]
            axes.loglog(*zip(*pairs, strict=True), "o", markersize=4, label=model)
        low, high = axes.get_xlim()
        axes.plot((low, high), (low, high), color="0.6", linewidth=1)
        axes.set(title=name, xlabel="measured", ylabel="predicted")
    axes.legend(fontsize="small")
    PICTURE.write_text(figure.svg_for_both_themes(), encoding="utf-8")


def scatter(rows: list[dict[str, Any]], name: str) -> float:
    """Return the median of the relative differences between equal runs."""
    differences: list[float] = [row[name]["scatter"] for row in rows]
    return statistics.median(differences)


def is_near(compared: Mapping[str, float], within: float, pair: tuple[str, str] = ("predicted", "measured")) -> bool:
    """Return whether the first figure of a pair is that close to the second one, relative to it."""
    predicted, measured = pair
    return abs(compared[predicted] / compared[measured] - 1) <= within


def share(rows: list[dict[str, Any]], name: str, within: float, *pair: tuple[str, str]) -> float:
    """Return the share of the configurations whose figure was predicted that closely."""
    return [is_near(row[name], within, *pair) for row in rows].count(True) / len(rows)


def _repeatable(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the configurations whose equal runs are as close to each other as predictions should be."""
    return [row for row in rows if row[name]["scatter"] <= TARGETS[name][0]]


def _verified(scratch: Path, seconds: int, rounds: int, choose: random.Random) -> Iterator[dict[str, Any]]:
    for title, start, names in _MODELS:
        for name in names:
            pending = [(number, choose.randrange(10**9), *_at_random(choose)) for number in range(COUNT)]
            crashes = 0
            while pending:
                try:
                    with start(scratch, name) as model:
                        most = tnb.load(model, clients=_CLIENTS, requests=_REQUESTS).wait().rate
                        earlier = recorded(model, most, seconds, choose.randrange(10**9))
                        while pending:
                            number, seed, edits, utilization = pending[0]
                            figures = _row(model, most, earlier, seed, edits, utilization, seconds, rounds)
                            published = number % _PUBLISHED == 0
                            row = {"model": f"{name} {title}", "published": published, **figures}
                            _show(row)
                            yield row
                            del pending[0]
                except TritonError as error:  # a Triton that traces every request may crash
                    crashes += 1
                    if crashes > _MOST_CRASHES:
                        raise
                    print(f"{name} {title}: started again after: {error}", flush=True)


def _at_random(choose: random.Random) -> tuple[dict[str, Any], float]:
    """Return edits of a configuration, and the share of the time in which its instances are busy."""
    edits = {
        "max_queue_delay_microseconds": choose.choice((0, 500, 1000, 2000, 5000)),
        "max_batch_size": choose.choice((4, 8, 16)),
        "instance_count": choose.choice((1, 2)),
    }
    return edits, choose.uniform(*_UTILIZATION)


def _row(
    model: Model, most: float, earlier: Twin, seed: int, edits: dict[str, Any], utilization: float,
    seconds: int, rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """Record, predict and run one configuration several times; return its figures."""
    twin = recorded(model, most, seconds, seed)
    arrivals = with_utilization(twin, twin.edited(edits), utilization, seconds * _VERIFIED, seed)
    runs = [twin.verify(model, arrivals=arrivals, **edits)]
    later = (recorded(model, most, seconds, seed + number) for number in range(1, rounds))
    runs += [twin.verify(model, arrivals=arrivals, **edits) for twin in later]
    return {
        **edits,
        **_compared(runs, earlier, arrivals),
        "rate": len(arrivals) / (seconds * _VERIFIED),
        "utilization": runs[0].prediction.utilization.value,
        "duration": statistics.median([run.relative_duration or 1.0 for run in runs]),
    }


def _compared(runs: list[Verification], earlier: Twin, arrivals: list[Arrival]) -> dict[str, dict[str, float]]:
    """Return each figure as predicted and measured: the medians of the runs, the first one, and the scatter."""
    edits, recording = runs[0].edits, runs[0].recording
    assert recording is not None
    itself, before = (twin.predict(arrivals=arrivals, **edits) for twin in (recording.twin(), earlier))
    compared = {}
    for name in COMPARED:
        measured = [run.measured[name] for run in runs]
        halves = [statistics.median(measured[half::2]) for half in (0, 1)]
        compared[name] = {
            "predicted": statistics.median(run.prediction.ranges[name].value for run in runs),
            "measured": statistics.median(measured),
            "for_arrived": statistics.median(run.arrived.ranges[name].value for run in runs if run.arrived),
            "from_earlier": before.ranges[name].value,
            "from_itself": itself.ranges[name].value,
            "first": measured[0],
            "scatter": max(halves) / min(halves) - 1,
            "inside": statistics.mean(name not in run.outside for run in runs),
            "inside_arrived": statistics.mean(name not in run.outside_arrived for run in runs),
        }
    return compared


def _show(row: Mapping[str, Any]) -> None:
    if row["published"]:
        print(f"{_titled(row)}: kept for publication", flush=True)
        return
    figures = ", ".join(f"{name} {row[name]['predicted']:.2f}/{row[name]['measured']:.2f}" for name in TARGETS)
    print(f"{_titled(row)}: {figures}, executions {row['duration']:.2f} times as long as predicted", flush=True)


def _model(row: Mapping[str, Any]) -> str:
    return str(row["model"]).removesuffix(" in this process")


def _titled(row: Mapping[str, Any]) -> str:
    config = f"{row['max_queue_delay_microseconds']} µs, {row['instance_count']}×{row['max_batch_size']}"
    return f"{_model(row)}, {config}, {row['rate']:.0f}/s, {row['utilization']:.0%}"


def _traffic(rate: float, seconds: int, seed: int) -> list[Arrival]:
    """Return arrivals at random; with every other seed some come in bursts, which form large batches that are rare."""
    rng = random.Random(seed)
    times_us = [arrival.time_us for arrival in tnb.poisson(rate, seconds, seed=seed)]
    if seed % 2:
        for _ in range(round(_BURSTS_PER_S * seconds)):
            times_us += [rng.uniform(0, seconds * 1e6)] * rng.randint(*_BURST)
    return [Arrival(time_us) for time_us in sorted(times_us)]


def recorded(model: Model, most: float, seconds: int, seed: int) -> Twin:
    """Record a model, or an ensemble and its steps, at shares of the rate that is the most it can execute.

    Returns its twin.
    """
    arrivals = [
        Arrival(arrival.time_us + part * seconds * 1e6)
        for part, share_of_most in enumerate(_RECORDED)
        for arrival in _traffic(most * share_of_most, seconds, seed + 2 * part)
    ]
    if isinstance(model, ModelHandle):
        recording = tnb.load(model, arrivals=arrivals).wait().recording
    else:
        with model.server.record(None if model.running_config().ensemble_scheduling.step else model.name) as recording:
            tnb.load(model, arrivals=arrivals).wait()
    assert recording is not None
    twin: Twin = recording.twin()
    return twin


def with_utilization(twin: Twin, models: TimedModels, utilization: float, seconds: int, seed: int) -> list[Arrival]:
    """Return requests that are predicted to keep the instances busy for that share of the time."""

    def simulated(arrivals: list[Arrival]) -> Figures:
        return simulated_figures(models, arrivals, seed)

    low, high = 0.0, simulated(twin.arrivals(_OVERLOAD)).throughput
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        arrivals = _traffic(rate, seconds, seed)
        low, high = (rate, high) if simulated(arrivals).utilization < utilization else (low, rate)
    return arrivals


@contextmanager
def _own(scratch: Path, name: str) -> Iterator[Model]:
    repository = Path(tempfile.mkdtemp(dir=scratch))
    if name in _WRITTEN:
        _write(repository / name, name)
    else:
        shutil.copytree(servers.ROOT / "model_repository" / name, repository / name)
        config = repository / name / "config.pbtxt"
        config.write_text(config.read_text().replace("count: 1", "count: 2"))
    with tnb.Server(repository, port=0) as server:
        yield server[name]


@contextmanager
def _triton(scratch: Path, name: str) -> Iterator[Model]:
    repository = Path(tempfile.mkdtemp(dir=scratch))
    _write(repository / name, name)
    trace = f"--trace-config=triton,file={repository}.json"
    grpc = servers.free_port()  # Triton may crash while it traces every request of many HTTP connections
    options = [trace, "--model-control-mode=explicit", f"--load-model={name}"]
    variables = {} if name == "threading" else {"OPENBLAS_NUM_THREADS": "1"}
    with servers.triton(repository, scratch, name, grpc, options, variables):
        yield tnb.connect(f"grpc://127.0.0.1:{grpc}")[name]


def _write(directory: Path, name: str) -> None:
    """Write a model of `_WRITTEN`: one that sleeps, with other work in its executions."""
    _SLEEPING.write(directory)
    program = directory / "1" / "model.py"
    lines = program.read_text().splitlines(keepends=True)
    [sleeps] = [line for line in lines if line.lstrip().startswith("time.sleep(")]
    indent = sleeps[: len(sleeps) - len(sleeps.lstrip())]
    work = {"sleeping": sleeps, "stalling": sleeps + _STALL}.get(name, _COMPUTE)
    inserted = "".join(f"{indent}{line.strip()}\n" for line in work.splitlines())
    imports = "import random\nimport numpy as np\nWEIGHTS = np.ones((512, 512), np.float32)\n"
    program.write_text(imports + "".join(inserted if line is sleeps else line for line in lines))


#: Stalls of 20 to 60 ms in one of a hundred executions, and products of matrices in place of sleeping.
_STALL = "time.sleep(random.random() < 0.01 and random.uniform(0.02, 0.06))"
_COMPUTE = "[WEIGHTS @ WEIGHTS for _ in range(2 + sum(map(len, inputs)))]"
_WRITTEN = ("sleeping", "stalling", "computing", "threading")
#: Where a model runs, its server, and the names of the models.
_MODELS: tuple[tuple[str, Callable[[Path, str], AbstractContextManager[Model]], tuple[str, ...]], ...] = (
    ("in this process", _own, ("sleeping", "stalling", "dense", "magika")),
    ("on Triton", _triton, ("sleeping", "computing", "threading")),
)
