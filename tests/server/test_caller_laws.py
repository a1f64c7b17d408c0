"""Whoever waits for a response in this process is answered, whatever is cancelled, raised or stopped meanwhile."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as grpcclient
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tritonclient.utils import InferenceServerException

import tritonnb as tnb
from tests.engine.ensembles import TENSORS, serve_ensemble
from tests.engine.gated import Gate, GatedBackend, gated_config
from tests.laws import law
from tests.waiting import wait_for
from tritonnb.client.array_requests import make_request
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.engine.models.bls import models_waited_for
from tritonnb.engine.repository.directories import ModelSource
from tritonnb.engine.repository.table import ExitTimeoutError
from tritonnb.engine.submission import Submission

pytestmark = pytest.mark.slow

MODELS = ["m", "e", "calls_m", "calls_e", "step_calls_m"]
ENDED = (TritonError, CancelledError, KeyboardInterrupt)


class Caller:
    """A thread that calls a model, and its outcome."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.outcome: Future[object] = Future()
        self._call = call
        self._calling = True
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            try:
                result = self._call()
            finally:
                with self._lock:
                    self._calling = False
                    self._raise(None)  # what `interrupt` has requested too late
        except BaseException as error:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(result)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the call, as the handler of a signal does in the main thread."""
        with self._lock:
            if self._calling:
                self._raise(KeyboardInterrupt)

    def _raise(self, error: type[BaseException] | None) -> None:
        argument = None if error is None else ctypes.py_object(error)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), argument)


class Loop:
    """The event loop of callers with ``await``, on its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._settle(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _settle(self) -> None:
        """Wait for tasks whose futures were cancelled first."""
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)


class Served:
    """The part of a driver that `serve_ensemble` needs."""

    def __init__(self, server: tnb.Server) -> None:
        self.background, self.engine = server, server.engine


def serve(gate: Gate, grpc_port: int | None = None) -> tnb.Server:
    """A server with a gated model ``m``, an ensemble ``e`` of it, and functions that call them."""
    server = tnb.Server(port=0, exit_timeout=0.05, grpc_port=grpc_port)
    server.run(server.engine.load_source(ModelSource("m", Path(), gated_config(), (1,), GatedBackend(gate))))

    def calls(target: str) -> Callable[..., Any]:
        def call(X: Any) -> Any:
            return {"Y": server[target](X=X)["Y"]}

        call.__annotations__ = {"X": tnb.INT32[1], "return": {"Y": tnb.INT32[1]}}
        return call

    options: dict[str, Any] = {"max_batch_size": 8, "instance_group": [{"count": 2}]}
    server.model(name="calls_m", **options)(calls("m"))
    serve_ensemble(Served(server), "m: X -> mid", "m: mid -> Y", tensors=TENSORS)  # type: ignore[arg-type]
    server.model(name="calls_e", **options)(calls("e"))
    serve_ensemble(Served(server), "calls_m: X -> mid", "m: mid -> Y", name="step_calls_m")  # type: ignore[arg-type]
    return server


