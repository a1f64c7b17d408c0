"""How long a model takes for batches of each size, and what its server carries, found by asking it.

Each size is measured by requests of that many rows, one at a time, so that no size is left to chance. A crowd of
clients then shows what the server itself does for each request, which is most of the time of a small model; that is
added for each request of a batch. Both are repeated, and medians count. What else a machine does only adds to the
times, so within a repetition low ones (the lower quartile) count.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.field_overrides import with_overrides
from tritonnb.profile.examples import Inputs, Shapes
from tritonnb.profile.find_model import config_of, find_model
from tritonnb.profile.load import load
from tritonnb.profile.remote import RemoteModel
from tritonnb.profile.result import LoadResult
from tritonnb.profile.trial import apply, finished
from tritonnb.recording.batches import Batch
from tritonnb.simulation.arrivals import require_positive
from tritonnb.simulation.service import table

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle
    from tritonnb.server.server import Server

#: How often everything is measured; machines are not equally fast at all times.
_ROUNDS = 3
#: Requests of one size in one round: as many as fit into the time, between these numbers.
_FEWEST, _MOST, _TIME_S = 4, 20, 0.01
#: The percentile of times that counts.
_LOW = 25
#: Every possible size is measured where that takes less than this (seconds); otherwise some sizes are.
_PATIENCE_S = 5.0
#: Requests of the crowd: at least, and for each client; its first batches are left out, since models warm up.
_LEAST, _EACH, _WARM_UP = 24, 8, 3
#: If executions fill less of the time than this while requests wait, not the model is the limit.
_BUSY = 0.7


@dataclass(frozen=True)
class Measurement:
    """What was measured of a model.

    Attributes
    ----------
    times : dict of int to float
        Milliseconds by batch size, never decreasing (medians of the rounds); for `tritonnb.table`.
    rounds : list of dict of int to float
        The same of each round alone: how far they are apart shows how sure the times are.
    most : float
        Requests a second that the server carries, whatever the model; infinity where the model is what
        limits it, or where it is not known.
    """

    times: dict[int, float]
    rounds: list[dict[int, float]]
    most: float


def service_times(
    model: ModelHandle | Server | RemoteModel | str,
    name: str | None = None,
    *,
    sizes: Collection[int] | None = None,
    size: int = 1,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    seed: int = 0,
) -> dict[int, float]:
    """Milliseconds that a model takes by batch size, measured with real traffic; for `tritonnb.table`.

    For a model of this process they include what the server does for each request of a batch; for a URL they are the
    compute time of the server's statistics.

    Parameters
    ----------
    model, name
        As for `load`.
    sizes : collection of int, optional
        Rows of the batches to measure, multiples of ``size``. By default every one up to ``max_batch_size``; powers
        of two and ``max_batch_size`` where all of them would take too long. A stateful model forms batches of its
        sequences: it is measured with so many of them, and the sizes that it formed are returned.
    size : int, optional
        Rows of each request.
    inputs, shapes, seed
        As for `load`.

    Raises
    ------
    InvalidArgumentError
        If a size is not possible, or the model answered nothing but errors.
    UnavailableError
        If no server answers.

    Examples
    --------
    >>> tnb.service_times(server["digits"], sizes=[1, 8, 32])  # doctest: +SKIP
    >>> tnb.service_times("http://127.0.0.1:8000/v2/models/digits")  # doctest: +SKIP
    """
    found = find_model(model, name)
    limit = max(1, config_of(found).max_batch_size)
    if sizes is not None:
        _check(found.name, sizes, size, limit)
    traffic = {"inputs": inputs, "shapes": shapes, "seed": seed}
    return measure(found, limit=limit, sizes=sizes, size=size, traffic=traffic, stopping=Event()).times


def measure_for(
    model: ModelHandle | RemoteModel,
    configs: Collection[pb.ModelConfig],
    size: int,
    traffic: dict[str, Any],
    stopping: Event,
) -> Measurement:
    """Measure a model at the batch sizes that other configurations of it can form; parameters as of `measure`.

    Where they allow larger batches than the running one, a model of this process runs with the largest meanwhile.
    """
    running = config_of(model)
    limit = max(1, *(config.max_batch_size for config in configs))
    marks = {config.max_batch_size for config in configs}
    marks |= {rows for config in configs for rows in config.dynamic_batching.preferred_batch_size}
    measuring = partial(measure, model, marks=marks, size=size, traffic=traffic, stopping=stopping)
    if limit <= max(1, running.max_batch_size) or isinstance(model, RemoteModel):
        return measuring(limit=min(limit, max(1, running.max_batch_size)))
    apply(model, with_overrides(running, {"max_batch_size": limit}))
    try:
        return measuring(limit=limit)
    finally:
        apply(model, running)


def measure(
    model: ModelHandle | RemoteModel,
    *,
    limit: int,
    sizes: Collection[int] | None = None,
    marks: Collection[int] = (),
    size: int,
    traffic: dict[str, Any],
    stopping: Event,
) -> Measurement:
    """Measure a model; see `service_times`.

    Parameters
    ----------
    limit : int
        The largest batch.
    marks : collection of int
        Sizes to measure also where not every one is.
    traffic : dict
        More arguments of `load`.
    stopping : Event
        Set when the measurement is not wanted any more.

    Raises
    ------
    InvalidArgumentError
        If the model answered nothing but errors.
    StoppedError
        If it is not wanted any more.
    """
    config = config_of(model)
    if config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(f"model '{model.name}' is an ensemble, which executes nothing: measure its steps")
    meter = _Meter(model, size, config.HasField("sequence_batching"), config.max_batch_size > 0, traffic, stopping)
    chosen = sorted(sizes) if sizes is not None else _every_size(meter, limit, size, marks)
    rounds, rates = [], []
    for _ in range(_ROUNDS):
        times = never_decreasing(meter.times(chosen))
        if not times:
            raise InvalidArgumentError(f"model '{model.name}' cannot be measured: {meter.error}")
        cost_ms, most = (0.0, math.inf) if isinstance(model, RemoteModel) else meter.crowd(times, limit)
        rounds.append({rows: ms + cost_ms * rows / size for rows, ms in times.items()})
        rates.append(most)
    by_size = {rows: [times[rows] for times in rounds if rows in times] for rows in sorted(set().union(*rounds))}
    medians = {rows: float(np.median(values)) for rows, values in by_size.items()}
    return Measurement(never_decreasing(medians), rounds, max(rates))


def never_decreasing(times: Mapping[int, float]) -> dict[int, float]:
    """The nearest times (least absolute differences) of which none is below that of a smaller batch.

    Examples
    --------
    >>> never_decreasing({1: 1.0, 2: 4.0, 3: 2.0, 4: 5.0})
    {1: 1.0, 2: 3.0, 3: 3.0, 4: 5.0}
    """
    pools: list[list[float]] = []
    for rows in sorted(times):
        pools.append([times[rows]])
        while len(pools) > 1 and np.median(pools[-2]) > np.median(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    level = [float(np.median(pool)) for pool in pools for _ in pool]
    return dict(zip(sorted(times), level, strict=True))


def _check(name: str, sizes: Collection[int], size: int, limit: int) -> None:
    require_positive(size=size)
    if not sizes:
        raise InvalidArgumentError("sizes is empty: expected the rows of the batches to measure, such as [1, 8]")
    for rows in sizes:
        if not isinstance(rows, int) or not 1 <= rows <= limit or rows % size:
            multiples = f" that are multiples of size={size}" if size > 1 else ""
            raise InvalidArgumentError(f"sizes for '{name}' expected numbers from 1 to {limit}{multiples}, got {rows}")


def _every_size(meter: _Meter, limit: int, size: int, marks: Collection[int]) -> list[int]:
    """Every size that batches can have, or some of them where that would take too long."""
    largest = max(size, limit // size * size)
    powers = {size << power for power in range(largest.bit_length()) if size << power <= largest}
    some = sorted(powers | {largest} | {rows for rows in marks if size <= rows <= largest and rows % size == 0})
    begin = time.monotonic()
    for rows in some:
        meter.times([rows])  # this also warms the model up
    each_s = (time.monotonic() - begin) / len(some)
    every = range(size, largest + 1, size)
    return list(every) if len(every) * each_s * _ROUNDS <= _PATIENCE_S else some


def _requests(seconds: float) -> int:
    return round(min(_MOST, max(_FEWEST, _TIME_S / max(seconds, 1e-6))))


class _Meter:
    """Traffic on one model, and what the server did meanwhile."""

    def __init__(
        self,
        model: ModelHandle | RemoteModel,
        size: int,
        stateful: bool,
        batches: bool,
        traffic: dict[str, Any],
        stopping: Event,
    ) -> None:
        self._model = model
        self._size = size
        self._stateful = stateful
        self._batches = batches
        self._traffic = traffic
        self._stopping = stopping
        self._request_s: dict[int, float] = {}
        self.error = "no batch was executed; responses from a cache are not measured"

    def request_s(self, rows: int) -> float:
        """Seconds from a request of so many rows to its response; the first one warms the model up."""
        if rows not in self._request_s:
            self._send(rows, 1)
            result = self._send(rows, 1)
            self._request_s[rows] = max(result.latencies_ms, default=0.0) / 1e3
        return self._request_s[rows]

    def times(self, sizes: Collection[int]) -> dict[int, float]:
        """Milliseconds of an execution by batch size, of one round."""
        found: dict[int, list[float]] = defaultdict(list)
        for rows in sizes:
            result, executed = self._executed(rows, _requests(self.request_s(rows)))
            self.error = next(iter(result.errors), self.error)
            if result.failed < result.requests:
                for size, ms in executed:
                    if size == rows or self._stateful:
                        found[size].append(ms)
        return {rows: float(np.percentile(times, _LOW)) for rows, times in found.items()}

    def _executed(self, rows: int, requests: int) -> tuple[LoadResult, list[tuple[int, float]]]:
        """Rows and milliseconds of executions; of a server in another process only means are known."""
        if not isinstance(self._model, RemoteModel):
            result = self._send(rows, requests, record=True)
            assert result.recording is not None
            return result, [(batch.size, batch.compute_ns / 1e6) for batch in result.recording.batches]
        before = _sums(self._model.stats())
        result = self._send(rows, requests)
        means = []
        for size, (ns, count) in _sums(self._model.stats()).items():
            earlier_ns, earlier = before.get(size, (0, 0))
            if count > earlier:
                means.append((size, (ns - earlier_ns) / (count - earlier) / 1e6))
        return result, means

    def crowd(self, times: dict[int, float], limit: int) -> tuple[float, float]:
        """Milliseconds that the server adds for each request of a batch, and the requests a second that it carries."""
        clients = max(2, 2 * limit // self._size)
        requests = max(_LEAST, _EACH * clients)
        result = self._load(clients, requests, self._size, record=True)
        assert result.recording is not None
        service, added, busy = table(times), [], []
        for batch, following in _following(result.recording.batches):
            ms = (following.exec_start_ns - batch.exec_start_ns) / 1e6
            busy.append(service(batch.size) / 1e6 / max(ms, 1e-6))
            if following.reason.facts["idle_ns"] == 0 and batch.size <= max(times):
                added.append((ms - service(batch.size) / 1e6) / len(batch.requests))
        cost_ms = max(0.0, float(np.percentile(added, _LOW))) if added else 0.0
        return cost_ms, result.rate if busy and np.median(busy) < _BUSY else math.inf

    def _send(self, rows: int, requests: int, record: bool = False) -> LoadResult:
        """Requests of so many rows one at a time; of a stateful model, so many sequences at once."""
        if self._stateful:
            return self._load(rows, rows * max(2, requests), 1, record)
        return self._load(1, requests, rows, record)

    def _load(self, clients: int, requests: int, rows: int, record: bool) -> LoadResult:
        asked: dict[str, Any] = {"size": rows if self._batches else None}
        if self._stateful:
            asked = {"sequence_length": max(1, requests // clients)}
        traffic = load(self._model, clients=clients, requests=requests, record=record, **asked, **self._traffic)
        return finished(traffic, self._stopping)


def _sums(stats: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Nanoseconds and executions by batch size."""
    parts = ("compute_input", "compute_infer", "compute_output")
    return {
        int(entry["batch_size"]): (
            sum(int(entry[part]["ns"]) for part in parts),
            int(entry["compute_infer"]["count"]),
        )
        for entry in stats.get("batch_stats", [])
        if "compute_infer" in entry
    }


def _following(batches: list[Batch]) -> Iterator[tuple[Batch, Batch]]:
    """Batches with the next one of the same instance."""
    instances: dict[str, list[Batch]] = defaultdict(list)
    for batch in batches[_WARM_UP:]:
        instances[batch.instance].append(batch)
    return chain.from_iterable(map(pairwise, instances.values()))
