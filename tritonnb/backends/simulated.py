"""The backend ``simulated``: a model that answers zeros, or a function's results, after the time of another model.

For load tests of clients and autoscalers, and for a class without a GPU. The version directory has a file *times.json*,
written by `tritonnb.lab.simulation.simulated_model.write_times` or by hand::

    {"source": "who measured it, where", "ms": {"1": [5.2, 5.3], "8": [31.2]}, "slow_down": {"1": 1.0, "2": 1.6}}

``ms`` has the measured execution times by batch size in rows, stalls included: each execution takes one of those of its
size at random; other sizes take the time of the nearest size, in proportion to what lies between. ``slow_down`` is the
factor by the number of instances that are busy, with 1 for those that are missing. Of a decoupled model, ``responses``
has the times of the responses of some requests in ms after the execution began, of which each request takes one list at
random, for example ``[[30, 35, 40], [30]]``; without it, each request gets one response. Of a model with iterative
sequences, ``steps`` has how often some requests were executed, such as ``[12, 30]``; each step sends a response.
"""

from __future__ import annotations

import functools
import json
import math
import random
import statistics
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution, ResponseSender
from tritonnb.backends.functions import Function, FunctionInstance
from tritonnb.core.errors import InvalidArgumentError, NotFoundError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.model_config.schema import ModelSpec

#: The file of the times in the version directory.
TIMES_FILE = "times.json"
#: A longer execution would keep its instance from stopping.
_LONGEST_MS = 600_000.0


#: More requests than a model can have slots are not waiting for their next step.
_MOST_GENERATIONS = 262_144
#: When a response is sent (monotonic clock in s), and to what.
_Pending = tuple[float, InferRequest, ResponseSender, InferResponse]


@dataclass(frozen=True)
class ExecutionTimes:
    """Execution times of a model.

    Attributes
    ----------
    ms : dict of int to list of float
        By batch size in rows.
    slow_down : dict of int to float
        By the number of busy instances.
    source : str
        Who measured them, and where.
    responses : list of list of float
        When a decoupled model sent the responses to a request, in ms after its execution began.
    steps : list of int
        How often a model with iterative sequences executed a request.

    Examples
    --------
    >>> times = ExecutionTimes({1: [5.0], 8: [12.0]}, {2: 1.5})
    >>> [times.draw(rows, busy=1, rng=random.Random(1)) for rows in (1, 8, 4, 16)]
    [5.0, 12.0, 8.0, 24.0]
    >>> times.draw(1, busy=2, rng=random.Random(1))
    7.5
    """

    ms: Mapping[int, list[float]]
    slow_down: Mapping[int, float] = field(default_factory=dict)
    source: str = ""
    responses: Sequence[list[float]] = ()
    steps: Sequence[int] = ()

    def draw(self, rows: int, busy: int, rng: random.Random) -> float:
        """Return the time of one execution in ms, at most ten minutes.

        Parameters
        ----------
        rows, busy : int
            Batch size, and busy instances including this one.
        rng : random.Random
        """
        size = min(self.ms, key=lambda known: abs(known - rows))
        factor = self._typical(rows) / max(1e-9, self._typical(size))
        return min(_LONGEST_MS, rng.choice(self.ms[size]) * factor * self.slow_down.get(busy, 1.0))

    def draw_responses(self, execution_ms: float, rng: random.Random) -> list[float]:
        """Return the times of the responses to a request in ms, in order; one at the end if none is known.

        Parameters
        ----------
        execution_ms : float
        rng : random.Random
        """
        return sorted(rng.choice(self.responses)) if self.responses else [execution_ms]

    def _typical(self, rows: int) -> float:
        """Return the mean time: between two sizes on a line, above the largest size in proportion to the rows."""
        sizes = sorted(self.ms)
        place = min(bisect_left(sizes, rows), len(sizes) - 1)
        after = sizes[place]
        if rows >= after or not place:
            return statistics.fmean(self.ms[after]) * max(1.0, rows / after)
        before = sizes[place - 1]
        low, high = statistics.fmean(self.ms[before]), statistics.fmean(self.ms[after])
        return low + (high - low) * (rows - before) / (after - before)

    @classmethod
    def from_json(cls, document: Any) -> ExecutionTimes:
        """Read the contents of a file.

        Raises
        ------
        ValueError
            If it has no times, or a time is negative, infinite or longer than ten minutes.
        """
        if not isinstance(document, Mapping) or not isinstance(document.get("ms"), Mapping) or not document["ms"]:
            raise ValueError('expected {"ms": {"ROWS": [TIME, …]}} with at least one batch size')
        factors = document.get("slow_down", {})
        if not isinstance(factors, Mapping) or not all(isinstance(times, list) for times in document["ms"].values()):
            raise ValueError('expected {"ms": {"ROWS": [TIME, …]}, "slow_down": {"INSTANCES": FACTOR}}')
        ms = {int(rows): [float(one) for one in times] for rows, times in document["ms"].items()}
        slow_down = {int(busy): float(factor) for busy, factor in factors.items()}
        for rows, times in ms.items():
            if rows < 1 or not times or not all(0 <= one <= _LONGEST_MS for one in times):
                raise ValueError(f"batch size {rows}: expected times from 0 to {_LONGEST_MS:.0f} ms, got {times[:3]}")
        if not all(0 < factor < math.inf for factor in slow_down.values()):
            raise ValueError(f"slow_down expected positive factors, got {slow_down}")
        responses = document.get("responses", [])
        if not isinstance(responses, list) or not all(isinstance(times, list) for times in responses):
            raise ValueError('expected {"responses": [[TIME, …], …]} with a list for each request')
        sent = [[float(one) for one in times] for times in responses]
        if not all(0 <= one <= _LONGEST_MS for times in sent for one in times):
            raise ValueError(f"responses expected times from 0 to {_LONGEST_MS:.0f} ms")
        steps = document.get("steps", [])
        if not isinstance(steps, list) or not all(isinstance(one, int) and one > 0 for one in steps):
            raise ValueError('expected {"steps": [EXECUTIONS, …]} with positive numbers')
        return cls(ms, slow_down, str(document.get("source", "")), sent, steps)


