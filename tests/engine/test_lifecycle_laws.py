"""In any order of loads, failed loads, unloads and requests, the version that accepts a request responds to it."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tritonclient.grpc import model_config_pb2 as pb

from tests.engine.conftest import Answer, Driver, outputs
from tests.engine.ensembles import serve_ensemble
from tests.engine.gated import Gate, GatedBackend, gated_config
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import INT32
from tritonnb.core.errors import InternalError, InvalidArgumentError, NotFoundError
from tritonnb.core.messages import Tensor
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.repository.directories import ModelSource

pytestmark = pytest.mark.slow


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


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=25, stateful_step_count=20)