class Callers(RuleBasedStateMachine):
    """Callers of a model whose executions wait for the test, of ensembles of it, and of models that call it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.server = serve(self.gate)
        self.handles = {model: self.server[model] for model in MODELS}
        self.spec = self.server.engine.model("m").spec
        self.loop = Loop()
        self.threads: list[Caller] = []
        self.tasks: list[Future[object]] = []
        self.others: list[Future[object]] = []
        self.stopped = False
        self.number = 0

    def x(self, fails: bool) -> np.ndarray[Any, Any]:
        self.number += 1
        return np.array([[-self.number if fails else self.number]], np.int32)

    @rule(model=st.sampled_from(MODELS), fails=st.booleans())
    def call(self, model: str, fails: bool) -> None:
        x, handle = self.x(fails), self.handles[model]
        self.threads.append(Caller(lambda: handle(X=x)))

    @rule(model=st.sampled_from(MODELS), fails=st.booleans())
    def call_with_await(self, model: str, fails: bool) -> None:
        x, handle = self.x(fails), self.handles[model]
        self.tasks.append(asyncio.run_coroutine_threadsafe(handle.infer_async(X=x), self.loop.loop))

    @rule(model=st.sampled_from(MODELS), count=st.integers(2, 4))
    def several_call_at_once(self, model: str, count: int) -> None:
        barrier = threading.Barrier(count)
        handle = self.handles[model]

        def call(x: Any) -> object:
            barrier.wait(30)
            return handle(X=x)

        for _ in range(count):
            x = self.x(False)
            self.threads.append(Caller(lambda x=x: call(x)))  # type: ignore[misc]

    @rule(model=st.sampled_from(MODELS), raises=st.sampled_from([RuntimeError, SystemExit, KeyboardInterrupt]))
    def call_with_a_callback_that_raises(self, model: str, raises: type[BaseException]) -> None:
        """Neither the callback's own request nor others wait for ever."""
        request, called = make_request(self.spec, -1, {"X": self.x(False)}), Future[object]()
        request.model_name = model

        def respond(response: InferResponse) -> None:
            if not called.done():
                called.set_result(response)
            raise raises("callback")

        self.others.append(called)
        self.submit(Submission(respond), request)

    @rule(model=st.sampled_from(MODELS))
    def call_with_an_observer_that_raises(self, model: str) -> None:
        request, called = make_request(self.spec, -1, {"X": self.x(False)}), Future[object]()
        request.model_name = model

        def observe(_: InferRequest, response: InferResponse) -> None:
            raise RuntimeError("observer")

        request.observe_responses(observe)
        self.others.append(called)
        self.submit(Submission(called.set_result), request)

    def submit(self, submission: Submission, request: InferRequest) -> None:
        engine = self.server.engine
        engine.submitter.submit(submission, request, engine.submit)

    @precondition(lambda self: self.tasks)
    @rule(index=st.integers(0, 100))
    def cancel_a_task(self, index: int) -> None:
        self.tasks[index % len(self.tasks)].cancel()

    @precondition(lambda self: self.threads)
    @rule(index=st.integers(0, 100))
    def interrupt_a_thread(self, index: int) -> None:
        self.threads[index % len(self.threads)].interrupt()

    @rule(count=st.integers(1, 3))
    def let_executions_end(self, count: int) -> None:
        self.gate.let_through(count)

    @precondition(lambda self: not self.stopped)
    @rule()
    def finish_everything(self) -> None:
        self.gate.open()
        self.expect_answers()
        self.expect_nothing_in_flight()
        self.gate.shut()

    @precondition(lambda self: not self.stopped)
    @rule()
    def stop(self) -> None:
        self.stopped = True
        with suppress(ExitTimeoutError):
            self.server.stop()
        self.expect_answers()

    def expect_answers(self) -> None:
        outcomes = [*(caller.outcome for caller in self.threads), *self.tasks, *self.others]
        for outcome in outcomes:
            try:
                outcome.result(timeout=30)
            except TimeoutError:
                raise AssertionError("a caller waits for ever") from None
            except ENDED:
                pass
        self.threads.clear()
        self.tasks.clear()
        self.others.clear()

    def expect_nothing_in_flight(self) -> None:
        """An interrupted caller does not wait for the end of its request, so this waits for it."""
        engine = self.server.engine
        # Again, since a request of one model may send another to a model that has been waited for.
        while any(engine.model(model).in_flight for model in MODELS):
            for model in MODELS:
                self.server.run(engine.model(model).wait_until_drained())
        assert [engine.model(model).driver.queue_depth() for model in MODELS] == [0] * len(MODELS)
        assert not engine.submitter._pending
        for model in MODELS:
            assert not any(map(models_waited_for, engine.model(model).instances))
        drivers = [engine.model(model).driver for model in MODELS]
        while any(type(item) is InferRequest and item.accepted_by in drivers for item in gc.get_objects()):
            gc.collect()  # until the last thread has let go

    @invariant()
    def the_server_lives_until_it_is_stopped(self) -> None:
        assert self.server.alive is not self.stopped

    def teardown(self) -> None:
        try:
            if not self.stopped:
                self.finish_everything()
                self.stop()
        finally:
            self.gate.open()
            self.loop.close()


class BusyLoop:
    """An event loop whose first call from another thread fails, after other threads have submitted requests."""

    def __init__(self, others: Callable[[], None], error: BaseException, is_closed: bool) -> None:
        self._others, self._error, self._is_closed = others, error, is_closed
        self.calls: list[Callable[[], None]] = []
        self._called = False

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        if not self._called:
            self._called = True
            self._others()
            raise self._error
        if self._is_closed:
            raise RuntimeError("closed")
        self.calls.append(function)