class SimulatedBackend(Backend):
    """The backend of models of a repository, or of one model with given times and an optional function."""

    name = "simulated"

    def __init__(self, times: ExecutionTimes | None = None, function: Function | None = None) -> None:
        self._times = times
        self._function = function

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create the model, which reads its file unless the times are given."""
        return SimulatedModel(context, self._times, self._function)


class SimulatedModel(BackendModel):
    """A model that is not there."""

    def __init__(self, context: ModelContext, times: ExecutionTimes | None, function: Function | None) -> None:
        super().__init__(context)
        self.times = times
        self.function = function
        self.busy = 0
        #: The steps that are left, by the serial of the request.
        self.steps_left: dict[int, int] = {}
        # Instances count themselves on their own threads.
        self.lock = threading.Lock()

    def initialize(self) -> None:
        """Read the times."""
        if self.times is not None:
            return
        path = self.context.version_directory / TIMES_FILE
        try:
            self.times = ExecutionTimes.from_json(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            raise NotFoundError(
                f"model '{self.context.name}': the backend 'simulated' expected the file {path}, got none"
            ) from None
        except (OSError, TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"model '{self.context.name}': {path}: {error}") from None

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance."""
        return SimulatedInstance(ModelSpec.from_config(self.context.config), self, spec)


