"""A backend whose executions wait for the test: no test needs to sleep."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping
from queue import SimpleQueue

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.core.messages import Tensor


class Gate:
    """A gate that blocks executions until the test opens it.

    Attributes
    ----------
    batches : list of list of int
        First element of every request of every execution, in the order in which they began.
    overlaps : int
        How often one instance was called while it was running.
    """

    def __init__(self, opened: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.overlaps = 0
        self.finalized: list[str] = []
        self._begun: SimpleQueue[list[int]] = SimpleQueue()
        self._tickets = threading.Semaphore(0)
        if opened:
            self.open()

    def open(self) -> None:
        """From now on let everything through."""
        self._tickets.release(1000)

    def shut(self) -> None:
        """From now on block executions again."""
        while self._tickets.acquire(blocking=False):
            pass

    def let_through(self, count: int = 1) -> None:
        """Let executions finish."""
        self._tickets.release(count)

    def wait_begun(self) -> list[int]:
        """Wait until the next execution has begun; its requests."""
        return self._begun.get(timeout=30)

    def enter(self, batch: list[int]) -> None:
        self.batches.append(batch)
        self._begun.put(batch)
        assert self._tickets.acquire(timeout=30)


class GatedInstance(BackendModelInstance):
    def __init__(self, gate: Gate, name: str) -> None:
        self._gate = gate
        self._name = name
        self._running = threading.Lock()

    def execute(self, execution: Execution) -> None:
        if not self._running.acquire(blocking=False):
            self._gate.overlaps += 1
        values = [int(request.inputs["X"].array.flat[0]) for request in execution.requests]
        self._gate.enter(values)
        for index, request in enumerate(execution.requests):
            x = request.inputs["X"]
            if values[index] < 0:
                raise ValueError("negative")
            execution.respond(index, [Tensor("Y", x.datatype, x.array)])
        self._running.release()

    def finalize(self) -> None:
        self._gate.finalized.append(self._name)


class GatedModel(BackendModel):
    def __init__(self, context: ModelContext, gate: Gate) -> None:
        super().__init__(context)
        self._gate = gate

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        return GatedInstance(self._gate, spec.name)


class GatedBackend(Backend):
    name = "gated"

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def create_model(self, context: ModelContext) -> BackendModel:
        return GatedModel(context, self._gate)


class Checkpoints:
    """The steps of a backend's life cycle, each of which passes, waits for the test, or raises.

    The steps are ``complete``, ``model``, ``instance``, ``execute``, ``finalize instance`` and ``finalize model``.

    Parameters
    ----------
    actions : mapping of str to ("wait" or type of BaseException)
        The steps that do not just pass.

    Attributes
    ----------
    initialized, finalized : Counter
        How many models and instances were.
    alive : weakref.WeakSet
        The models and instances in memory.
    """

    def __init__(self, actions: Mapping[str, str | type[BaseException]] | None = None) -> None:
        self.actions = dict(actions or {})
        self.initialized: Counter[str] = Counter()
        self.finalized: Counter[str] = Counter()
        self.alive: weakref.WeakSet[object] = weakref.WeakSet()
        self._opened = threading.Event()
        self._reached: SimpleQueue[str] = SimpleQueue()

    def reach(self, step: str) -> None:
        """Do what is to be done at a step; called by the backend."""
        action = self.actions.get(step)
        if action is None:
            return
        opened = self._opened
        self._reached.put(step)
        if isinstance(action, type):
            raise action("broken")
        assert opened.wait(30)

    def wait_reached(self) -> str:
        """Wait until the backend has reached a step that does not just pass; the step."""
        return self._reached.get(timeout=30)

    def open(self) -> None:
        """From now on let every step pass."""
        self.actions.clear()
        self._opened.set()

    def close(self, step: str, action: str | type[BaseException]) -> None:
        """From now on wait or raise at a step."""
        if self._opened.is_set():
            self._opened = threading.Event()
        self.actions[step] = action

    def assert_nothing_left(self) -> None:
        """Every model and instance that was initialised ends and is freed."""
        deadline = time.monotonic() + 10
        while (self.initialized != self.finalized or len(self.alive)) and time.monotonic() < deadline:
            gc.collect()  # until the last thread has let go
        assert self.initialized == self.finalized
        assert list(self.alive) == []


class CheckedInstance(BackendModelInstance):
    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        checkpoints.alive.add(self)

    def initialize(self) -> None:
        self._checkpoints.reach("instance")
        self._checkpoints.initialized["instance"] += 1

    def execute(self, execution: Execution) -> None:
        self._checkpoints.reach("execute")
        for index, request in enumerate(execution.requests):
            x = request.inputs["X"]
            execution.respond(index, [Tensor("Y", x.datatype, x.array)])

    def finalize(self) -> None:
        self._checkpoints.finalized["instance"] += 1
        self._checkpoints.reach("finalize instance")


class CheckedModel(BackendModel):
    def __init__(self, context: ModelContext, checkpoints: Checkpoints) -> None:
        super().__init__(context)
        self._checkpoints = checkpoints
        checkpoints.alive.add(self)

    def initialize(self) -> None:
        self._checkpoints.reach("model")
        self._checkpoints.initialized["model"] += 1

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        return CheckedInstance(self._checkpoints)

    def finalize(self) -> None:
        self._checkpoints.finalized["model"] += 1
        self._checkpoints.reach("finalize model")


class CheckedBackend(Backend):
    """A backend whose steps are those of its `Checkpoints`."""

    name = "gated"

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        self._checkpoints.reach("complete")
        return None

    def create_model(self, context: ModelContext) -> BackendModel:
        return CheckedModel(context, self._checkpoints)


def gated_config(name: str = "m", extra: str = "dynamic_batching { }", max_batch_size: int = 8) -> pb.ModelConfig:
    """A model with one INT32 input X and output Y of one element."""
    return text_format.Parse(
        f"""
        name: "{name}" backend: "gated" max_batch_size: {max_batch_size}
        input {{ name: "X" data_type: TYPE_INT32 dims: 1 }}
        output {{ name: "Y" data_type: TYPE_INT32 dims: 1 }}
        {extra}
        """,
        pb.ModelConfig(),
    )


def occupy(milliseconds: float) -> None:
    """Keep the thread that calls this busy for so long."""
    until_ns = time.monotonic_ns() + round(milliseconds * 1e6)
    while time.monotonic_ns() < until_ns:
        pass
