"""The backend ``simulated``: a model that answers zeros, or a function's results, after the time of another model.

For load tests of clients and autoscalers, and for a class without a GPU. The version directory has a file *times.json*,
written by `tritonnb.lab.simulation.simulated_model.write_times` or by hand::

    {"source": "who measured it, where", "ms": {"1": [5.2, 5.3], "8": [31.2]}, "slow_down": {"1": 1.0, "2": 1.6}}

``ms`` has the measured execution times by batch size in rows, stalls included: each execution takes one of those of its
size at random; other sizes take the time of the nearest size, in proportion to what lies between. ``slow_down`` is the
factor by the number of instances that are busy, with 1 for those that are missing.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.backends.functions import Function, FunctionInstance
from tritonnb.core.errors import InvalidArgumentError, NotFoundError
from tritonnb.model_config.schema import ModelSpec

#: The file of the times in the version directory.
TIMES_FILE = "times.json"
#: A longer execution would keep its instance from stopping.
_LONGEST_MS = 600_000.0


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
            If it has no times, or one is negative, infinite or longer than ten minutes.
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
        return cls(ms, slow_down, str(document.get("source", "")))


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
        # Instances count themselves on their own threads.
        self.lock = threading.Lock()

    def initialize(self) -> None:
        """Read the times."""
        if self.context.config.model_transaction_policy.decoupled:
            raise InvalidArgumentError(
                f"model '{self.context.name}': the backend 'simulated' expected a model with one response to a "
                f"request, got a decoupled transaction policy"
            )
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
        self._rows = 1
        # Instances differ, and a run can be repeated.
        self._rng = random.Random(instance.index)

    def execute(self, execution: Execution) -> None:
        """Execute as a function, which waits first."""
        self._rows = max(1, execution.size)
        with self._model.lock:
            self._model.busy += 1
        try:
            super().execute(execution)
        finally:
            with self._model.lock:
                self._model.busy -= 1

    def _wait_and_answer(self, **inputs: Any) -> Any:
        model, begin = self._model, time.monotonic()
        assert model.times is not None
        seconds = model.times.draw(self._rows, model.busy, self._rng) / 1e3
        # The time of the function is part of the time of the execution.
        returned = self._zeros() if model.function is None else model.function(**inputs)
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        return returned

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
