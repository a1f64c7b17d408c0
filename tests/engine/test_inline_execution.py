"""The event loop executes quick batches of a model that permits it; everything else is as on the instance's thread."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.laws import law
from tritonnb.backends.contract import BackendModelInstance, InstanceLostError, InstanceSpec
from tritonnb.backends.execution import Execution
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.messages import InferRequest, discard_response
from tritonnb.engine.execution import instance as instance_module
from tritonnb.engine.execution.instance import Instance
from tritonnb.server.server import Server

ALWAYS, NEVER = 10**18, 0
FAIL = -3
#: Returns its input and the thread that executes it.
MODEL = """
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        if min(array.min() for array in inputs) == -3:
            raise ValueError("input -3")
        thread = threading.get_ident()
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", array), pb_utils.Tensor("THREAD", np.full(array.shape, thread, np.int64))]
            )
            for array in inputs
        ]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
output { name: "THREAD" data_type: TYPE_INT64 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
"""
INLINE = CONFIG + 'parameters { key: "EXECUTE_ON_ANY_THREAD" value { string_value: "true" } }'


@pytest.fixture(autouse=True)
def every_execution_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(instance_module, "QUICK_EXECUTION_NS", ALWAYS)


def write(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(MODEL)
    (repository / name / "config.pbtxt").write_text(config)


class NotesThreads(BackendModelInstance):
    """An instance that notes whether the event loop's thread (the test's) has executed a batch, which may be lost."""

    thread_agnostic = True

    def __init__(self) -> None:
        self.on_loop: list[bool] = []
        self.lost = False
        self.recovered_on_loop: bool | None = None
        self.is_finalized = False

    def execute(self, execution: Any) -> None:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        if self.lost:
            raise InstanceLostError("lost")

    def recover(self) -> bool:
        self.recovered_on_loop = threading.current_thread() is threading.main_thread()
        raise SystemExit("the instance is still to be finalized")

    def finalize(self) -> None:
        self.is_finalized = True


class Driver:
    """An instance on the running event loop, and the errors of its batches."""

    def __init__(self) -> None:
        self.backend_instance = NotesThreads()
        self._finished: asyncio.Queue[TritonError | None] = asyncio.Queue()
        self.instance = Instance(
            InstanceSpec("m_0", 0, "cpu", 0),
            self.backend_instance,
            asyncio.get_running_loop(),
            self,
            inline=True,
        )

    def complete_execution(self, instance: Instance, execution: Execution, raised: TritonError | None) -> None:
        self._finished.put_nowait(raised)

    def instance_lost(self, instance: Instance, error: InstanceLostError) -> None:
        """Only calls during executions lose the instance."""

    def instance_recovered(self, instance: Instance, is_running: bool) -> None:
        """Do nothing."""

    def begin(self) -> None:
        """Begin to execute a batch."""
        self.instance.execute(Execution([InferRequest("m", {}, discard_response)], 1, discard_response))

    async def end(self) -> TritonError | None:
        """Wait for the end of a batch; returns its error."""
        return await self._finished.get()

    async def run(self) -> TritonError | None:
        """Execute a batch; returns its error."""
        self.begin()
        return await self.end()


def test_first_batch_shows_whether_a_model_is_quick() -> None:
    async def main() -> list[bool]:
        driver = Driver()
        await driver.instance.start()
        for _ in range(3):
            await driver.run()
        await asyncio.to_thread(driver.instance.end)
        return driver.backend_instance.on_loop

    assert asyncio.run(main()) == [False, True, True]


@pytest.mark.parametrize(
    ("blocked_share", "on_loop"),
    [(1e-9, [True, False, False]), (1e9, [True, False, True])],
    ids=["a long time later", "soon"],
)
def test_slow_batch_suspends_execution_on_the_event_loop_in_proportion(
    monkeypatch: pytest.MonkeyPatch, blocked_share: float, on_loop: list[bool]
) -> None:
    """The batch after it is executed on the instance's thread in any case."""
    monkeypatch.setattr(instance_module, "MAX_BLOCKED_SHARE", blocked_share)

    async def main() -> list[bool]:
        driver = Driver()
        await driver.instance.start()
        await driver.run()
        driver.begin()
        monkeypatch.setattr(instance_module, "QUICK_EXECUTION_NS", NEVER)  # the loop's execution turns out to be slow
        await driver.end()
        monkeypatch.setattr(instance_module, "QUICK_EXECUTION_NS", ALWAYS)
        await driver.run()
        await driver.run()
        await asyncio.to_thread(driver.instance.end)
        return driver.backend_instance.on_loop[1:]

    assert asyncio.run(main()) == on_loop


def test_instance_that_is_lost_on_the_event_loop_recovers_on_its_own_thread() -> None:
    async def main() -> tuple[TritonError | None, NotesThreads]:
        driver = Driver()
        await driver.instance.start()
        await driver.run()
        driver.backend_instance.lost = True
        error = await driver.run()
        await asyncio.to_thread(driver.instance.end)
        return error, driver.backend_instance

    error, backend_instance = asyncio.run(main())
    assert isinstance(error, InstanceLostError)
    assert backend_instance.on_loop == [False, True]
    assert backend_instance.recovered_on_loop is False
    assert backend_instance.is_finalized


