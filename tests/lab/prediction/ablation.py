"""Which rules of the learned times pay: each is switched off, and predictions are judged with and without it.

``python -m tests.lab.prediction.ablation SCENARIOS [FIRST_SEED]`` draws scenarios of simulated truth with fresh seeds,
and validates the recordings of servers in `RECORDINGS`, whose parts are predicted from one another. The score is the
continuous ranked probability score of the logarithms, in percent: it judges the middle of the simulations and their
spread. A positive difference says that predictions are worse without the rule. Rules for what most scenarios lack have
a truth of their own: executions that slow each other down after they began, runs of different speed, idle instances,
pauses.
"""

from __future__ import annotations

import gzip
import math
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import tritonnb as tnb
from tests.lab.conftest import RECORDINGS
from tests.lab.prediction.scenarios import random_scenario, random_service
from tests.lab.prediction.shared_machine import SharedMachine
from tritonnb.lab.analysis import learned_times, typical_times
from tritonnb.lab.analysis.learned_times import LearnedTimes
from tritonnb.lab.analysis.typical_times import TypicalTimes
from tritonnb.lab.prediction.cross_validation import validated_parts
from tritonnb.lab.prediction.prediction import Figures, simulated_figures
from tritonnb.lab.prediction.resampled_arrivals import rate_of, resampled_arrivals
from tritonnb.lab.prediction.timed_models import TimedModels, recorded_latencies
from tritonnb.lab.simulation.run import instance_count
from tritonnb.lab.simulation.service import Draw, VaryingService
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.recording.arrivals import Arrival

#: Simulations of each prediction, and runs of the truth.
RUNS, TRUTHS = 6, 2
NAMES = ("latency_p50_ms", "latency_p99_ms", "mean_batch_size")

#: What is replaced to switch off a rule about the times of batch sizes: owner, name, value.
TIMES: dict[str, list[tuple[Any, str, Any]]] = {
    "few executions are believed to a limit": [(typical_times, "_BELIEVED", math.inf)],
    "rare sizes borrow strength": [
        (typical_times.SizeTimes, "own_share", property(lambda size: 1.0 if size.times_ns else 0.0))
    ],
    "times never fall with the size": [
        (typical_times, "never_decreasing", lambda times: {rows: statistics.median(own) for rows, own in times.items()})
    ],
    "near sizes weigh more": [(typical_times, "_closeness", lambda distance: 1.0)],
    "frequent sizes weigh more": [(typical_times, "_worth", lambda count: 1.0)],
    "only proven growth below the smallest size": [(TypicalTimes, "_growth_beyond", lambda *parts: _growth(*parts))],
    "stalls of rare sizes are found by neighbours": [(typical_times, "_not_stalled", lambda *parts: _own(*parts))],
    "any execution of a frequent size may be stalled": [(typical_times, "RARE_COUNT", math.inf)],
}
#: The same of other rules of simulated executions.
EXECUTIONS: dict[str, list[tuple[Any, str, Any]]] = {
    "the only instance is faster": [(LearnedTimes, "for_instances", lambda times, count: times)],
    "variation of undisturbed executions": [(LearnedTimes, "_undisturbed", lambda times, pairs: pairs)],
    "idle time makes executions longer": [(LearnedTimes, "_idle_effect", (0.0, 0.0, 0.0))],
    "the speed of runs differs": [(LearnedTimes, "speed_variation", 0.0)],
    "pauses are shortened": [(LearnedTimes, "without_pauses", property(lambda times: times))],
    "times of rare sizes differ by run": [(TypicalTimes, "deviation", lambda times, rows: 0.0)],
    "instances have their speeds": [(learned_times, "instance_names", lambda config: [])],
}


#: The rules that matter only if a server with several instances gets a single one.
OF_SINGLE = list(EXECUTIONS)[:2]


def _own(rows: int, times: list[float], points: Any) -> list[float]:
    limit = typical_times.STALL_FACTOR * statistics.median(times)
    return [one for one in times if one < limit]


def _growth(times: TypicalTimes, upwards: bool) -> float:
    edge = times.sizes[times._rows[-1 if upwards else 0]]
    points = [
        (one.rows, one.typical_ns, typical_times._worth(max(1, len(one.times_ns)))) for one in times.sizes.values()
    ]
    return min(typical_times._line(typical_times._weighted(points, edge.rows))[1], edge.typical_ns / edge.rows)


