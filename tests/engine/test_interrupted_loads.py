"""A load that is cancelled, raced or stopped is completed or undone, and whoever waits for it is answered."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson
from tritonclient.grpc import model_config_pb2 as pb

from tests.engine.conftest import Driver, outputs
from tests.engine.ensembles import ensemble_source, serve_ensemble
from tests.engine.gated import Checkpoints, Gate, gated_config
from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError, UnavailableError
from tritonnb.core.events import ModelStateChanged
from tritonnb.core.packed_events import unpack
from tritonnb.engine.models.scheduler_driver import SchedulerDriver
from tritonnb.engine.repository.table import ExitTimeoutError
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher

ERRORS = (ValueError, SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, GeneratorExit, MemoryError)
STEPS = ("complete", "model", "instance")


@pytest.fixture(autouse=True)
def _no_log_records(caplog: pytest.LogCaptureFixture) -> None:
    """Records with tracebacks, which pytest keeps, would keep models in memory."""
    caplog.set_level(logging.CRITICAL + 1, "tritonnb")


def states(driver: Driver, name: str = "m") -> tuple[str, str]:
    """The state in the index, and that of the last event, read at the same time; "" if there is none."""

    def read() -> tuple[str, str]:
        model = driver.engine.table.models.get(name)
        events = [unpack(event) for event in driver.engine.stream.recent if event[0] == ModelStateChanged.__name__]
        changes = [event.state for event in events if isinstance(event, ModelStateChanged) and event.model == name]
        in_table = "" if model is None or 1 not in model.versions else model.versions[1].state.value
        return in_table, changes[-1] if changes else ""

    return driver.background.call(read)


@pytest.mark.parametrize("step", STEPS)
def test_cancelled_load_is_completed(driver: Driver, step: str) -> None:
    checkpoints = Checkpoints({step: "wait"})
    waiting = driver.begin_load(checkpoints, "instance_group { count: 3 kind: KIND_CPU }")
    assert checkpoints.wait_reached() == step
    waiting.cancel()
    checkpoints.open()
    driver.begin_load(checkpoints, "instance_group { count: 3 kind: KIND_CPU }").result(30)  # its turn is after it
    assert states(driver) == ("READY", "READY")
    assert outputs(driver.send(7)) == [7]
    driver.background.run(driver.engine.unload("m"))
    checkpoints.assert_nothing_left()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", ERRORS)
def test_step_that_raises_anything_fails_its_load_only(driver: Driver, step: str, error: type[BaseException]) -> None:
    checkpoints = Checkpoints({step: error})
    with pytest.raises(InvalidArgumentError, match=f"Internal: {error.__name__}: broken"):
        driver.begin_load(checkpoints, "instance_group { count: 2 kind: KIND_CPU }").result(30)
    assert states(driver) == ("UNAVAILABLE", "UNAVAILABLE")
    checkpoints.open()
    driver.begin_load(checkpoints).result(30)
    assert outputs(driver.send(7)) == [7]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("step", ["finalize instance", "finalize model"])
def test_model_that_ends_with_an_error_has_ended(driver: Driver, step: str, error: type[BaseException]) -> None:
    checkpoints = Checkpoints({step: error})
    driver.begin_load(checkpoints).result(30)
    driver.background.run(driver.engine.unload("m"))
    checkpoints.assert_nothing_left()
    while states(driver)[0] == "UNLOADING":
        pass
    assert states(driver) == ("UNAVAILABLE", "UNAVAILABLE")


def test_load_that_fails_half_way_ends_what_it_has_created(driver: Driver) -> None:
    """The second of two instances fails, and the first one ends with an error."""

    class FailsAtTheSecond(Checkpoints):
        def reach(self, step: str) -> None:
            if step == "finalize instance" or (step == "instance" and self.initialized["instance"]):
                raise ValueError(f"broken {step}")

    checkpoints = FailsAtTheSecond()
    with pytest.raises(InvalidArgumentError, match="broken instance"):
        driver.begin_load(checkpoints, "instance_group { count: 2 kind: KIND_CPU }").result(30)
    checkpoints.assert_nothing_left()
    assert states(driver) == ("UNAVAILABLE", "UNAVAILABLE")


def test_last_event_is_the_state_of_the_index(driver: Driver) -> None:
    gate = Gate()
    driver.serve(gate)
    answer = driver.send(1)
    gate.wait_begun()
    driver.background.run(driver.engine.unload("m"))
    driver.serve(Gate(opened=True))
    gate.open()
    assert outputs(answer) == [1]
    driver.background.run(closed(driver))
    assert states(driver) == ("READY", "READY")


async def closed(driver: Driver) -> None:
    await driver.engine.table.wait_until_closed()


def limits(driver: Driver) -> tuple[int, int, int, int]:
    """The largest batch and the delay of the configuration, the largest request, and the largest batch."""

    def read() -> tuple[int, int, int, int]:
        served = driver.engine.model("m")
        assert isinstance(served.driver, SchedulerDriver)
        scheduler = served.driver.scheduler
        delay = served.config.dynamic_batching.max_queue_delay_microseconds
        assert isinstance(scheduler, DynamicBatcher)
        settings = scheduler.settings
        assert settings.max_queue_delay_ns == delay * 1000
        return served.config.max_batch_size, delay, served.spec.max_batch_size, settings.max_batch_size

    return driver.background.call(read)


def changed(max_batch_size: int, delay: int) -> pb.ModelConfig:
    return gated_config(
        extra=f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}", max_batch_size=max_batch_size
    )


def test_concurrent_changes_follow_one_another(driver: Driver) -> None:
    checkpoints = Checkpoints()
    driver.begin_load(checkpoints, "dynamic_batching { }").result(30)
    checkpoints.actions["model"] = "wait"
    first = driver.start(driver.engine.apply("m", changed(2, 0)))
    checkpoints.wait_reached()
    second = driver.start(driver.engine.apply("m", changed(2, 5)))
    third = driver.start(driver.engine.apply("m", changed(8, 6)))
    checkpoints.open()
    assert [change.result(30) for change in (first, second, third)] == ["reloaded", "in place", "reloaded"]
    assert limits(driver) == (8, 6, 8, 8)


def test_stop_undoes_a_load_and_answers_its_caller() -> None:
    for step in STEPS:
        driver, checkpoints = Driver(), Checkpoints({step: "wait"})
        loading = driver.begin_load(checkpoints, "instance_group { count: 2 kind: KIND_CPU }")
        checkpoints.wait_reached()
        waiting = driver.begin_load(checkpoints)
        stopping = driver.start(driver.engine.stop())
        driver.background.call(int)  # it has begun
        checkpoints.open()
        stopping.result(30)
        for caller in (loading, waiting):
            with pytest.raises(UnavailableError, match=r"model 'm'.*the server is stopping"):
                caller.result(30)
        checkpoints.assert_nothing_left()
        driver.background.stop()


@pytest.mark.parametrize("iterations", range(16))
def test_model_is_not_ready_after_a_stop_at_any_iteration_of_the_loop(iterations: int) -> None:
    """The model is created, its load is not complete: the stop finds nothing to unload yet, and waits for the load."""
    driver, checkpoints = Driver(), Checkpoints()

    async def load_and_stop() -> None:
        loading = driver.begin_load(checkpoints)
        while not checkpoints.initialized["instance"]:
            await asyncio.sleep(0)
        for _ in range(iterations):
            await asyncio.sleep(0)
        await driver.engine.stop()
        await asyncio.wait([asyncio.wrap_future(loading)])

    driver.background.run(load_and_stop())
    assert list(driver.engine._repository.table.served()) == []
    checkpoints.assert_nothing_left()
    driver.background.stop()


@pytest.mark.parametrize("step", STEPS)
def test_what_outlives_a_stop_ends_by_itself(step: str) -> None:
    driver, checkpoints = Driver(exit_timeout=0.1), Checkpoints({step: "wait"})
    loading = driver.begin_load(checkpoints, "instance_group { count: 2 kind: KIND_CPU }")
    checkpoints.wait_reached()
    with pytest.raises(ExitTimeoutError, match=r"model 'm' \(being loaded\)"):
        driver.close()
    with pytest.raises(
        UnavailableError, match=r"the server was stopped after 0.1 s \(exit_timeout\) while model 'm' was being loaded"
    ):
        loading.result(30)
    checkpoints.open()
    checkpoints.assert_nothing_left()


def test_request_after_the_end_of_the_exit_timeout_is_refused() -> None:
    """The stop gives up while it waits for the ensemble, and the loop goes on for a while."""
    driver, gate = Driver(exit_timeout=0.1), Gate()
    driver.serve(gate)
    serve_ensemble(driver, "m: X -> Y")
    blocked = driver.send(1, model="e")
    gate.wait_begun()
    with pytest.raises(ExitTimeoutError):
        driver.background.run(driver.engine.stop())
    for model in ("m", "e"):
        with pytest.raises((NotFoundError, UnavailableError)):
            driver.send(2, model=model).result(5)
    with pytest.raises(UnavailableError):
        outputs(blocked)
    gate.open()
    driver.background.stop()


def test_model_whose_execution_outlives_a_stop_is_freed_after_it() -> None:
    driver, gate = Driver(exit_timeout=0.1), Gate()
    driver.serve(gate, "instance_group { count: 2 kind: KIND_CPU }")
    driver.send(1)
    gate.wait_begun()
    with pytest.raises(ExitTimeoutError, match=r"model 'm' \(1 request\)"):
        driver.close()
    gate.open()
    while sorted(gate.finalized) != ["m_0_0", "m_0_1"]:
        pass
    while any(thread.name.startswith("tritonnb m_0") for thread in threading.enumerate()):
        pass


def test_names_that_do_not_exist_leave_the_table() -> None:
    driver = Driver(model_control_mode="explicit")
    for number in range(100):
        with pytest.raises(TritonError, match="model not found in any model repository"):
            driver.background.run(driver.engine.load(f"nope{number}"))
    assert driver.background.call(lambda: len(driver.engine.table.models)) == 0
    driver.close()


def test_names_of_models_whose_files_were_sent_leave_the_table() -> None:
    driver = Driver(model_control_mode="explicit", allow_file_override=True)
    sent: dict[str, str | bytes] = {
        "config": '{"backend": "python", "max_batch_size": 8}',
        "file:1/model.py": b"raise ValueError('broken')",
    }
    for number in range(20):
        with pytest.raises(InvalidArgumentError, match="broken"):
            driver.background.run(driver.engine.load(f"sent{number}", sent))
    assert driver.background.call(lambda: len(driver.engine.table.models)) == 0
    assert driver.background.run(driver.engine.index()) == []
    driver.close()


def test_ensembles_that_contain_one_another_are_refused_at_any_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(str(ensemble_source("m: X -> Y", name=name).config))
    driver = Driver(model_repositories=[tmp_path], model_control_mode="explicit")
    driver.serve(Gate(opened=True))
    loads = []
    for name, other in (("first", "second"), ("second", "first")):
        config = MessageToJson(ensemble_source(f"{other}: X -> Y", name=name).config)
        loads.append(driver.start(driver.engine.load(name, {"config": config})))
    errors = [load.exception(30) for load in loads]
    assert any("circular dependency between ensembles" in str(error) for error in errors)
    driver.background.run(driver.engine.load("first"))
    assert outputs(driver.send(3, model="first")) == [3]
    driver.close()


def test_change_of_a_model_that_is_being_unloaded_follows_the_unload(driver: Driver) -> None:
    checkpoints = Checkpoints()
    driver.begin_load(checkpoints, "dynamic_batching { }").result(30)
    checkpoints.close("model", "wait")
    change = driver.start(driver.engine.apply("m", changed(2, 0)))
    checkpoints.wait_reached()
    unload, late = driver.start(driver.engine.unload("m")), driver.start(driver.engine.apply("m", changed(4, 0)))
    checkpoints.open()
    assert change.result(30) == "reloaded"
    unload.result(30)
    with pytest.raises(NotFoundError, match="'m' has no available versions"):
        late.result(30)
    checkpoints.assert_nothing_left()
