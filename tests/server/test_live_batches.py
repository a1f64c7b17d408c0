"""The dynamic batcher's scenarios against the wall clock: what the tests of the scheduler say in virtual
time, a live server does. Rows are requests ``(ms, rows[, how long a batch that starts with it takes])``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tritonnb.core.events import BatchSent
from tritonnb.server.server import Server

THIRD = 100
#: A machine that is busy with something else may send a request too late; not five times in a row.
TRIES = 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dynamic_batching", "arrivals", "batches"),
    [
        pytest.param({}, [(0, 1, 400), *[(50 + 10 * k, 1) for k in range(10)], (200, 3), (210, 6), (220, 1)],
                     [[0], [1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11], [12, 13]], id="1"),
        pytest.param(None, [(0, 1, 200), (40, 1), (50, 1)], [[0], [1], [2]], id="2"),
        pytest.param({"preferred_batch_size": [4]}, [(0, 1, 300), *[(40 + 10 * k, 1) for k in range(7)]],
                     [[0], [1, 2, 3, 4], [5, 6, 7]], id="3"),
        pytest.param({"preferred_batch_size": [4]}, [(0, 1, 300), (50, 3), (60, 2), (70, 1)],
                     [[0], [1, 2], [3]], id="4"),
        pytest.param({"max_queue_delay_microseconds": 300_000}, [(0, 1), (100, 1), (150, 1)], [[0, 1, 2]], id="5"),
        pytest.param({"max_queue_delay_microseconds": 300_000}, [(0, 4), (100, 3), (150, 1)], [[0, 1, 2]], id="6"),
        pytest.param({"max_queue_delay_microseconds": 300_000}, [(0, 5), (100, 4)], [[0], [1]], id="7"),
        pytest.param({"max_queue_delay_microseconds": 300_000, "preferred_batch_size": [4]}, [(0, 3), (100, 2)],
                     [[0], [1]], id="8"),
        pytest.param({"max_queue_delay_microseconds": 300_000, "preferred_batch_size": [2, 6]},
                     [(0, 1), (50, 1), (100, 1), (150, 3)], [[0, 1], [2, 3]], id="9"),
        pytest.param({"max_queue_delay_microseconds": 300_000, "preferred_batch_size": [4]},
                     [(0, 4, 900), (50, 3), (150, 2), (200, 1)], [[0], [1, 2, 3]], id="13"),
        pytest.param({"max_queue_delay_microseconds": 120_000},
                     [(0, 4, 300), (THIRD, 2, 300), (0, 2, 300), (2 * THIRD, 6, 300), (2 * THIRD, 2, 300)],
                     [[0, 2, 1], [3, 4]], id="A-E"),
    ],
)  # fmt: skip
def test_simulated_batches_equal_the_expected_ones(
    dynamic_batching: dict[str, Any] | None, arrivals: list[tuple[Any, ...]], batches: list[list[int]]
) -> None:
    fields: dict[str, Any] = {} if dynamic_batching is None else {"dynamic_batching": dynamic_batching}

    async def ask(index: int, at_ms: float, rows: int, run_ms: float = 1) -> None:
        await asyncio.sleep(at_ms / 1000)
        await server["timed"].infer_async(MS=np.full((rows, 1), run_ms, np.float32), parameters={"index": index})

    async def play() -> None:
        await asyncio.gather(*(ask(index, *arrival) for index, arrival in enumerate(arrivals)))

    for _ in range(TRIES):
        with Server(port=0) as server:

            @server.model(name="timed", max_batch_size=8, **fields)  # type: ignore[untyped-decorator]
            def timed(MS: tnb.FP32[1]) -> tnb.FP32[1]:
                time.sleep(float(MS.max()) / 1000)  # type: ignore[attr-defined]
                return MS

            with server.record() as rec:
                asyncio.run(play())
        # Requests arrive in the order of their times, ties in the order of the list.
        arrived = sorted(range(len(arrivals)), key=lambda index: arrivals[index][0])
        order = dict(zip(sorted(request.serial for request in rec.requests), arrived, strict=True))
        seen = [[order[serial] for serial in batch.requests] for batch in rec.batches]  # type: ignore[index]
        if seen == batches:
            break
    assert seen == batches


def test_reason_states_by_how_much_a_batch_was_late() -> None:
    with Server(port=0) as server:

        @server.model(max_batch_size=8, dynamic_batching={"max_queue_delay_microseconds": 20_000})
        def timed(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X

        def hold_loop() -> None:
            until = time.monotonic() + 0.06
            while time.monotonic() < until:
                pass

        async def call_while_python_is_busy() -> None:
            call = asyncio.create_task(server["timed"].infer_async(X=np.ones((1, 1), np.float32)))
            await asyncio.sleep(0)
            server.call(hold_loop)
            await call

        with server.record() as rec:
            asyncio.run(call_while_python_is_busy())
    (sent,) = (event for event in rec.events if isinstance(event, BatchSent))
    (request,) = rec.requests
    assert sent.facts["waited_ns"] + sent.facts["late_ns"] == pytest.approx(sent.time_ns - request.queued_ns, abs=1e5)
    assert rec.batches[0].why.endswith(" later: the server's own work")


LATE = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        output = pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy())
        sender.send(pb_utils.InferenceResponse([output]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        time.sleep(0.2)
"""


def test_recording_has_the_end_of_an_execution_after_the_last_response(write_model: Callable[..., Path]) -> None:
    with Server(write_model("late", LATE, "model_transaction_policy { decoupled: true }"), port=None) as server:
        with server.record() as rec:
            server["late"].infer_all(X=np.ones((1, 1), np.float32))
        (batch,) = rec.batches
        assert batch.exec_end_ns - batch.exec_start_ns >= 200e6


def test_interrupted_recording_follows_no_more_events(
    write_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes while the recording waits for the end of the execution."""
    with Server(write_model("late", LATE, "model_transaction_policy { decoupled: true }"), port=None) as server:

        def interrupt(coroutine: Coroutine[Any, Any, None]) -> None:
            task = server.call(lambda: asyncio.ensure_future(coroutine))
            server.call(task.cancel)
            raise KeyboardInterrupt

        sinks = server.engine.stream._sinks
        recording = server.record()
        recording.__enter__()
        server["late"].infer_all(X=np.ones((1, 1), np.float32))
        monkeypatch.setattr(server, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            recording.__exit__(None, None, None)
        monkeypatch.undo()
        assert server.call(lambda: server.engine.stream._sinks) == sinks
