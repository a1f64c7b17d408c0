"""HTTP against a real Triton's Python backend: identity models, requests as users send them, one load generator.

Each request has its own ID and data. The servers run at the same time and are measured in turn, in several rounds, so
that changes in the speed of the machine affect all of them. The figures are medians of the rounds. This server is
measured twice: by default, and, in the cases that say so, with the same models with the parameter
``EXECUTE_ON_ANY_THREAD``.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import servers
from benchmarks.load import CLIENTS, Measured, Requests, floats, v2_json, wrk

Servers = Mapping[str, AbstractContextManager[str]]
Runs = dict[tuple[str, int], list[Measured]]
#: This server, with Python models that permit the event loop to execute their quick batches.
INLINE = "tritonnb, EXECUTE_ON_ANY_THREAD"
_PARAMETER = 'parameters { key: "EXECUTE_ON_ANY_THREAD" value { string_value: "true" } }\n'

#: FP32 values of an input: 64 bytes, an image of 600 KB, and 8 MB.
SMALL, IMAGE, LARGE = 16, 3 * 224 * 224, 2 * 1024 * 1024
IDENTITY = "identity_fp32"
_COPIES = tuple(f"copy_{number}" for number in range(8))
_TWO_INSTANCES = "two_instances"


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of request.

    Attributes
    ----------
    models : tuple of str
        The models, in turn.
    values : int
        FP32 values each way.
    connections : tuple of int
    is_json : bool
    client : str
        Whose headers the requests have, see `benchmarks.load.CLIENTS`.
    inline : bool
        Whether the models with ``EXECUTE_ON_ANY_THREAD`` are measured, too.
    """

    models: tuple[str, ...] = (IDENTITY,)
    values: int = SMALL
    connections: tuple[int, ...] = (1, 8, 32)
    is_json: bool = False
    client: str = "tritonclient"
    inline: bool = False

    def requests(self) -> Requests:
        """The HTTP requests."""
        if self.is_json:
            return Requests.json(f"/v2/models/{self.models[0]}/infer", v2_json, floats(self.values))
        return Requests.binary(self.models, "INPUT0", floats(self.values), "OUTPUT0", client=self.client)


CASES = {
    "64 bytes each way": Case(inline=True),
    "two models in turn": Case(_COPIES[:2]),
    "eight models in turn": Case(_COPIES),
    "two instances": Case((_TWO_INSTANCES,)),
    "600 KB each way": Case(values=IMAGE, connections=(1, 8)),
    "8 MB each way": Case(values=LARGE, connections=(1, 4)),
    "64 bytes in JSON": Case(is_json=True),
    **{f"headers of {name}": Case(client=name, connections=(8,)) for name in CLIENTS},
}