class Machine(VaryingService):
    """The machine of a scenario, which drifts, and has instances that slow each other down or have different speeds."""

    def __init__(self, seed: int, machine: VaryingService) -> None:
        rng = random.Random(f"{seed} machine")
        self.function = machine.function
        self.machine = machine
        self.slow_down = rng.choice((0.0, 0.0, 0.15, 0.5))
        self.speeds = rng.choice(([1.0], [1.0], [1.0, 1.6], [1.3, 1.0, 2.0]))
        self.drift, self.period_s = rng.choice((0.0, 0.0, 0.1, 0.25)), rng.uniform(2, 10)

    def draws(self, seed: int) -> Draw:
        """Return the times of one run."""
        time_ns, begin = self.machine.draws(seed), random.Random(seed).random()

        def draw(rows: int, now_ns: int, busy: int, idle_ns: int, server_idle_ns: int, instance: int) -> float:
            factor = (1 + self.slow_down * (busy - 1)) * self.speeds[instance % len(self.speeds)]
            factor *= math.exp(self.drift * math.sin(math.tau * (begin + now_ns / 1e9 / self.period_s)))
            return factor * time_ns(rows, now_ns, busy, idle_ns, server_idle_ns, instance)

        return draw


class Differing(VaryingService):
    """The machine of a scenario, with a speed that changes slowly, and instances that are slow after an idle time."""

    def __init__(self, seed: int, machine: VaryingService, sigma: float, change_s: float, cold_ns: float) -> None:
        rng = random.Random(f"{seed} differing")
        self.function = machine.function
        self.machine = machine
        self.seed = seed
        self.sigma, self.change_ns = sigma, change_s * 1e9
        self.cold_ns, self.idle_ns = cold_ns, 1e6 * rng.choice((3, 10, 30))

    def draws(self, seed: int) -> Draw:
        """Return the times of one run."""
        time_ns, rng = self.machine.draws(seed), random.Random(f"{self.seed} {seed} speed")
        speed, last_ns = rng.gauss(0, self.sigma), 0

        def draw(rows: int, now_ns: int, busy: int, idle_ns: int, server_idle_ns: int, instance: int) -> float:
            nonlocal speed, last_ns
            kept = math.exp((last_ns - max(now_ns, last_ns)) / self.change_ns)
            speed = kept * speed + rng.gauss(0, self.sigma * math.sqrt(1 - kept**2))
            last_ns = max(now_ns, last_ns)
            cold_ns = self.cold_ns if idle_ns > self.idle_ns else 0.0
            return time_ns(rows, now_ns, busy, idle_ns, server_idle_ns, instance) * math.exp(speed) + cold_ns

        return draw


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Switch a rule off."""
    with ExitStack() as stack:
        for owner, name, value in {**TIMES, **EXECUTIONS}.get(rule, []):
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


def score(values: Sequence[float], truth: float) -> float:
    """Return the continuous ranked probability score of a sample, fair for its size."""
    pairs = math.fsum(abs(one - other) for one in values for other in values)
    return statistics.fmean(abs(one - truth) for one in values) - pairs / (2 * len(values) * (len(values) - 1))


def scores(simulated: Sequence[Figures], recorded: Sequence[Figures]) -> dict[str, float]:
    """Return the score of each figure, in percent."""
    found = {}
    for name in NAMES:
        values = [math.log(max(1e-9, one.value(name))) for one in simulated]
        truths = [math.log(max(1e-9, one.value(name))) for one in recorded]
        found[name] = 100 * statistics.fmean(score(values, truth) for truth in truths)
    return found


def judge_scenario(seed: int) -> dict[str, dict[str, float]]:
    """Return the scores in one scenario, without each rule; "" with all."""
    scenario = random_scenario(seed)
    machine = Machine(seed, scenario.machine)
    rec = tnb.simulate(scenario.config, scenario.recording.arrivals(), machine, seed=1)
    [recorded] = rec.configs.values()
    edits, rate = scenario.edits, scenario.rate / (1 + machine.slow_down) / statistics.fmean(machine.speeds)
    if instance_count(recorded) > 1 and seed % 2:
        edits, rate = {"count": 1}, min(rate, 0.4e9 / scenario.service(1) / max(machine.speeds))
    config = with_overrides(recorded, edits)
    becomes_single = instance_count(config) == 1 < instance_count(recorded)
    unused = [] if becomes_single else OF_SINGLE
    truth = []
    for number in range(11, 11 + TRUTHS):
        sent = scenario.arrivals(number)
        scaled = [one.at(one.time_us * scenario.rate / rate) for one in sent]
        outcome = tnb.simulate(config, scaled, machine, seed=number)
        truth.append(figures_of(outcome))
    found: dict[str, dict[str, float]] = {}
    for rule in ("", *EXECUTIONS):
        if rule in unused:
            found[rule] = found[""]
            continue
        with without(rule):
            models = TimedModels.of(rec, "ablation").edited({"m": edits}, "ablation")
            scale = rate_of(models.arrivals) / rate
            runs = [
                simulated_figures(models, resampled_arrivals(models.arrivals, number, scale), number)
                for number in range(RUNS)
            ]
        found[rule] = scores(runs, truth)
    return found


def judge_shared(seed: int) -> dict[str, dict[str, float]]:
    """Return the scores where executions slow each other down for as long as both run, and one instance is kept."""
    rng = random.Random(f"{seed} shared")
    service, largest, sigma = random_service(rng), rng.choice((1, 4, 8)), rng.choice((0.02, 0.05, 0.1))
    slow_down, locked = rng.choice(((0.1, 0.0), (0.3, 0.0), (0.6, 0.0), (1.0, 0.0), (0.0, 0.2), (0.0, 0.4), (0.0, 0.7)))
    machine = SharedMachine(service, sigma, slow_down, locked * service(1))
    alone = 1e9 / service(1)
    most = 0.8 * max(alone, largest * 1e9 / service(largest))
    rate, then = (min(rng.uniform(*bounds) * alone, most) for bounds in ((0.5, 1.3), (0.4, 0.8)))

    def outcome(number: int, rate: float, count: int) -> tnb.Recording:
        times = tnb.poisson(rate, 1000 / rate, seed=seed + number)
        return machine.record([round(one.time_us * 1000) for one in times], count, largest, f"{seed} {number}")

    truth = [figures_of(outcome(number, then, 1)) for number in range(1, 1 + TRUTHS)]
    return judged(outcome(0, rate, 2), {"count": 1}, then, truth, OF_SINGLE)


def judge_differing(seed: int, kind: str) -> dict[str, dict[str, float]]:
    """Return the scores where runs differ in speed, which changes within seconds, or with idle times or a pause."""
    scenario, rng = random_scenario(seed), random.Random(f"{seed} {kind}")
    recorded = scenario.recording.arrivals()
    if kind == "idle":
        machine, rate = Differing(seed, scenario.machine, 0, 1, scenario.service(1) * rng.choice((0.1, 0.3, 1))), 0.6
        rules = ["idle time makes executions longer"]
    elif kind == "pause":
        machine, rate = Differing(seed, scenario.machine, 0, 1, 0), 0.8
        rules = ["pauses are shortened"]
        half, pause_us = len(recorded) // 2, 10 * recorded[-1].time_us
        recorded = [one.at(one.time_us + pause_us * (number >= half)) for number, one in enumerate(recorded)]
    else:
        machine, rate = Differing(seed, scenario.machine, rng.choice((0.05, 0.1, 0.2)), float(kind), 0), 0.8
        rules = ["the speed of runs differs"]
    rec = tnb.simulate(scenario.config, recorded, machine, seed=1)
    config = with_overrides(next(iter(rec.configs.values())), scenario.edits)
    truth = []
    for number in range(11, 11 + TRUTHS):
        sent = [one.at(one.time_us / rate) for one in scenario.arrivals(number)]
        truth.append(figures_of(tnb.simulate(config, sent, machine, seed=number)))
    sent = scenario.recording.arrivals()  # without the pause
    return judged(rec, scenario.edits, rate * scenario.rate, truth, rules, sent)


def figures_of(outcome: tnb.Recording) -> Figures:
    """Return the figures of a recording."""
    models = TimedModels.of(outcome, "ablation")
    return Figures.from_latencies(recorded_latencies(outcome, models), models.instances_of(1))


def judged(
    rec: tnb.Recording,
    edits: dict[str, Any],
    rate: float,
    truth: Sequence[Figures],
    rules: Sequence[str],
    sent: Sequence[Arrival] | None = None,
) -> dict[str, dict[str, float]]:
    """Return the scores at a rate without each of some rules, and how often the truth is inside the simulations."""
    found = {}
    for rule in ("", *rules):
        with without(rule):
            models = TimedModels.of(rec, "ablation").edited({"m": edits}, "ablation")
            known = sent or models.arrivals
            scale = rate_of(known) / rate
            runs = [
                simulated_figures(models, resampled_arrivals(known, number, scale), number) for number in range(RUNS)
            ]
        found[rule] = scores(runs, truth)
        for name in NAMES[:2]:
            values = [one.value(name) for one in runs]
            inside = [min(values) <= one.value(name) <= max(values) for one in truth]
            found[rule][f"inside, {name}"] = 100 * statistics.fmean(inside)
    return found


def read(path: Path) -> tnb.Recording:
    """Return a compressed recording."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / path.stem
        file.write_bytes(gzip.decompress(path.read_bytes()))
        return tnb.Recording.load(file)