OTHER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        calls = {
            1: lambda: pb_utils.InferenceRequest(model_name="own", requested_output_names=["Y"], inputs=[]).exec(),
            2: lambda: pb_utils.is_model_ready("own"),
            3: lambda: pb_utils.load_model("own"),
        }
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            calls.get(array.item(), int)()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]))
        return responses
"""


def write_both(repository: Path) -> Path:
    write(repository, "inline", f"{INLINE} dynamic_batching {{ }}")
    write(repository, "own", f"{CONFIG} dynamic_batching {{ }}")
    return repository


async def run(server: Server, model: str, *values: int) -> dict[str, Any]:
    return await server[model].infer_async(X=np.array(values, np.int32)[:, None])


@pytest.mark.parametrize("call", [1, 2, 3], ids=["exec", "is_model_ready", "load_model"])
def test_inline_model_that_calls_the_server_fails_once_then_gets_a_thread(tmp_path: Path, call: int) -> None:
    write(tmp_path, "calls", INLINE.replace('output { name: "THREAD" data_type: TYPE_INT64 dims: 1 }', ""))
    (tmp_path / "calls" / "1" / "model.py").write_text(OTHER)

    async def main(server: Server) -> None:
        for value in (0, 0):
            await run(server, "calls", value)
        with pytest.raises(InternalError, match="'calls_0_0' called the server while the server's event loop executed"):
            await run(server, "calls", call)
        assert (await run(server, "calls", call))["Y"].item() == call

    with Server(write_both(tmp_path), port=None, model_control_mode="explicit", load_models=["*"]) as server:
        asyncio.run(main(server))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = write_both(tmp_path_factory.mktemp("repository"))
    write(repository, "ordered", f"{INLINE} dynamic_batching {{ preserve_ordering: true }}")
    with Server(repository, port=None) as server:
        yield server


@pytest.mark.parametrize(("model", "on_loop"), [("inline", True), ("own", False), ("ordered", True)])
def test_only_models_with_the_parameter_are_executed_on_the_event_loop(both: Server, model: str, on_loop: bool) -> None:
    async def main() -> int:
        await run(both, model, 7)
        return int((await run(both, model, 7))["THREAD"].item())

    assert (asyncio.run(main()) == both.call(threading.get_ident)) is on_loop


def observed(server: Server, model: str, run: Callable[[str], list[Any]]) -> tuple[Any, ...]:
    """Run ``run(model)``; return its result, statistics, sizes and rules of batches, and kinds of events."""
    before = server[model].stats()
    with server.record() as recording:
        outcomes = run(model)
    own = recording.for_model(model)
    reasons = [(batch.size, batch.reason and batch.reason.rule) for batch in own.batches]
    return outcomes, counts(server[model].stats()) - counts(before), reasons, [type(e).__name__ for e in own.events]


def counts(stats: Any) -> Counter[str]:
    """Requests by outcome, rows, executions, and executions by batch size."""
    numbers = {kind: entry["count"] for kind, entry in stats["inference_stats"].items()}
    sizes = {f"batch of {entry['batch_size']}": entry["compute_infer"]["count"] for entry in stats["batch_stats"]}
    return Counter(numbers | sizes | {key: stats[key] for key in ("inference_count", "execution_count")})


values = st.lists(st.sampled_from([0, 1, 2, FAIL]), min_size=1, max_size=8)


@law(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(values, min_size=1, max_size=5))
def test_answers_statistics_reasons_and_events_do_not_depend_on_the_thread(
    both: Server, calls: list[list[int]]
) -> None:
    async def answer(model: str, call: list[int]) -> list[int] | None:
        try:
            return list((await run(both, model, *call))["Y"].ravel())
        except InternalError:
            return None

    async def answers(model: str) -> list[list[int] | None]:
        return [await answer(model, call) for call in calls]

    results = [observed(both, model, lambda name: asyncio.run(answers(name))) for model in ("inline", "own")]
    assert results[0] == results[1]
    assert [outcome is None for outcome in results[0][0]] == [FAIL in call for call in calls]


def test_requests_that_the_event_loop_reads_together_are_executed_together(both: Server) -> None:
    """The first one is sent alone, since the instance is idle; it is executed after the others have been queued."""
    blocked, go_on = threading.Event(), threading.Event()

    def block_the_event_loop() -> None:
        blocked.set()
        assert go_on.wait(60)

    async def main() -> list[int]:
        await run(both, "inline", 0)
        await run(both, "inline", 0)
        model = both["inline"]
        block = asyncio.create_task(asyncio.to_thread(both.call, block_the_event_loop))
        await asyncio.to_thread(blocked.wait, 60)
        requests = [model.infer_async(X=np.full((1, 1), number, np.int32)) for number in range(20)]
        tasks = [asyncio.create_task(request) for request in requests]
        await asyncio.sleep(0)  # until each has submitted its request
        go_on.set()
        await block
        return [int(answer["Y"].item()) for answer in await asyncio.gather(*tasks)]

    with both.record() as recording:
        assert asyncio.run(main()) == list(range(20))
    assert [batch.size for batch in recording.batches] == [1, 1, 1, 8, 8, 3]
