"""The thread of an instance."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tritonnb.backends.contract import BackendModelInstance, InstanceLostError, InstanceSpec
from tritonnb.backends.execution import Execution
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, discard_response
from tritonnb.engine.execution.instance import Instance


class Contents:
    """The object that a parameter of a request refers to."""


def batch(**parameters: Any) -> Execution:
    """An execution of one request with these parameters."""
    return Execution([InferRequest("m", {}, discard_response, parameters=parameters)], 1, discard_response)


class Driver:
    """A driver that passes the errors of executions on."""

    def __init__(self, complete_execution: Callable[[Instance, Execution, TritonError | None], None]) -> None:
        self.complete_execution = complete_execution

    def instance_lost(self, instance: Instance, error: InstanceLostError) -> None:
        """Instances are not lost here."""

    def instance_recovered(self, instance: Instance, is_running: bool) -> None:
        """Instances are not lost here."""


class Runs(BackendModelInstance):
    def execute(self, execution: Any) -> None:
        """Run nothing."""


class SlowToReturn:
    """An event loop that, after the start of the instance, blocks its thread until ``go_on`` is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.started, self.go_on = False, threading.Event()
        self.create_future, self.call_soon = loop.create_future, loop.call_soon

    def call_soon_threadsafe(self, *call: Any) -> None:
        held, self.started = self.started, True
        self._loop.call_soon_threadsafe(*call)
        if held:
            assert self.go_on.wait(60)


def test_instance_thread_keeps_no_reference_to_a_completed_batch() -> None:
    """Otherwise a client could not unregister its shared memory after the response."""

    async def main() -> None:
        loop: Any = SlowToReturn(asyncio.get_running_loop())
        answered: asyncio.Future[weakref.ref[Contents]] = loop.create_future()

        def done(instance: Instance, execution: Execution, error: TritonError | None) -> None:
            contents: Any = execution.requests[0].parameters["contents"]
            answered.set_result(weakref.ref(contents))

        instance = Instance(InstanceSpec("m_0", 0, "cpu", 0), Runs(), loop, Driver(done))
        await instance.start()
        instance.execute(batch(contents=Contents()))
        contents = await answered
        held = contents() is not None
        loop.go_on.set()
        await asyncio.to_thread(instance.end)
        assert not held

    asyncio.run(main())


class Fails(BackendModelInstance):
    """An instance that fails in one of two places."""

    def execute(self, execution: Any) -> None:
        if execution.requests[0].parameters["place"] == "here":
            raise ValueError("not here")
        raise ValueError("nor there")


def test_error_that_occurs_in_every_batch_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[str]:
        finished: asyncio.Queue[TritonError | None] = asyncio.Queue()
        instance = Instance(
            InstanceSpec("m_0", 0, "cpu", 0),
            Fails(),
            asyncio.get_running_loop(),
            Driver(lambda instance, execution, error: finished.put_nowait(error)),
        )
        await instance.start()
        for place in ("here", "here", "there", "here", "there"):
            instance.execute(batch(place=place))
        answers = [str(await finished.get()) for _ in range(5)]
        await asyncio.to_thread(instance.end)
        return answers

    answers = asyncio.run(main())
    assert sum("ValueError: not here" in answer for answer in answers) == 3
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.exc_info is not None for record in errors] == [True, True]