def judge_recording(rec: tnb.Recording) -> Iterator[dict[str, dict[str, float]]]:
    """Yield the scores of each part of a recording, predicted from the others."""
    parts: dict[str, list[dict[str, float]]] = {}
    for rule in ("", *EXECUTIONS):
        with without(rule):
            models = TimedModels.of(rec, "ablation")
            known = validated_parts(models, recorded_latencies(rec, models), 1)
            parts[rule] = [scores(part.simulated, [part.recorded]) for part in known]
    for number in range(len(parts[""])):
        yield {rule: of_rule[number] for rule, of_rule in parts.items()}


def judge_times(times_ns: Mapping[int, Sequence[float]], truth: Mapping[int, float]) -> dict[str, dict[str, float]]:
    """Return how far the typical times are from true times, in percent, without each rule; "" with all."""
    found = {}
    for rule in ("", *TIMES):
        with without(rule):
            typical = TypicalTimes(times_ns)
            off = [abs(math.log(max(1.0, typical(rows)) / true)) for rows, true in truth.items()]
        found[rule] = {"times": 100 * statistics.fmean(off), "largest": 100 * max(off)}
    return found


def random_times(seed: int) -> dict[str, dict[str, float]]:
    """Return the same for random sizes, of which large ones are rare, and follow stalls."""
    rng = random.Random(f"{seed} times")
    service, sigma = random_service(rng), rng.choice((0.02, 0.1, 0.2))
    largest, count, fall = rng.choice((4, 8, 16)), round(10 ** rng.uniform(1.3, 3)), rng.uniform(0.2, 0.9)
    stalled, scale = rng.choice((0.0, 0.003, 0.01, 0.03)), 10 ** rng.uniform(-0.5, 1)
    each = rng.choice((1, 1, 1, 2))  # rows of a request
    least = each * rng.choice((1, 1, 1, 2))
    after_stall = False
    times: dict[int, list[float]] = defaultdict(list)
    for _ in range(count):
        sizes = range(least, largest + 1, each)
        [rows] = rng.choices(sizes, [(1.0 if after_stall else fall) ** rows for rows in sizes])
        # A busy machine often stalls twice, so that the large batch after a stall is stalled, too.
        after_stall = rng.random() < (0.3 if after_stall else stalled)
        extra = scale * rng.uniform(0.5, 1.5) if after_stall else 0.0
        times[rows].append(service(rows) * (math.exp(rng.gauss(0, sigma)) + extra))
    return judge_times(times, {rows: float(service(rows)) for rows in range(1, largest + 1)})