@pytest.mark.parametrize("interrupted", [False, True], ids=["closed", "interrupted"])
def test_request_that_relies_on_the_wake_up_of_another_thread_is_not_lost(interrupted: bool) -> None:
    with tnb.Server(port=0) as server:
        outcomes: dict[str, InferResponse] = {}
        engine, submitter = server.engine, server.engine.submitter

        def submit(name: str) -> None:
            submission = Submission(lambda response: outcomes.update({name: response}))
            submitter.submit(submission, InferRequest(name, {}), engine.submit)

        error = KeyboardInterrupt() if interrupted else RuntimeError("closed")
        loop = BusyLoop(lambda: submit("second"), error, not interrupted)
        submitter.loop = loop  # type: ignore[assignment]
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                submit("first")
            for function in loop.calls:
                server.call(function)
        else:
            submit("first")
        text = "Request for unknown model: '{}' is not found" if interrupted else "the server has been stopped"
        assert {name: str(response.error) for name, response in outcomes.items()} == {
            name: text.format(name) for name in ("first", "second")
        }


def test_remote_clients_are_told_why_a_server_that_stops_does_not_answer() -> None:
    gate = Gate()
    server = serve(gate, grpc_port=0)
    url, grpc_url = f"{server.url}/v2/models/m/infer", f"127.0.0.1:{server.grpc_port}"
    x: Any = {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    with ThreadPoolExecutor() as pool, grpcclient.InferenceServerClient(grpc_url) as client:
        tensor = grpcclient.InferInput("X", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
        http = pool.submit(requests.post, url, json={"inputs": [x]}, timeout=30)
        grpc = pool.submit(client.infer, "m", [tensor])
        while server.call(lambda: server.engine.model("m").in_flight) < 2:
            pass
        with pytest.raises(ExitTimeoutError):
            server.stop()
        text = "the server was stopped after 0.05 s (exit_timeout) before model 'm' answered the request"
        assert (http.result(30).status_code, http.result(30).json()) == (503, {"error": text})
        with pytest.raises(InferenceServerException, match=re.escape(text)) as caught:
            grpc.result(30)
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
    gate.open()


@pytest.mark.timeout(600)
@pytest.mark.hypothesis
def test_callers_are_answered(answered_twice: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest would keep the tracebacks of what it captures, and with them the requests.
    monkeypatch.setattr(logging.getLogger("tritonnb"), "propagate", False)
    run_state_machine_as_test(Callers, settings=law(30, stateful_step_count=15))
    answered_twice[:] = [text for text in answered_twice if "no response after the final one" in text]


CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(model_name="m", requested_output_names=["Y"], inputs=request.inputs())
            answer = call.exec()
            error = answer.error()
            responses.append(pb_utils.InferenceResponse(answer.output_tensors(), error))
        return responses
"""


@pytest.mark.parametrize("mode", ["in_process", "isolated"])
@pytest.mark.parametrize("ending", ["stop", "cancel", "model fails", "unknown model"])
def test_caller_of_a_model_that_calls_another_one_is_answered(tmp_path: Path, mode: str, ending: str) -> None:
    called = "missing" if ending == "unknown model" else "m"
    (tmp_path / "caller" / "1").mkdir(parents=True)
    (tmp_path / "caller" / "1" / "model.py").write_text(CALLER.replace('"m"', repr(called)))
    config = f'backend: "python" max_batch_size: 8 {TENSORS} '
    process = f'parameters {{ key: "EXECUTION_PROCESS" value {{ string_value: "{mode}" }} }}'
    (tmp_path / "caller" / "config.pbtxt").write_text(config + process)
    gate = Gate()
    server = tnb.Server(tmp_path, port=0, exit_timeout=0.05)
    server.run(server.engine.load_source(ModelSource("m", Path(), gated_config(), (1,), GatedBackend(gate))))
    handle, loop = server["caller"], Loop()
    try:
        x = np.array([[-1 if ending == "model fails" else 1]], np.int32)
        thread = Caller(lambda: handle(X=x))
        task = asyncio.run_coroutine_threadsafe(handle.infer_async(X=x), loop.loop)
        if called == "m":
            gate.wait_begun()
        if ending == "stop":
            with suppress(ExitTimeoutError):
                server.stop()
        elif ending == "cancel":
            task.cancel()
            thread.interrupt()
        gate.open()
        for outcome in (thread.outcome, task):
            with pytest.raises(ENDED):
                outcome.result(30)
        if ending != "stop":
            for model in ("caller", "m"):
                server.run(server.engine.model(model).wait_until_drained())
            # A call that was cancelled while it was submitted may still be executed.
            wait_for(lambda: not any(map(models_waited_for, server.engine.model("caller").instances)))
    finally:
        gate.open()
        loop.close()
        with suppress(ExitTimeoutError):  # the child does not end in that time
            server.stop()
