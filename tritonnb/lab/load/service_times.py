"""`service_times`: measure the execution time of a model by batch size, and the maximum rate of its server.

Each batch size is measured with sequential requests of that many rows. A closed loop of many clients then measures the
overhead of the server per request, which dominates for small models; it is added for each request of a batch. Both are
repeated, and the medians are used. Other work of the machine only increases times, so within a repetition the lower
quartile is used.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from statistics import median
from threading import Event

from tritonnb.client.address import ModelAddress
from tritonnb.core.arguments import require_positive
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.typical_times import never_decreasing
from tritonnb.lab.load.examples import Inputs, Shapes
from tritonnb.lab.load.load import AnyModel, config_of, find_model, load
from tritonnb.lab.load.result import LoadResult
from tritonnb.lab.load.trial import apply_config, restored, wait_for_load
from tritonnb.lab.load.workload import LoadOptions
from tritonnb.lab.simulation.service import mean_compute_ms, table
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.recording.batches import Batch
from tritonnb.server.model_handle import ModelHandle
from tritonnb.telemetry.quantiles import quantile
from tritonnb.telemetry.statistics_entry import difference

#: Number of repetitions, because the speed of machines varies.
_ROUNDS = 3
#: Requests per batch size and repetition: minimum, maximum, and the seconds that they may take.
_MIN_REQUESTS, _MAX_REQUESTS, _TIME_S = 4, 20, 0.01
#: The quantile of repeated times that is used.
_LOW = 0.25
#: All batch sizes are measured if that takes at most this many seconds; otherwise some of them.
_MAX_DURATION_S = 5.0
#: Requests of the closed loop: minimum, and number per client; and the number of ignored first batches.
_MIN_CONCURRENT, _PER_CLIENT, _WARM_UP = 24, 8, 3
#: The server, not the model, limits the rate if executions take less than this share of the time.
_BUSY = 0.7


@dataclass(frozen=True)
class Measurement:
    """Measured service times of a model.

    Attributes
    ----------
    times : dict of int to float
        Milliseconds by batch size, never decreasing (medians of the repetitions); for `tritonnb.table`.
    rounds : list of dict of int to float
        The same for each repetition, to estimate the noise.
    max_rate : float
        Maximum requests per second of the server; infinity if the model is the limit, or if it is unknown.
    """

    times: dict[int, float]
    rounds: list[dict[int, float]]
    max_rate: float


@with_short_traceback
@with_checked_types
def service_times(
    model: AnyModel,
    name: str | None = None,
    *,
    sizes: Collection[int] | None = None,
    rows: int = 1,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    seed: int = 0,
) -> dict[int, float]:
    """Measure the milliseconds that a model takes by batch size, for `tritonnb.table`.

    For a model of this process the times include the overhead of the server per request; for a URL they are the
    compute times of the server's statistics.

    Parameters
    ----------
    model, name
        As for `load`.
    sizes : collection of int, optional
        Rows of the batches to measure, multiples of ``rows``. By default all up to ``max_batch_size``, or
        powers of two and ``max_batch_size`` if all would take too long. A stateful model batches its sequences: it is
        measured with that many concurrent sequences, and the sizes that it formed are returned.
    rows : int, optional
        Rows of each request.
    inputs, shapes, seed
        As for `load`.

    Raises
    ------
    InvalidArgumentError
        If a size is invalid, or all requests failed.
    UnavailableError
        If no server responds.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     times = tnb.service_times(server["double"], sizes=[1, 8])
    >>> sorted(times)
    [1, 8]
    """
    source = find_model(model, name)
    limit = max(1, config_of(source).max_batch_size)
    if sizes is not None:
        _check(source.name, sizes, rows, limit)
    traffic: LoadOptions = {"inputs": inputs, "shapes": shapes, "seed": seed}
    return measure(Meter(source, rows, traffic, Event()), limit, sizes).times


def measure_for(meter: Meter, configs: Collection[pb.ModelConfig]) -> Measurement:
    """Measure a model at the batch sizes that other configurations of it can form.

    If they allow larger batches than the running one, a model of this process runs with the largest ``max_batch_size``
    during the measurement.
    """
    model, running = meter.model, config_of(meter.model)
    limit = max(1, *(config.max_batch_size for config in configs))
    required_sizes = {config.max_batch_size for config in configs}
    required_sizes |= {rows for config in configs for rows in config.dynamic_batching.preferred_batch_size}
    if limit <= max(1, running.max_batch_size) or isinstance(model, ModelAddress):
        return measure(meter, min(limit, max(1, running.max_batch_size)), required_sizes=required_sizes)
    with restored(model):
        apply_config(model, with_overrides(running, {"max_batch_size": limit}))
        return measure(meter, limit, required_sizes=required_sizes)


def measure(
    meter: Meter, limit: int, sizes: Collection[int] | None = None, required_sizes: Collection[int] = ()
) -> Measurement:
    """Measure a model; see `service_times`.

    Parameters
    ----------
    meter : Meter
    limit : int
        The largest batch.
    sizes : collection of int, optional
        The rows of the batches to measure.
    required_sizes : collection of int, optional
        Without ``sizes``: those that are measured even if not all possible sizes are.

    Raises
    ------
    InvalidArgumentError
        If all requests failed.
    StoppedError
        If the meter was stopped.
    """
    model = meter.model
    if meter.config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(
            f"model '{model.name}' expected a model that executes batches, got an ensemble: measure its steps"
        )
    chosen = sorted(sizes) if sizes is not None else _choose_sizes(meter, limit, required_sizes)
    rounds, rates = [], []
    for _ in range(_ROUNDS):
        times = _never_decreasing(meter.times(chosen))
        if not times:
            raise InvalidArgumentError(
                f"model '{model.name}': expected at least one successful execution to measure, got: {meter.error}"
            )
        cost_ms, max_rate = (0.0, math.inf) if isinstance(model, ModelAddress) else meter.concurrent_load(times, limit)
        rounds.append({rows: ms + cost_ms * rows / meter.request_rows for rows, ms in times.items()})
        rates.append(max_rate)
    by_size = {rows: [times[rows] for times in rounds if rows in times] for rows in sorted(set().union(*rounds))}
    medians = {rows: median(values) for rows, values in by_size.items()}
    return Measurement(_never_decreasing(medians), rounds, max(rates))


def _never_decreasing(times: Mapping[int, float]) -> dict[int, float]:
    return never_decreasing({rows: [ms] for rows, ms in times.items()})


def _check(name: str, sizes: Collection[int], request_rows: int, limit: int) -> None:
    require_positive(rows=request_rows)
    if not sizes:
        raise InvalidArgumentError(
            "sizes expected the rows of the batches to measure, such as [1, 8], got an empty collection"
        )
    for rows in sizes:
        if not isinstance(rows, int) or not 1 <= rows <= limit or rows % request_rows:
            multiples = f" that are multiples of rows={request_rows}" if request_rows > 1 else ""
            raise InvalidArgumentError(f"sizes for '{name}' expected numbers from 1 to {limit}{multiples}, got {rows}")


def _choose_sizes(meter: Meter, limit: int, required_sizes: Collection[int]) -> list[int]:
    """Return all possible batch sizes, or some of them if all would take too long."""
    request_rows = meter.request_rows
    largest = max(request_rows, limit // request_rows * request_rows)
    powers = {request_rows << power for power in range(largest.bit_length()) if request_rows << power <= largest}
    required = {rows for rows in required_sizes if request_rows <= rows <= largest and rows % request_rows == 0}
    some = sorted(powers | {largest} | required)
    begin = time.monotonic()
    for rows in some:
        meter.times([rows])  # this also warms the model up
    each_s = (time.monotonic() - begin) / len(some)
    every = range(request_rows, largest + 1, request_rows)
    return list(every) if len(every) * each_s * _ROUNDS <= _MAX_DURATION_S else some


def _requests(seconds: float) -> int:
    return round(min(_MAX_REQUESTS, max(_MIN_REQUESTS, _TIME_S / max(seconds, 1e-6))))


@dataclass
class Meter:
    """A meter that sends loads to one model and measures its executions.

    Attributes
    ----------
    model : ModelHandle or ModelAddress
    request_rows : int
        Rows of each request.
    traffic : dict
        Further arguments of `load`.
    stopping : Event
        Set to stop the measurement.
    error : str
        The latest error of a request.
    """

    model: ModelHandle | ModelAddress
    request_rows: int
    traffic: LoadOptions
    stopping: Event
    error: str = "no batch was executed; responses from a cache are not measured"
    _request_s: dict[int, float] = field(default_factory=dict)

    @cached_property
    def config(self) -> pb.ModelConfig:
        """The configuration that the model has when the measurement begins."""
        return config_of(self.model)

    @property
    def stateful(self) -> bool:
        """True if the model batches sequences."""
        return bool(self.config.HasField("sequence_batching"))

    def request_s(self, rows: int) -> float:
        """Measure the seconds from a request with this many rows to its response, after a warmup request."""
        if rows not in self._request_s:
            self._send(rows, 1)
            result = self._send(rows, 1)
            self._request_s[rows] = max(result.latencies_ms, default=0.0) / 1e3
        return self._request_s[rows]

    def times(self, sizes: Collection[int]) -> dict[int, float]:
        """Measure the milliseconds of an execution by batch size, in one repetition."""
        times_by_size: dict[int, list[float]] = defaultdict(list)
        for rows in sizes:
            result, executed = self._executed(rows, _requests(self.request_s(rows)))
            self.error = next(iter(result.errors), self.error)
            if result.failed < result.requests:
                for size, ms in executed:
                    if size == rows or self.stateful:
                        times_by_size[size].append(ms)
        return {rows: quantile(sorted(times), _LOW) for rows, times in times_by_size.items()}

    def _executed(self, rows: int, requests: int) -> tuple[LoadResult, list[tuple[int, float]]]:
        """Return rows and milliseconds of executions; for a server in another process, only the means."""
        if not isinstance(self.model, ModelAddress):
            result = self._send(rows, requests, record=True)
            assert result.recording is not None
            return result, [(batch.size, batch.compute_ns / 1e6) for batch in result.recording.batches]
        before = self.model.stats()
        result = self._send(rows, requests)
        new = difference(self.model.stats(), before)
        return result, [(row["batch_size"], mean_compute_ms(row)) for row in new["batch_stats"]]

    def concurrent_load(self, times: dict[int, float], limit: int) -> tuple[float, float]:
        """Measure the server overhead in ms per request of a batch, and the server's maximum requests per second."""
        clients = max(2, 2 * limit // self.request_rows)
        requests = max(_MIN_CONCURRENT, _PER_CLIENT * clients)
        result = self._load(clients, requests, self.request_rows, record=True)
        assert result.recording is not None
        service, added, busy = table(times), [], []
        for batch, following in _following(result.recording.batches):
            ms = (following.exec_start_ns - batch.exec_start_ns) / 1e6
            busy.append(service(batch.size) / 1e6 / max(ms, 1e-6))
            if following.reason.facts["idle_ns"] == 0 and batch.size <= max(times):
                added.append((ms - service(batch.size) / 1e6) / len(batch.requests))
        cost_ms = max(0.0, quantile(sorted(added), _LOW)) if added else 0.0
        return cost_ms, result.rate if busy and median(busy) < _BUSY else math.inf

    def _send(self, rows: int, requests: int, record: bool = False) -> LoadResult:
        """Send sequential requests with this many rows; to a stateful model, this many concurrent sequences."""
        if self.stateful:
            return self._load(rows, rows * max(2, requests), 1, record)
        return self._load(1, requests, rows, record)

    def _load(self, clients: int, requests: int, rows: int, record: bool) -> LoadResult:
        options: LoadOptions = {**self.traffic, "clients": clients, "requests": requests}
        if self.stateful:
            options["sequence_length"] = max(1, requests // clients)
        elif self.config.max_batch_size > 0:
            options["rows"] = rows
        return wait_for_load(load(self.model, record=record, **options), self.stopping)


def _following(batches: list[Batch]) -> Iterator[tuple[Batch, Batch]]:
    """Return pairs of successive batches of an instance."""
    instances: dict[str, list[Batch]] = defaultdict(list)
    for batch in batches[_WARM_UP:]:
        instances[batch.instance].append(batch)
    return chain.from_iterable(map(pairwise, instances.values()))
