"""Predictions of pipelines against what servers then do: random ensembles of models that sleep and models that compute.

Each pipeline is recorded once, at several rates. The twin of the recording predicts it with one or two steps changed,
and `Twin.verify` applies the changes and sends the arrivals, several times, so that the scatter of equal runs is known.
A third of the pipelines runs on a real Triton. Each run of the benchmark draws fresh seeds.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf import text_format

import tritonnb as tnb
from benchmarks import servers
from benchmarks.predictions import is_near, recorded, scatter, share, with_utilization
from benchmarks.tables import table
from tools.differential.random_pipelines import ENSEMBLE, RandomPipeline, random_pipeline
from tritonnb.client.model import Model
from tritonnb.core.errors import TritonError
from tritonnb.lab.figures.picture import Picture
from tritonnb.lab.prediction.prediction import SHARE
from tritonnb.lab.prediction.verify import Verification

PICTURE = servers.ROOT / "docs" / "parity-pipelines.svg"
#: Random pipelines; one of `_ON_TRITON` of them runs on a real Triton.
COUNT, _ON_TRITON = 24, 3
#: Predictions should be that near to the measured figure, in that share of the pipelines, or of their steps.
TARGETS = {"latency_p50_ms": (0.15, 0.8), "latency_p99_ms": (0.25, 0.7), "mean_batch_size": (0.15, 1.0)}
#: The unit of the random times of executions, and the share of the time in which the busiest step is busy.
_UNIT_MS, _UTILIZATION = 3.0, (0.3, 0.85)
_CLIENTS, _REQUESTS = 16, 300
#: A server may crash so many times for one pipeline.
_MOST_CRASHES = 3
_MODEL = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils

WORK = np.ones(80_000)


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "I0").as_numpy() for request in requests]
        ms = {base_ms} + {row_ms} * sum(map(len, inputs))
        {work}
        return [pb_utils.InferenceResponse([pb_utils.Tensor("O", array)]) for array in inputs]
"""
_WORK = {"sleeps": "time.sleep(ms / 1000)", "computes": "[np.sin(WORK) for _ in range(round(ms))]"}


