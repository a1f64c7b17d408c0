"""In any order of loads, failed loads, unloads and requests, the version that accepts a request responds to it."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tritonclient.grpc import model_config_pb2 as pb

from tests.engine.conftest import Answer, Driver, outputs
from tests.engine.ensembles import ensemble_source, serve_ensemble
from tests.engine.gated import CheckedBackend, Checkpoints, Gate, GatedBackend, gated_config
from tests.laws import law
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import INT32
from tritonnb.core.errors import InternalError, InvalidArgumentError, NotFoundError, TritonError
from tritonnb.core.events import ModelStateChanged
from tritonnb.core.messages import Tensor
from tritonnb.core.packed_events import unpack
from tritonnb.engine.models.scheduler_driver import SchedulerDriver
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.repository.directories import ModelSource
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_log_records(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Records with tracebacks, which pytest keeps, would keep models in memory."""
    with caplog.at_level(logging.CRITICAL + 1, "tritonnb"):
        yield


class Generation(Backend):
    """A backend that answers every row with its number; loading fails if it is negative."""

    name = "generation"

    def __init__(self, number: int) -> None:
        self._number = number

    def create_model(self, context: ModelContext) -> BackendModel:
        number = self._number

        class Instance(BackendModelInstance):
            def execute(self, execution: Execution) -> None:
                for index, request in enumerate(execution.requests):
                    x = request.inputs["X"]
                    execution.respond(index, [Tensor("Y", INT32, x.array * 0 + number)])

        class Model(BackendModel):
            def initialize(self) -> None:
                if number < 0:
                    raise InternalError("crashed")

            def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
                return Instance()

        return Model(context)


def load(driver: Driver, number: int, name: str = "m") -> None:
    config = gated_config(name)
    driver.background.run(driver.engine.load_source(ModelSource(name, Path(), config, (1,), Generation(number))))


def test_reloading_under_load_loses_no_request_and_frees_old_models(driver: Driver) -> None:
    load(driver, 0)
    loaded = [0, 0]  # what serves for certain, and what may serve already
    wrong: list[object] = []
    done = threading.Event()

    def client() -> None:
        while not done.is_set():
            earliest = loaded[0]
            try:
                (answer,) = outputs(driver.send(1))
            except Exception as error:
                wrong.append(error)
                return
            if not earliest <= answer <= loaded[1]:
                wrong.append((earliest, answer, loaded[1]))

    clients = [threading.Thread(target=client) for _ in range(32)]
    for thread in clients:
        thread.start()
    for number in range(1, 101):
        loaded[1] = number
        load(driver, number)
        loaded[0] = number
    done.set()
    for thread in clients:
        thread.join()
    assert wrong == []
    driver.background.run(driver.engine.unload("m"))
    while driver.background.run(driver.engine.index())[0]["state"] != "UNAVAILABLE":
        pass
    while any(type(item) is ServedModel and item.name == "m" for item in gc.get_objects()):
        gc.collect()  # until the last thread has let go


