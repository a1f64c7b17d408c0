"""Failures of a server: one clear sentence, and no thread, socket or setting is left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

import tritonnb as tnb
from tests.client.conftest import needs_triton
from tests.client.servers import PACKAGE, ServerProcess, start, write_model
from tests.lab.traces.traffic import send
from tests.waiting import wait_for
from tritonnb.client.trace_state import TRACE_COUNT
from tritonnb.notebook import remote_view

SERVERS = [False, pytest.param(True, marks=[needs_triton, pytest.mark.slow])]


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Check that the block leaves no thread of ours and no socket."""

    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("tritonnb")}

    def sockets() -> int:
        return len(psutil.Process().net_connections("tcp"))

    before = threads(), sockets()
    yield
    deadline = time.monotonic() + 20
    while (threads() - before[0] or sockets() > before[1]) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert threads() <= before[0]
    assert sockets() <= before[1]


@contextmanager
def server_to_kill(
    tmp_path: Path, triton: bool, *, trace: Sequence[str] = (), control: str = "explicit"
) -> Iterator[ServerProcess]:
    write_model(tmp_path / "repository", "one")
    with start(tmp_path / "repository", triton=triton, trace=trace, control=control) as server:
        yield server


@pytest.fixture(scope="module", params=SERVERS, ids=["tritonnb", "triton"])
def surviving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for the tests that leave its process and its settings as they were."""
    with server_to_kill(tmp_path_factory.mktemp("surviving"), request.param) as server:
        yield server


def recording(remote: tnb.Remote, kill: Callable[[], None]) -> None:
    with remote.record("one"):
        remote["one"](X=[[1.0]])
        kill()


def loading(remote: tnb.Remote, kill: Callable[[], None]) -> None:
    load = tnb.load(remote["one"], clients=4, grace=2)
    wait_for(lambda: load.completed >= 20)
    kill()
    wait_for(lambda: load.failed)
    load.stop()
    result = load.wait(30)
    assert result.failed
    raise tnb.TritonError(next(iter(result.errors)))


def editing(remote: tnb.Remote, kill: Callable[[], None]) -> None:
    editor = remote["one"].edit()
    editor.set_field("dynamic_batching.max_queue_delay_microseconds", 7000)
    editor.settle()
    editor.apply()
    kill()
    editor.close()


def sweeping(remote: tnb.Remote, kill: Callable[[], None]) -> None:
    sweep = tnb.sweep(
        remote["one"], max_queue_delay_microseconds=[0, 100, 200, 300], clients=2, requests=2000, live=True
    )
    while remote["one"].stats()["inference_count"] < 20:
        time.sleep(0.01)
    kill()
    sweep.wait(90)


def watching_statistics(remote: tnb.Remote, kill: Callable[[], None]) -> None:
    view = remote["one"].watch()
    kill()
    deadline = time.monotonic() + 30
    while "Ended:" not in view.status.value and time.monotonic() < deadline:
        time.sleep(0.02)
    text = view.status.value
    view.close()
    raise tnb.TritonError(text)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("triton", SERVERS, ids=["tritonnb", "triton"])
@pytest.mark.parametrize("use", [recording, loading, editing, sweeping, watching_statistics])
def test_killed_server_is_one_sentence(
    tmp_path: Path, triton: bool, use: Callable[[tnb.Remote, Callable[[], None]], None]
) -> None:
    warnings.simplefilter("ignore", UserWarning)
    with server_to_kill(tmp_path, triton) as server, nothing_left_behind():
        remote = tnb.connect(server.http, timeout=30)
        with pytest.raises(tnb.TritonError) as failure:
            use(remote, server.kill)
        text = str(failure.value)
        print(f"\n{use.__name__}: {text}")
        assert "no HTTP server of the v2 protocol responds at" in text or "the server closed the connection" in text
        with suppress(tnb.TritonError):  # the configuration cannot be restored
            remote.close()
        with pytest.raises(tnb.TritonError, match="the connection has been closed"):
            remote.index()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("triton", SERVERS, ids=["tritonnb", "triton"])
def test_killed_server_ends_a_watch_with_traces(tmp_path: Path, triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with tnb.otlp_receiver(port=0) as receiver:
        trace = ["mode=opentelemetry", f"opentelemetry,url={receiver.url}", "opentelemetry,bsp_schedule_delay=200"]
        with server_to_kill(tmp_path, triton, trace=trace) as server, nothing_left_behind():
            remote = tnb.connect(server.http, timeout=30)
            before = remote.trace_settings("one")
            view = remote["one"].watch(receiver)
            assert remote.trace_settings("one")["trace_level"] == ["TIMESTAMPS"]
            send(server.grpc, "one", 50, clients=4)
            deadline = time.monotonic() + 60
            while len(view.recording().requests) < 50 and time.monotonic() < deadline:
                time.sleep(0.05)
            while view.batches is None or view.batches.history["counts"]["requests"] < 50:
                view.refresh()
                assert time.monotonic() < deadline
            assert "one</b>, from traces (OTLP): 50 requests received" in view.status.value
            assert len(view.recording().requests) == 50
            assert remote.trace_settings("one")["trace_count"] == str(TRACE_COUNT - 50)
            monkeypatch.setattr(remote_view, "_RENEWAL_S", 0.0)
            view.refresh()
            assert remote.trace_settings("one")["trace_count"] == str(TRACE_COUNT)
            view.close()
            assert remote.trace_settings("one") == before
            view = remote["one"].watch(receiver)
            server.kill()
            with pytest.raises(tnb.TritonError, match="the trace settings of these models were not restored: 'one'"):
                view.close()


# --- processes that are killed --------------------------------------------------------------------


def killed(code: str, url: str) -> None:
    """Run a program with a connection until it prints a line, and kill it."""
    program = f"import sys, tritonnb as tnb\nremote = tnb.connect({url!r})\n{code}"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()


RECORDING = """
with remote.record("one"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.timeout(180)
def test_traces_that_a_killed_process_left_on_are_limited_found_and_put_back(surviving: ServerProcess) -> None:
    with tnb.connect(surviving.grpc) as remote:
        before = remote.trace_settings("one")
    killed(RECORDING, surviving.grpc)
    with pytest.warns(UserWarning, match="model 'one' is traced: every request, with its time stamps"):
        remote = tnb.connect(surviving.grpc)
    left = remote.trace_settings("one")
    assert (left["trace_level"], left["trace_count"]) == (["TIMESTAMPS"], str(TRACE_COUNT))
    assert remote.restore() == ["model 'one': its trace settings are the server's"]
    assert remote.trace_settings("one") == before
    remote.close()


@pytest.mark.timeout(180)
def test_recording_excludes_requests_traced_by_a_killed_recording(surviving: ServerProcess) -> None:
    killed(RECORDING.replace("print", "remote['one'](X=[[1.0]]); print"), surviving.grpc)
    with pytest.warns(UserWarning, match="model 'one' is traced"):
        remote = tnb.connect(surviving.grpc)
    with pytest.warns(UserWarning, match="model 'one' is traced"), remote.record("one") as recording:
        remote["one"](X=[[1.0], [2.0]])
    remote.restore()
    remote.close()
    assert [request.size for request in recording.requests] == [2]


APPLYING = """
with remote["one"].config as config:
    config.dynamic_batching.max_queue_delay_microseconds = 7000
    config.apply()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.timeout(180)
def test_configuration_applied_by_a_killed_process_is_found_and_restored(surviving: ServerProcess) -> None:
    with tnb.connect(surviving.http) as remote:
        before = remote["one"].config.text
    killed(APPLYING, surviving.http)
    with pytest.warns(UserWarning, match="model 'one' runs a configuration that was applied over the network"):
        remote = tnb.connect(surviving.http)
    assert remote["one"].config.dynamic_batching.max_queue_delay_microseconds == 7000
    assert remote.restore() == ["model 'one': its configuration is the one before"]
    assert remote["one"].config.text == before
    remote.close()


@pytest.mark.parametrize("triton", SERVERS, ids=["tritonnb", "triton"])
def test_applying_requires_explicit_model_control(tmp_path: Path, triton: bool) -> None:
    sentence = "accepts no configurations: start that server with --model-control-mode=explicit"
    with server_to_kill(tmp_path, triton, control="none") as server, tnb.connect(server.http) as remote:
        config = remote["one"].config
        before = config.text
        config.dynamic_batching.max_queue_delay_microseconds = 7000
        with pytest.raises(tnb.TritonError, match=sentence):
            config.apply()
        with pytest.raises(tnb.TritonError, match=sentence):
            tnb.sweep(remote["one"], count=[2], clients=1, requests=10, live=True).wait(30)
        assert remote["one"].config.text == before


@pytest.mark.slow
@pytest.mark.parametrize("surviving", [False], indirect=True)
def test_missing_or_unreadable_trace_file_is_an_error(tmp_path: Path, surviving: ServerProcess) -> None:
    with server_to_kill(tmp_path, False, trace=["rate=1"]) as server, tnb.connect(server.http) as remote:
        with pytest.raises(tnb.TritonError, match="start it with --trace-config triton,file=PATH") as refused:
            with remote.record("one"):
                raise AssertionError("the block must not run")
        assert package_frames(refused.value) == []
    with tnb.connect(surviving.http) as remote:
        before = remote.trace_settings("one")
        with pytest.raises(tnb.TritonError, match="pass trace_file= with its path on this machine, or a receiver"):
            with remote.record("one", trace_file="/nowhere/trace.json"):
                raise AssertionError("the block must not run")
        with tnb.otlp_receiver(port=0) as receiver:
            with pytest.raises(tnb.TritonError, match="traces in the mode 'triton'"):
                with remote.record("one", receiver=receiver):
                    raise AssertionError("the block must not run")
        assert remote.trace_settings("one") == before
        shared = tmp_path / "shared"
        os.symlink(surviving.trace_file.parent, shared)
        with remote.record("one", trace_file=shared / surviving.trace_file.name) as recording:
            remote["one"](X=[[1.0]])
        assert len(recording.requests) == 1


def package_frames(error: BaseException) -> list[str]:
    """The functions of this package in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in frames if Path(frame.filename).is_relative_to(PACKAGE / "tritonnb")]


