"""How long a live model takes for batches of each size, and what the server carries, found by asking it.

More and more clients ask at once. Where batches follow each other without a pause, what counts is the time
from one to the next: it holds what the server itself does for a batch and its requests, which is most of
it for a small model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.profile.examples import Inputs, Shapes
from tritonnb.profile.load import load
from tritonnb.profile.result import LoadResult
from tritonnb.profile.trial import finished
from tritonnb.recording.batches import Batch

if TYPE_CHECKING:
    from tritonnb.model_handle import ModelHandle

#: Requests of each number of clients: at least, and for each client.
_LEAST, _EACH = 24, 8
#: Batches at the beginning that are left out, since models warm up.
_WARM_UP = 3
#: Sizes that came less often are left out, if others came often enough.
_ENOUGH = 3
#: If full batches fill less of the time than this while requests wait, not the model is the limit.
_BUSY = 0.7


@dataclass(frozen=True)
class Measurement:
    """What was measured of a model.

    Attributes
    ----------
    times : dict of int to float
        Milliseconds by batch size (lower quartiles); for `tritonnb.table`.
    most : float
        Requests a second that the server carries, whatever the model; infinity where the model is what
        limits it.
    """

    times: dict[int, float]
    most: float


def service_times(
    model: ModelHandle, *, size: int = 1, inputs: Inputs = "random", shapes: Shapes | None = None, seed: int = 0
) -> dict[int, float]:
    """Milliseconds that a model takes by batch size, measured with real traffic; for `tritonnb.table`.

    Parameters
    ----------
    model : ModelHandle
    size : int, optional
        Rows of each request.
    inputs, shapes, seed
        As for `load`.

    Raises
    ------
    InvalidArgumentError
        If the model answered nothing but errors.
    """
    return measure(model, size=size, inputs=inputs, shapes=shapes, seed=seed, stopping=Event()).times


def measure(
    model: ModelHandle, *, size: int, inputs: Inputs, shapes: Shapes | None, seed: int, stopping: Event
) -> Measurement:
    """Measure a model; see `service_times`.

    Raises
    ------
    InvalidArgumentError
        If the model answered nothing but errors.
    Stopped
        If nobody wants to know any more.
    """
    stateful = model.served.config.HasField("sequence_batching")
    limit = max(1, model.served.spec.max_batch_size)
    found: dict[int, list[float]] = defaultdict(list)
    for clients in _clients(limit, size):
        requests = max(_LEAST, _EACH * clients)
        asked: dict[str, Any] = {"sequence_length": requests // clients} if stateful else {"size": size}
        traffic = load(
            model, clients=clients, requests=requests, inputs=inputs, shapes=shapes, seed=seed, record=True, **asked
        )
        result = finished(traffic, stopping)
        if result.failed == result.requests:
            raise InvalidArgumentError(f"model '{model.name}' cannot be measured: {next(iter(result.errors), '')}")
        for rows, ms in _times(result):
            found[rows].append(ms)
    return _measurement(found, result)


def _measurement(found: dict[int, list[float]], crowd: LoadResult) -> Measurement:
    """Times by batch size, and what a crowd of clients got, if those times do not explain it."""
    assert crowd.recording is not None
    times = _believed(found)
    largest = max(times)
    instances = len(crowd.recording.instances)
    busy = crowd.summary()["rows_per_second"] / largest * times[largest] / 1000 / instances
    return Measurement(times, crowd.rate if busy < _BUSY else math.inf)


def _believed(found: dict[int, list[float]]) -> dict[int, float]:
    """A time for each size: what else the machine does only adds to them, so low ones count."""
    often = {rows: times for rows, times in found.items() if len(times) >= _ENOUGH} or found
    believed: dict[int, float] = {}
    least = math.inf
    for rows in sorted(often, reverse=True):
        least = min(least, float(np.percentile(often[rows], 25)))
        believed[rows] = least
    return dict(sorted(believed.items()))


def _clients(limit: int, size: int) -> Iterator[int]:
    """Powers of two, the last of which has two of the largest batches in flight."""
    clients = 1
    while clients * size < 2 * limit:
        yield clients
        clients *= 2
    yield clients


def _times(result: LoadResult) -> Iterator[tuple[int, float]]:
    """Rows and milliseconds of each batch: to the next one, where that followed at once."""
    assert result.recording is not None
    instances: dict[str, list[Batch]] = defaultdict(list)
    for batch in result.recording.batches[_WARM_UP:]:
        instances[batch.instance].append(batch)
    for batches in instances.values():
        for batch, following in pairwise(batches):
            at_once = following.reason.facts["idle_ns"] == 0
            end_ns = following.exec_start_ns if at_once else batch.exec_end_ns
            yield batch.size, (end_ns - batch.exec_start_ns) / 1e6