class Lifecycle(RuleBasedStateMachine):
    """A model ``m`` whose executions wait for the test, and an ensemble ``e`` of it."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.gates: list[Gate] = []
        self.serving: int | None = None
        self.ensemble = False
        self.open: list[tuple[Answer, int, int]] = []
        self.number = 0

    @rule()
    def load_or_reload(self) -> None:
        self.gates.append(Gate())
        self.driver.serve(self.gates[-1], extra="")
        self.serving = len(self.gates) - 1

    @rule()
    def load_that_crashes(self) -> None:
        with pytest.raises(InvalidArgumentError, match="crashed"):
            load(self.driver, -1)

    @rule()
    def load_that_is_refused(self) -> None:
        config = text_format.Parse(
            'name: "m" backend: "x" instance_group { kind: KIND_CPU gpus: [ 0 ] }', pb.ModelConfig()
        )
        source = ModelSource("m", Path(), config, (1,), GatedBackend(Gate()))
        with pytest.raises(InvalidArgumentError, match="specifies one or more GPUs"):
            self.driver.background.run(self.driver.engine.load_source(source))

    @rule()
    def unload(self) -> None:
        self.driver.background.run(self.driver.engine.unload("m"))
        self.serving = None

    @precondition(lambda self: self.serving is not None)
    @rule()
    def load_the_ensemble(self) -> None:
        serve_ensemble(self.driver, "m: X -> Y")
        self.ensemble = True

    @rule()
    def unload_the_ensemble(self) -> None:
        self.driver.background.run(self.driver.engine.unload("e"))
        self.ensemble = False

    @rule(model=st.sampled_from("me"))
    def infer(self, model: str) -> None:
        self.number += 1
        if self.serving is None or (model == "e" and not self.ensemble):
            with pytest.raises(NotFoundError):
                self.driver.send(self.number, model=model)
        else:
            self.open.append((self.driver.send(self.number, model=model), self.number, self.serving))

    @precondition(lambda self: self.open)
    @rule()
    def finish_everything(self) -> None:
        for gate in self.gates:
            gate.let_through(len(self.open))
        for answer, number, _ in self.open:
            assert outputs(answer) == [number]
        for _, number, generation in self.open:
            assert [number] in self.gates[generation].batches
        self.open.clear()

    @invariant()
    def the_index_and_the_readiness_agree(self) -> None:
        ready = {served.name for served in self.driver.background.call(self.driver.engine.models)}
        serves = self.serving is not None
        assert ready == {name for name, is_there in (("m", serves), ("e", serves and self.ensemble)) if is_there}
        index = self.driver.background.run(self.driver.engine.index(True))
        assert {entry["name"] for entry in index} == ready

    def teardown(self) -> None:
        for gate in self.gates:
            gate.open()
        self.driver.close()
        for answer, number, _ in self.open:
            assert outputs(answer) == [number]


TestLifecycle = pytest.mark.timeout(600)(Lifecycle.TestCase)
TestLifecycle.settings = law(25, stateful_step_count=20)


#: What a step of a load does: passes, waits until the test lets it, or raises.
ACTIONS = st.sampled_from(["wait", "wait", "wait", ValueError, SystemExit])
NAMES = st.sampled_from("mmn")
STEPS = st.sampled_from(["complete", "model", "instance", "execute", "finalize instance", "finalize model"])
COUNTS = st.integers(1, 2)
OPERATIONS = (
    st.tuples(st.just("load"), NAMES, COUNTS, STEPS, st.none() | ACTIONS)
    | st.tuples(st.just("apply"), NAMES, st.sampled_from([2, 8]), st.integers(0, 2), COUNTS)
    | st.tuples(st.just("unload"), NAMES | st.just("e"))
    | st.sampled_from([("load ensemble", "m: X -> Y"), ("load ensemble", "m: X -> t", "n: t -> Y")])
)


class Interrupted(RuleBasedStateMachine):
    """Operations on two models and an ensemble that overlap, fail, are cancelled, and are stopped.

    Whoever waits is answered; what was begun is completed or undone; the index agrees with the events, and the parts
    of a model with one another; nothing is left of models that are not served.
    """

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.loads: list[Checkpoints] = []
        self.pending: list[Future[Any]] = []
        self.answers: list[tuple[int, Answer]] = []
        self.requests = 0

    @initialize()
    def load_both_models(self) -> None:
        for name in "nm":
            self.begin(("load", name, 1, None, None))
            self.pending.pop().result(30)

    def begin(self, operation: tuple[Any, ...]) -> None:
        """Begin an operation; what it does before its first slow step is done then."""
        engine = self.driver.engine
        match operation:
            case "load", name, count, step, action:
                self.loads.append(Checkpoints({} if action is None else {step: action}))
                config = gated_config(
                    name, f"dynamic_batching {{ }} instance_group {{ count: {count} kind: KIND_CPU }}"
                )
                source = ModelSource(name, Path(), config, (1,), CheckedBackend(self.loads[-1]))
                coroutine: Coroutine[Any, Any, Any] = engine.load_source(source)
            case "apply", name, size, delay, count:
                batching = f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}"
                extra = f"{batching} instance_group {{ count: {count} kind: KIND_CPU }}"
                coroutine = engine.apply(name, gated_config(name, extra, size))
            case "unload", name:
                coroutine = engine.unload(name)
            case "load ensemble", *steps:
                coroutine = engine.load_source(ensemble_source(*steps))
        self.pending.append(self.driver.start(coroutine))
        self.driver.background.call(int)

    @rule(operation=OPERATIONS)
    def begin_one(self, operation: tuple[Any, ...]) -> None:
        self.begin(operation)

    @rule(first=OPERATIONS, second=OPERATIONS, step=STEPS, action=ACTIONS, cancelled=st.sampled_from([(), (0,), (1,)]))
    def begin_two(
        self, first: tuple[Any, ...], second: tuple[Any, ...], step: str, action: Any, cancelled: tuple[int, ...]
    ) -> None:
        self.loads[-1].close(step, action)
        for number, operation in enumerate((first, second)):
            self.begin(operation)
            if number in cancelled:
                self.pending[-1].cancel()

    @precondition(lambda self: self.pending)
    @rule()
    def cancel_the_latest(self) -> None:
        self.pending[-1].cancel()

    @rule(data=st.data())
    def let_a_model_continue(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.loads)).open()

    @rule(name=NAMES | st.just("e"), waits=st.booleans())
    def infer(self, name: str, waits: bool) -> None:
        self.requests += 1
        if waits:
            self.loads[-1].close("execute", "wait")
        with contextlib.suppress(TritonError):  # it may be unloaded
            self.answers.append((self.requests, self.driver.send(self.requests, model=name)))

    @rule()
    def settle(self) -> None:
        for checkpoints in self.loads:
            checkpoints.open()
        self.finish()
        table = self.driver.engine.table
        self.driver.background.run(table.wait_until_closed())
        self.driver.background.call(self.check_versions)
        served = self.driver.background.call(lambda: {model.name for model in self.driver.engine.models()} - {"e"})
        deadline = time.monotonic() + 10
        while self.left() != len(served) and time.monotonic() < deadline:
            gc.collect()
        assert self.left() == len(served)

    def left(self) -> int:
        """The number of models that were initialised and not finalized."""
        return sum(load.initialized["model"] - load.finalized["model"] for load in self.loads)

    def finish(self) -> None:
        """Wait until every operation is complete, even one that was cancelled, and every request is answered."""
        for future in self.pending:
            with contextlib.suppress(TritonError, CancelledError):
                future.result(30)
        self.pending.clear()
        operations = self.driver.engine._repository.operations
        while self.driver.background.call(operations.unfinished):
            pass
        for number, answer in self.answers:
            response = answer.result(30)
            assert response.error is not None or outputs(answer) == [number]
        self.answers.clear()  # a request refers to the driver of its model

    def check_versions(self) -> None:
        """Nothing is half done: configuration, validator, scheduler and instances of a version agree."""
        states = {v.state.value for model in self.driver.engine.table.models.values() for v in model.versions.values()}
        assert states <= {"READY", "UNAVAILABLE"}
        for model in self.driver.engine.models():
            assert model.in_flight == 0
            config = model.config
            assert model.spec.max_batch_size == config.max_batch_size
            if isinstance(model.driver, SchedulerDriver):
                scheduler = model.driver.scheduler
                assert isinstance(scheduler, DynamicBatcher)
                settings = scheduler.settings
                delay_ns = config.dynamic_batching.max_queue_delay_microseconds * 1000
                assert (settings.max_batch_size, settings.max_queue_delay_ns) == (config.max_batch_size, delay_ns)
                assert len(model.instances) == config.instance_group[0].count

    @invariant()
    def the_index_agrees_with_the_last_events(self) -> None:
        def read() -> None:
            last = {}
            for event in self.driver.engine.stream.recent:
                if event[0] == ModelStateChanged.__name__:
                    change = unpack(event)
                    assert isinstance(change, ModelStateChanged)
                    last[change.model] = change.state
            models = self.driver.engine.table.models
            states = {name: entry.versions[1].state.value for name, entry in models.items() if 1 in entry.versions}
            assert states == {name: state for name, state in last.items() if name in states}
            assert all(state == "UNAVAILABLE" for name, state in last.items() if name not in states)

        self.driver.background.call(read)

    def teardown(self) -> None:
        stopping = self.driver.start(self.driver.engine.stop())
        self.driver.background.call(int)  # it has begun
        for checkpoints in self.loads:
            checkpoints.open()
        stopping.result(30)
        self.finish()
        self.driver.background.stop()
        for checkpoints in self.loads:
            checkpoints.assert_nothing_left()


TestInterrupted = pytest.mark.timeout(600)(Interrupted.TestCase)
TestInterrupted.settings = law(40, stateful_step_count=25)
