"""However the block of a recording ends, the recording has what happened until then."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest

import tritonnb as tnb
from tritonnb.errors import TritonError, UnavailableError


def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    return X * 2


def serve() -> tnb.Server:
    server = tnb.Server(port=0)
    server.model(double, max_batch_size=4)
    return server


def stop_on_another_thread(server: tnb.Server) -> None:
    thread = threading.Thread(target=server.stop)
    thread.start()
    thread.join()


def replace(server: tnb.Server) -> None:
    tnb.Server(port=0, replaces=server).stop()


def interrupt(server: tnb.Server) -> None:
    raise KeyboardInterrupt


def fail(server: tnb.Server) -> None:
    raise ValueError("of the block")


def unload(server: tnb.Server) -> None:
    server.unload("double")


@pytest.mark.parametrize(
    ("end", "raised"),
    [
        (tnb.Server.stop, None),
        (stop_on_another_thread, None),
        (replace, None),
        (interrupt, KeyboardInterrupt),
        (fail, ValueError),
    ],
)
def test_recording_has_what_happened_until_its_block_ended(
    end: Callable[[tnb.Server], None], raised: type[BaseException] | None
) -> None:
    server = serve()
    with pytest.raises(raised) if raised else contextlib.nullcontext(), server.record() as outer:
        with server.record() as inner:
            server["double"](X=[[1.0], [2.0]])
            end(server)
    server.stop()
    for recording in (inner, outer):
        assert [batch.size for batch in recording.batches] == [2]
        assert recording.configs["double"].max_batch_size == 4
        assert "1 request" in recording.verdict()


def test_interrupt_while_a_recording_waits_for_executions_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(coroutine: object) -> None:
        coroutine.close()  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    with serve() as server:
        block = server.record()
        recording = block.__enter__()
        server["double"](X=[[1.0]])
        monkeypatch.setattr(server, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            block.__exit__(None, None, None)
        monkeypatch.undo()
        server["double"](X=[[1.0]])
        assert len(recording.batches) == 1


def test_recording_ends_with_the_server_of_its_async_block() -> None:
    async def record() -> tnb.Recording:
        async with serve() as server:
            with server.record() as recording:
                await server["double"].infer_async(X=[[1.0]])
                await asyncio.to_thread(server.stop)
        return recording

    assert len(asyncio.run(record()).batches) == 1


def test_recording_of_a_stopped_server_cannot_begin() -> None:
    server = serve()
    server.stop()
    with pytest.raises(UnavailableError, match="the server has been stopped"), server.record():
        pass


def test_load_of_a_stopped_server_says_so() -> None:
    server = serve()
    handle = server["double"]
    server.stop()
    with pytest.raises(UnavailableError, match="the server has been stopped"):
        tnb.load(handle, clients=1, requests=3).wait(10)


def test_remote_recording_of_a_server_that_dies_has_the_traces_until_then(tmp_path: object) -> None:
    trace = tnb.TraceOptions(f"{tmp_path}/trace.json", frozenset({"TIMESTAMPS"}), rate=1)
    server = tnb.Server(port=0, trace=trace)
    server.model(double, max_batch_size=4)
    remote = tnb.connect(server.url)
    block = remote.record("double")
    recording = block.__enter__()
    remote["double"](X=[[1.0]])
    server.stop()
    with pytest.raises(TritonError):
        block.__exit__(None, None, None)
    assert len(recording.batches) == 1