def record_elsewhere(remote: tnb.Remote, trace_file: Path, content: str | None) -> None:
    """Record one request, whose trace the server does not write to the file, and perhaps write something else there."""
    with remote.record("one", trace_file=trace_file, timeout=0.2):
        remote["one"](X=[[1.0]])
        if content is not None:
            trace_file.write_text(content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"nothing new is in '.*elsewhere/trace\.json' or '.*trace\.json\.0', … on this machine"),
        ("text", r"'.*elsewhere/trace\.json' cannot be read: expected a list of objects with an 'id'"),
    ],
    ids=["nothing there", "another file there"],
)
@pytest.mark.parametrize("surviving", [False], indirect=True)
def test_unreadable_traces_are_an_error_with_a_remedy(
    tmp_path: Path, surviving: ServerProcess, content: str | None, reason: str
) -> None:
    elsewhere = tmp_path / "elsewhere" / "trace.json"
    elsewhere.parent.mkdir()
    with tnb.connect(surviving.http) as remote:
        before = remote.trace_settings("one")
        with pytest.raises(tnb.TritonError, match=f"counted 1 request, and the server writes .* and {reason}") as error:
            record_elsewhere(remote, elsewhere, content)
        for remedy in ("trace_file=", "tnb.Recording.from_trace(PATH, CONFIG)", "receiver=tnb.otlp_receiver()"):
            assert remedy in str(error.value)
        assert package_frames(error.value) == []
        assert remote.trace_settings("one") == before
        with remote.record("one", trace_file=elsewhere) as recording:
            pass
        assert not recording.requests


def test_missing_spans_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    with tnb.otlp_receiver(port=0) as receiver, tnb.otlp_receiver(port=0) as other:
        trace = ["mode=opentelemetry", f"opentelemetry,url={other.url}"]
        with server_to_kill(tmp_path, False, trace=trace) as server, tnb.connect(server.http) as remote:
            message = f"no spans of them arrived at {receiver.url}: start the server with"
            with pytest.raises(tnb.TritonError, match=message):
                with remote.record("one", receiver=receiver, timeout=0.2):
                    remote["one"](X=[[1.0]])
