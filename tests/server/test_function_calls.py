"""Models that call models of the same process: through handles, in cycles, and while the server stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import tritonnb as tnb
from tritonnb.core.errors import InternalError, TritonError, UnavailableError
from tritonnb.server import background as background_server
from tritonnb.server.server import Server

CYCLE = r"^all instances of model '{}' wait for one another"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(port=0) as server:
        yield server


def countdown(server: Server, name: str, next_name: str, instances: int = 1) -> None:
    """Serve a model that asks another one (or itself) for the answer to one less, down to 0."""

    @server.model(name=name, instance_group=[{"count": instances}])
    def model(x: tnb.FP32[1]) -> tnb.FP32[1]:
        return x if x[0] <= 0 else server[next_name](x=x - 1)["OUTPUT"] + 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("models", "x", "succeeds"),
    [
        ({"me": ("me", 1)}, 0, True),
        ({"me": ("me", 1)}, 1, False),
        ({"me": ("me", 2)}, 1, True),
        ({"me": ("me", 2)}, 2, False),
        ({"me": ("other", 1), "other": ("me", 1)}, 1, True),
        ({"me": ("other", 1), "other": ("me", 1)}, 2, False),
        ({"me": ("other", 2), "other": ("me", 1)}, 2, True),
        ({"me": ("other", 2), "other": ("me", 1)}, 3, False),
    ],
)
def test_call_cycle_fails_unless_a_free_instance_can_answer(
    server: Server, models: dict[str, tuple[str, int]], x: int, succeeds: bool
) -> None:
    for name, (next_name, instances) in models.items():
        countdown(server, name, next_name, instances)
    if succeeds:
        assert server["me"](x=[x])["OUTPUT"].tolist() == [x]
    else:
        with pytest.raises(TritonError, match="wait for one another"):
            server["me"](x=[x])
    assert server["me"](x=[0.0])["OUTPUT"].tolist() == [0]


def test_call_cycle_over_two_servers_fails(server: Server) -> None:
    with Server(port=0) as second:

        @server.model
        def first_model(x: tnb.FP32[1]) -> tnb.FP32[1]:
            return second["second_model"](x=x)["OUTPUT"]

        @second.model
        def second_model(x: tnb.FP32[1]) -> tnb.FP32[1]:
            return server["first_model"](x=x)["OUTPUT"]

        with pytest.raises(TritonError, match="wait for one another"):
            server["first_model"](x=[1.0])


def test_call_on_an_instances_event_loop_is_attributed_to_the_instance(server: Server) -> None:
    @server.model
    def me(x: tnb.FP32[1]) -> tnb.FP32[1]:
        return asyncio.run(server["me"].infer_async(x=x))["OUTPUT"]

    with pytest.raises(TritonError, match="wait for one another"):
        server["me"](x=[1.0])


def test_bls_call_to_a_busy_instance_waits(server: Server) -> None:
    held, entered = threading.Event(), threading.Event()

    @server.model
    def slow(x: tnb.FP32[1]) -> tnb.FP32[1]:
        entered.set()
        assert held.wait(30)
        return x

    @server.model
    def caller(x: tnb.FP32[1]) -> tnb.FP32[1]:
        return server["slow"](x=x)["OUTPUT"]

    async def both() -> list[float]:
        first = asyncio.ensure_future(server["slow"].infer_async(x=[1.0]))
        await asyncio.to_thread(entered.wait, 30)
        second = asyncio.ensure_future(server["caller"].infer_async(x=[2.0]))
        held.set()
        return [float(result["OUTPUT"][0]) for result in await asyncio.gather(first, second)]

    assert asyncio.run(both()) == [1.0, 2.0]


def test_passive_instance_answers_no_call(server: Server) -> None:
    @server.model(instance_group=[{"count": 1}, {"count": 1, "passive": True}])
    def me(x: tnb.FP32[1]) -> tnb.FP32[1]:
        return server["me"](x=x)["OUTPUT"]

    with pytest.raises(UnavailableError, match="wait for one another"):
        server["me"](x=np.ones(1, np.float32))


@pytest.mark.parametrize("requests", [1, 2])
def test_stop_logs_pending_requests_and_abandoned_ones(
    requests: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_server, "REPORT_INTERVAL_S", 0.01)
    held, entered = threading.Event(), threading.Event()
    server = Server(port=0, exit_timeout=0.2)

    @server.model
    def slow(x: tnb.FP32[1]) -> tnb.FP32[1]:
        entered.set()
        assert held.wait(30)
        return x

    @server.model
    def idle(x: tnb.FP32[1]) -> tnb.FP32[1]:
        return x

    async def stop() -> None:
        waiting = [asyncio.ensure_future(server["slow"].infer_async(x=[1.0])) for _ in range(requests)]
        await asyncio.to_thread(entered.wait, 30)
        what = "1 request" if requests == 1 else f"{requests} requests"
        with pytest.raises(InternalError) as caught:
            await asyncio.to_thread(server.stop)
        assert str(caught.value) == (
            f"the server was stopped after 0.2 s (exit_timeout) while it waited for model 'slow' ({what}): "
            "the results of running executions are lost"
        )
        printed = capsys.readouterr().out.splitlines()
        assert set(printed) == {f"stop() waits for model 'slow' ({what}), at most 0.2 s (exit_timeout)"}
        held_by_stop = await asyncio.gather(*waiting, return_exceptions=True)
        held.set()
        error = "the server was stopped after 0.2 s (exit_timeout) before model 'slow' answered the request"
        assert [(type(outcome), str(outcome)) for outcome in held_by_stop] == [(UnavailableError, error)] * requests

    asyncio.run(stop())