class SimulatedInstance(FunctionInstance):
    """An instance that waits and answers."""

    def __init__(self, spec: ModelSpec, model: SimulatedModel, instance: InstanceSpec) -> None:
        super().__init__(spec, self._wait_and_answer)
        self._model = model
        self._is_iterative = model.context.config.sequence_batching.iterative_sequence
        self._is_decoupled = model.context.config.model_transaction_policy.decoupled
        self._rows = 1
        self._end = 0.0
        # Instances differ, and a run can be repeated.
        self._rng = random.Random(instance.index)
        self._requests: Sequence[InferRequest] = ()
        #: Notified when a request is cancelled: nobody waits for its time any longer.
        self._cancelled = threading.Condition()

    def execute(self, execution: Execution) -> None:
        """Execute as a function, which waits first."""
        self._rows = max(1, execution.size)
        self._requests = [request for request in execution.requests if not request.is_null]
        for request in self._requests:
            request.on_cancel = self._notify
        with self._model.lock:
            self._model.busy += 1
        try:
            begin = time.monotonic()
            super().execute(execution)
            if self._is_iterative:
                self._end_step(execution)
            elif self._is_decoupled:
                self._send_responses(execution, begin)
        finally:
            self._requests = ()
            with self._model.lock:
                self._model.busy -= 1

    def _notify(self) -> None:
        with self._cancelled:
            self._cancelled.notify_all()

    def _wait_and_answer(self, **inputs: Any) -> Any:
        model, begin = self._model, time.monotonic()
        assert model.times is not None
        self._end = begin + model.times.draw(self._rows, model.busy, self._rng) / 1e3
        # The time of the function is part of the time of the execution.
        returned = self._zeros() if model.function is None else model.function(**inputs)
        if self._is_iterative or not self._is_decoupled:
            self._sleep_until(self._end)
        return returned

    def _end_step(self, execution: Execution) -> None:
        """Send the result of a step, and let the requests be executed again that have further steps."""
        for index, request in enumerate(execution.requests):
            result = execution.responses[index]
            is_last = request.is_null or self._is_last_step(request)
            if not is_last:
                execution.reschedule(index)
            if self._is_decoupled and result is not None:
                execution.sender(index).send(InferResponse(result.outputs, final=is_last))
            if self._is_decoupled or not is_last:
                execution.responses[index] = None

    def _is_last_step(self, request: InferRequest) -> bool:
        model = self._model
        assert model.times is not None
        with model.lock:
            left = model.steps_left.pop(request.serial, 0) or self._rng.choice(model.times.steps or (1,))
            if left == 1 or request.cancelled:
                return True
            model.steps_left[request.serial] = left - 1
            if len(model.steps_left) > _MOST_GENERATIONS:  # of requests that were cancelled between two steps
                del model.steps_left[next(iter(model.steps_left))]
        return False

    def _send_responses(self, execution: Execution, begin: float) -> None:
        """Send the result of each request as often as a decoupled model does, also after the execution."""
        assert self._model.times is not None
        results, execution.responses = execution.responses, [None] * len(execution.requests)
        pending: list[_Pending] = []
        for index, result in enumerate(results):
            request, sender = execution.requests[index], execution.sender(index)
            outputs = [] if result is None else result.outputs
            sent_ms = self._model.times.draw_responses((self._end - begin) * 1e3, self._rng)
            pending += [(begin + ms / 1e3, request, sender, InferResponse(outputs, final=False)) for ms in sent_ms]
            end = begin + sent_ms[-1] / 1e3 if sent_ms else self._end
            pending.append((end, request, sender, InferResponse(empty=True)))
        pending.sort(key=itemgetter(0))  # a stable order: the final flag stays after the last response
        pending = self._send_until(self._end, pending)
        self._sleep_until(self._end)
        execution.compute_ended()
        if pending:
            threading.Thread(target=self._send_until, args=(math.inf, pending), daemon=True).start()

    def _send_until(self, end: float, pending: list[_Pending]) -> list[_Pending]:
        """Send responses at their times, and end cancelled requests at once; return what is left at the end."""
        waiting = {request for _, request, _, _ in pending}
        while pending:
            self._wait(min(pending[0][0], end) - time.monotonic(), functools.partial(_has_cancelled, waiting))
            now = min(time.monotonic(), end)
            if cancelled := {request for request in waiting if request.cancelled}:
                waiting -= cancelled
                for _, request, sender, _ in pending:
                    if request in cancelled:
                        _end_cancelled(request, sender)
                pending = [response for response in pending if response[1] in waiting]
            due = bisect_right(pending, now, key=itemgetter(0))
            for _, _, sender, response in pending[:due]:
                sender.send(response)
            pending = pending[due:]
            if now == end:
                break
        return pending

    def _sleep_until(self, end: float) -> None:
        """Sleep, but not longer than until the server has given up all requests of the execution."""
        requests = self._requests
        self._wait(
            end - time.monotonic(), lambda: bool(requests) and all(one.cancelled and one.answered for one in requests)
        )

    def _wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        with self._cancelled:
            self._cancelled.wait_for(is_over, seconds)

    def _zeros(self) -> dict[str, Any]:
        """Return outputs of zeros or empty strings; a variable dim is 1."""
        rows = (self._rows,) if self._spec.max_batch_size > 0 else ()
        return {
            name: np.full(
                (*rows, *(1 if dim < 0 else dim for dim in spec.backend_dims)),
                b"" if spec.datatype.variable_size else 0,
                spec.datatype.values_dtype,
            )
            for name, spec in self._spec.outputs.items()
        }


def _has_cancelled(requests: Collection[InferRequest]) -> bool:
    return any(request.cancelled for request in requests)


def _end_cancelled(request: InferRequest, sender: ResponseSender) -> None:
    if request.answered:  # with an error, since the server was stopped
        sender.closed = True
    elif not sender.closed:
        sender.send(InferResponse(empty=True))