def http(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Requests of several sizes and kinds to one, two and eight models."""
    repository = users_repository(scratch)
    models = (IDENTITY, *_COPIES, _TWO_INSTANCES)
    started = {
        "triton": servers.triton(repository, scratch),
        "tritonnb": servers.tritonnb(repository, *models),
        INLINE: servers.tritonnb(inline(repository), *models),
    }
    return {**measure_cases(CASES, started, rounds, partial(measure_http, scratch=scratch, seconds=seconds))}


def measure_cases(
    cases: Mapping[str, Case],
    started: Servers,
    rounds: int,
    measure: Callable[[str, Case, int], Measured],
    prefix: str = "",
) -> dict[str, dict[str, object]]:
    """Measure each case on all servers, which run at the same time, in turn; print and return the figures.

    Servers that are measured within seconds of each other find the machine in the same state.
    """
    figures: dict[str, dict[str, object]] = {}
    with ExitStack() as stack:
        urls = {server: stack.enter_context(start) for server, start in started.items()}
        for title, case in cases.items():
            chosen = [server for server in urls if server != INLINE or case.inline]
            runs: Runs = {(server, count): [] for count in case.connections for server in chosen}
            for server in chosen:
                measure(urls[server], case, 0)
            for _, count in itertools.product(range(rounds), case.connections):
                for server in chosen:
                    runs[server, count].append(measure(urls[server], case, count))
                chosen.reverse()
            figures[title] = report(f"{prefix}{title}", runs)
    return figures


def measure_http(url: str, case: Case, connections: int, *, scratch: Path, seconds: int) -> Measured:
    """Check and warm up with 0 connections, or measure."""
    requests = case.requests()
    if connections:
        return wrk(url, requests, connections, seconds, scratch)
    body = requests.send(url)
    if requests.is_binary and case.client == "tritonclient":  # others may accept compressed responses
        assert body == requests.contents[0], f"{url}: expected the input as the output"
    return wrk(url, requests, 8, 1, scratch)


def users_repository(scratch: Path) -> Path:
    """A repository with the identity model, eight copies of it, and one with two instances; all declare nothing."""
    repository = scratch / "users"
    if not repository.exists():
        source = servers.ROOT / "model_repository" / IDENTITY
        for name in (IDENTITY, *_COPIES, _TWO_INSTANCES):
            shutil.copytree(source, repository / name)
            config = repository / name / "config.pbtxt"
            text = config.read_text().replace(f'"{IDENTITY}"', f'"{name}"')
            config.write_text(text.replace("count: 1", "count: 2") if name == _TWO_INSTANCES else text)
    return repository


def ensemble(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """An ensemble of two identities, 1x16 FP32: target 1.5x Triton."""
    repository = ensemble_repository(scratch)
    model = "two_steps"
    started = {
        "triton": servers.triton(repository, scratch, model),
        "tritonnb": servers.tritonnb(repository, model),
        INLINE: servers.tritonnb(inline(repository), model),
    }
    title = "ensemble of two 1x16 FP32 identities"
    cases = {title: Case((model,), inline=True)}
    return measure_cases(cases, started, rounds, partial(measure_http, scratch=scratch, seconds=seconds))[title]


_TWO_STEPS = """
platform: "ensemble" max_batch_size: 64
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
ensemble_scheduling {
  step {
    model_name: "first" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "between" }
  }
  step {
    model_name: "second" model_version: -1
    input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
  }
}
"""


def ensemble_repository(scratch: Path) -> Path:
    """Return a repository with the ensemble ``two_steps`` of two identity models."""
    repository = scratch / "ensemble"
    if not repository.exists():
        source = servers.ROOT / "model_repository" / IDENTITY
        for name in ("first", "second"):
            shutil.copytree(source, repository / name)
            config = repository / name / "config.pbtxt"
            config.write_text(config.read_text().replace(IDENTITY, name).replace("dims: [ -1 ]", "dims: [ 16 ]"))
        (repository / "two_steps" / "1").mkdir(parents=True)
        (repository / "two_steps" / "config.pbtxt").write_text(_TWO_STEPS)
    return repository


def inline(repository: Path) -> Path:
    """Return a copy of a repository whose Python models have the parameter ``EXECUTE_ON_ANY_THREAD``."""
    copy = repository.with_name(f"{repository.name}-inline")
    if not copy.exists():
        shutil.copytree(repository, copy)
        for config in copy.glob("*/config.pbtxt"):
            text = config.read_text()
            if 'backend: "python"' in text:
                config.write_text(text + _PARAMETER)
    return copy


def report(title: str, runs: Mapping[tuple[str, int], Sequence[Measured]]) -> dict[str, object]:
    """Print and return the medians of each server and number of connections, and the ratio of this server's rate."""
    print(f"\n{title}\n{'connections':>12} {'server':>31} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8}  ratio")
    figures: dict[str, dict[str, float]] = {}
    for (name, count), measured in sorted(runs.items(), key=lambda item: item[0][1]):
        ratio = _paired_ratio(runs["tritonnb", count], measured)
        columns = zip(*((run.rate, run.p50, run.p99) for run in measured), strict=True)
        rate, p50, p99 = map(statistics.median, columns)
        shown = "" if name == "tritonnb" else f"{ratio:.2f}x"
        print(f"{count:>12} {name:>31} {rate:>11.0f} {p50:>8.2f} {p99:>8.2f}  {shown}")
        figures[f"{name} at {count}"] = {"rate": rate, "p50_ms": p50, "p99_ms": p99, "ratio": ratio}
        if ("triton", count) in runs:
            figures[f"{name} at {count}"]["times_triton"] = _paired_ratio(measured, runs["triton", count])
    return dict(figures)


def _paired_ratio(measured: Iterable[Measured], reference: Iterable[Measured]) -> float:
    """The median of the ratios of the rates in each round."""
    return statistics.median(one.rate / other.rate for one, other in zip(measured, reference, strict=True))