def recorded_times(rec: tnb.Recording) -> Iterator[dict[str, dict[str, float]]]:
    """Yield the same for each eighth of a recording, against medians of the others."""
    executions = [one for one in rec.service().executions if not one.first]
    size = len(executions) // 8
    for part in range(8):
        inside: dict[int, list[float]] = defaultdict(list)
        outside: dict[int, list[float]] = defaultdict(list)
        for number, one in enumerate(executions):
            (inside if number // size == part else outside)[one.rows].append(float(one.time_ns))
        truth = {rows: statistics.median(known) for rows, known in outside.items() if len(known) >= 5}
        yield judge_times(inside, truth)


def table(title: str, judged: Sequence[dict[str, dict[str, float]]]) -> str:
    """Return how much worse the scores are without each rule, with standard errors, in Markdown."""
    names = list(judged[0][""])
    lines = [
        f"| {title}, {len(judged)} cases, without | " + " | ".join(names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for rule in filter(None, judged[0]):
        cells = []
        for name in names:
            # Where a rule is not used, it is not judged.
            changes = [one[rule][name] - one[""][name] for one in judged if one[rule] is not one[""]]
            if len(changes) < 2:
                cells.append("not judged")
                continue
            error = statistics.stdev(changes) / math.sqrt(len(changes))
            cells.append(f"{statistics.fmean(changes):+.2f} ± {error:.2f} ({len(changes)})")
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    means = " | ".join(f"{statistics.fmean(one[''][name] for one in judged):.2f}" for name in names)
    return "\n".join([*lines, f"| (with all rules) | {means} |", ""])


def main(count: int, first: int) -> None:
    """Print the tables."""
    print(f"seeds {first} to {first + count - 1}\n")
    print(
        table("times in simulated truth", [random_times(seed) for seed in range(first, first + 10 * count)]), flush=True
    )
    recordings = [read(path) for path in sorted(RECORDINGS.glob("*.jsonl.gz"))]
    print(table("times in recordings", [one for rec in recordings for one in recorded_times(rec)]), flush=True)
    judged = []
    for number, seed in enumerate(range(first, first + count)):
        judged.append(judge_scenario(seed))
        if number % 10 == 9 or number == count - 1:
            print(table("simulated truth", judged), flush=True)
    print(table("recordings", [one for rec in recordings for one in judge_recording(rec)]), flush=True)
    seeds = range(first, first + count)
    print(table("one instance of two is kept", [judge_shared(seed) for seed in seeds]), flush=True)
    for kind in ("2", "20", "200", "idle", "pause"):
        title = f"speed of {kind} s" if kind.isdigit() else kind
        print(table(title, [judge_differing(seed, kind) for seed in seeds]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else random.randrange(10**6))