def pipelines(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Random pipelines with one or two steps changed, predicted from one recording and measured, with fresh seeds."""
    rounds = max(2, rounds)
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}", flush=True)
    choose = random.Random(seed)
    rows = []
    for number in range(COUNT):
        rows.append(_verified(scratch, number, seconds, rounds, choose.randrange(10**9)))
        print(_text(rows[-1]), flush=True)
    print(table(*_shares(rows)))
    return {"rows": rows, "rounds": rounds, "seconds": seconds, "seed": seed}


def describe(figures: dict[str, Any]) -> str:
    """Draw predicted against measured values, and list the shares and every miss, in Markdown."""
    rows: list[dict[str, Any]] = figures["rows"]
    draw(rows)
    most = 1 + max(row["latency_p50_ms"]["scatter"] for row in rows)
    missed = [(_title(row), _misses(row), f"{row['duration']:.2f}") for row in rows if _misses(row)]
    return (
        f"{len(rows)} random ensembles of two to five models, a third of them on a real Triton, of a run with the "
        f"fresh seed {figures['seed']}. Each was recorded once, changed in one or two steps, and run "
        f"{figures['rounds']} times; measured figures are the medians. *Equal runs*: how well half of the runs predict "
        f"the others; their p50 differed by up to {most:.1f} times.\n\n"
        f"![Predicted against measured values of pipelines]({PICTURE.name})\n\n"
        + table(*_shares(rows))
        + "\nThe misses, predicted/measured; the last column is how many times as long as in the recording executions "
        "took:\n\n" + table(("pipeline, change, load", "misses", "executions"), missed)
    )


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw a point for each pipeline, or each step, and figure."""
    figure = Picture(figsize=(10, 3.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(TARGETS)), TARGETS, strict=True):
        for on_triton, label in ((False, "in this process"), (True, "on Triton")):
            chosen = _compared([row for row in rows if row["on_triton"] == on_triton], name)
            axes.loglog(
                *zip(*((one["measured"], one["predicted"]) for one in chosen), strict=True), "o", ms=4, label=label
            )
        low, high = axes.get_xlim()
        axes.plot((low, high), (low, high), color="0.6", linewidth=1)
        axes.set(title=name, xlabel="measured", ylabel="predicted")
    axes.legend(fontsize="small")
    PICTURE.write_text(figure.svg_for_both_themes(), encoding="utf-8")


def _compared(rows: list[dict[str, Any]], name: str) -> list[dict[str, float]]:
    """Return a figure of each pipeline; the mean batch sizes of each of their steps."""
    return [figures for row in rows for key, figures in row.items() if key.rpartition(": ")[2] == name]


def _shares(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the lines of the table of shares."""
    head = ("pipelines", *(f"{name} within {within:.0%}" for name, (within, _) in TARGETS.items()), "inside the ranges")
    groups = {
        "in this process": [row for row in rows if not row["on_triton"]],
        "on Triton": [row for row in rows if row["on_triton"]],
        "all": rows,
    }
    lines = []
    for title, group in groups.items():
        known = {name: [{name: one} for one in _compared(group, name)] for name in TARGETS}
        shares = [f"{share(known[name], name, within):.0%}" for name, (within, _) in TARGETS.items()]
        inside = [one[name]["inside"] for name in TARGETS for one in known[name]]
        lines.append((f"{title} ({len(group)})", *shares, f"{statistics.fmean(inside):.0%}"))
    equal = [[{name: one} for one in _compared(rows, name)] for name in TARGETS]
    scatters = (f"{scatter(group, name):.0%}" for group, name in zip(equal, TARGETS, strict=True))
    near = (
        f"{statistics.fmean(one[name]['scatter'] <= within for one in group):.0%}"
        for group, (name, (within, _)) in zip(equal, TARGETS.items(), strict=True)
    )
    lines += [
        ("equal runs, of each other", *near, ""),
        ("difference of equal runs (median)", *scatters, ""),
        ("target", *(f"{target:.0%}" for _, target in TARGETS.values()), f"{SHARE:.0%}"),
    ]
    return head, lines


def _misses(row: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {row[name]['predicted']:.2f}/{row[name]['measured']:.2f}"
        for name in row
        if name.rpartition(": ")[2] in TARGETS and not is_near(row[name], TARGETS[name.rpartition(": ")[2]][0])
    )


def _title(row: Mapping[str, Any]) -> str:
    where = "on Triton" if row["on_triton"] else "in this process"
    return f"{row['models']} {where}; {row['edits']}; {row['rate']:.0f}/s, {row['utilization']:.0%} busy"


def _text(row: Mapping[str, Any]) -> str:
    figures = ", ".join(
        f"{name} {row[name]['predicted']:.2f}/{row[name]['measured']:.2f}"
        for name in row
        if name.rpartition(": ")[2] in TARGETS
    )
    return f"{_title(row)}: {figures}; executions {row['duration']:.2f} times as long as recorded"


def _verified(scratch: Path, number: int, seconds: int, rounds: int, seed: int) -> dict[str, Any]:
    """Record, change and run one random pipeline; return its figures."""
    on_triton = number % _ON_TRITON == 0
    for crashes in range(_MOST_CRASHES):
        choose = random.Random(f"{seed} {crashes}")
        pipeline = random_pipeline(choose, unit_ms=_UNIT_MS)
        kinds = {name: choose.choice(list(_WORK)) for name in pipeline.base_ms}
        edits = _edits(pipeline, choose)
        try:
            with _server(scratch, pipeline, kinds, on_triton) as model:
                runs, rate = _runs(model, edits, choose, seconds, rounds)
            break
        except TritonError as error:  # a Triton that traces every request may crash
            if crashes == _MOST_CRASHES - 1:
                raise
            print(f"started again after: {error}", flush=True)
    compared = {}
    for name in runs[0].measured:
        measured = [run.measured[name] for run in runs]
        halves = [statistics.median(measured[half::2]) for half in (0, 1)]
        compared[name] = {
            "predicted": runs[0].prediction.ranges[name].value,
            "measured": statistics.median(measured),
            "scatter": max(halves) / min(halves) - 1,
            "inside": statistics.mean(name not in run.outside for run in runs),
        }
    return {
        "models": ", ".join(f"{name} {kind} {pipeline.base_ms[name]:.0f} ms" for name, kind in kinds.items()),
        "edits": ", ".join(f"{name} {key} {value}" for name, of in edits.items() for key, value in of.items()),
        "on_triton": on_triton,
        "rate": rate,
        "utilization": runs[0].prediction.utilization.value,
        "duration": statistics.median([run.relative_duration or 1.0 for run in runs]),
        **compared,
    }


def _edits(pipeline: RandomPipeline, choose: random.Random) -> dict[str, dict[str, Any]]:
    """Return changes of one or two steps: another number of instances, another delay, larger batches."""
    edits = {}
    for name in choose.sample(list(pipeline.base_ms), choose.choice((1, 2))):
        config = pipeline.configs[name]
        possible: list[dict[str, Any]] = [{"count": 3 - config.instance_group[0].count}]
        if config.HasField("dynamic_batching"):
            delay_us = config.dynamic_batching.max_queue_delay_microseconds
            possible.append({"max_queue_delay_microseconds": 0 if delay_us else choose.choice((2000, 5000))})
            possible.append({"max_batch_size": 16})  # an ensemble has at most the batch size of each step
        edits[name] = choose.choice(possible)
    return edits


def _runs(
    model: Model, edits: dict[str, dict[str, Any]], choose: random.Random, seconds: int, rounds: int
) -> tuple[list[Verification], float]:
    """Return the verifications of equal runs, and their rate."""
    most = tnb.load(model, clients=_CLIENTS, requests=_REQUESTS).wait().rate
    twin = recorded(model, most, seconds, choose.randrange(10**9))
    busy = choose.uniform(*_UTILIZATION)
    span_s = 3 * seconds
    arrivals = with_utilization(twin, twin.edited(models=edits), busy, span_s, choose.randrange(10**9))
    return [twin.verify(model, edits, arrivals=arrivals) for _ in range(rounds)], len(arrivals) / span_s


@contextmanager
def _server(scratch: Path, pipeline: RandomPipeline, kinds: Mapping[str, str], on_triton: bool) -> Iterator[Model]:
    repository = Path(tempfile.mkdtemp(dir=scratch))
    for name, config in pipeline.configs.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text_format.MessageToString(config))
        if name in kinds:
            times = {"base_ms": pipeline.base_ms[name], "row_ms": pipeline.row_ms[name]}
            (version / "model.py").write_text(_MODEL.format(work=_WORK[kinds[name]], **times))
    if not on_triton:
        with tnb.Server(repository, port=0) as server:
            yield server[ENSEMBLE]
        return
    grpc = servers.free_port()  # Triton may crash while it traces every request of many HTTP connections
    options = [f"--trace-config=triton,file={repository}.json", "--model-control-mode=explicit"]
    options += [f"--load-model={name}" for name in (*pipeline.base_ms, ENSEMBLE)]
    with servers.triton(repository, scratch, ENSEMBLE, grpc, options):
        yield tnb.connect(f"grpc://127.0.0.1:{grpc}")[ENSEMBLE]
