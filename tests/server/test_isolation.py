"""Models in their own processes: what crosses the boundary, and faults that cost their batch and nothing else."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.server.isolated import ISOLATED, MODEL, ask, children, parameter, shared_memory, write
from tests.waiting import wait_for
from tritonnb.backends.isolation.process import ChildProcess
from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError, UnavailableError, UnsupportedError
from tritonnb.core.events import InstanceStateChanged
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

CRASH_LINE = MODEL.splitlines().index("        ctypes.string_at(0)") + 1
NOT_HEALTHY = "Stub process 'm_0' is not healthy."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve one isolated model ``m``, and one in this process."""
    repository = write(tmp_path_factory.mktemp("isolated"), "m", parameter("EXECUTION_TIMEOUT", 0.5))
    write(repository, "other", parameter("EXECUTION_PROCESS", "in_process"))
    with Server(repository, port=0, metrics_port=0, isolate=True) as server:
        yield server


def states(server: Server) -> list[tuple[str, str, str]]:
    events = [event for event in server.recent().events if isinstance(event, InstanceStateChanged)]
    return [(event.instance, event.state, event.reason) for event in events]


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("segfault", f"its process ended: signal SIGSEGV (line {CRASH_LINE} of {{directory}}/model.py, in segfault)"),
        ("exit", "its process ended: exit code 3"),
        ("kill", "its process ended: signal SIGKILL"),
        ("close", "its process ended: exit code 1"),
        ("loop", "The execution took longer than EXECUTION_TIMEOUT, 0.5 s."),
        ("stop", "The execution took longer than EXECUTION_TIMEOUT, 0.5 s."),
    ],
)
def test_fault_fails_its_batch_and_the_instance_starts_again(server: Server, do: str, reason: str) -> None:
    model = server["m"]
    reason = reason.format(directory=Path(server.engine.options.model_repositories[0]) / "m" / "1")
    with pytest.raises(InternalError) as caught:
        ask(model, do)
    timed_out = "EXECUTION_TIMEOUT" in reason
    assert caught.value.message == (f"{NOT_HEALTHY} {reason}" if timed_out else NOT_HEALTHY)
    assert ask(server["other"], x=1.0) >= 1.0
    assert ask(model, x=7.0) == 7.0  # the state of a new process
    assert states(server)[-2:] == [
        ("m_0", "LOST", caught.value.message if timed_out else reason),
        ("m_0", "READY", ""),
    ]
    assert len(children()) == 1


def test_process_that_ends_between_executions_starts_again(server: Server) -> None:
    model = server["m"]
    before = len(states(server))
    children()[0].kill()
    _wait(lambda: len(states(server)) == before + 2)
    assert ask(model, x=5.0) == 5.0
    assert states(server)[-2:] == [("m_0", "LOST", "its process ended: signal SIGKILL"), ("m_0", "READY", "")]


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("os.pidfd_open", OSError(errno.EMFILE, os.strerror(errno.EMFILE))),
        ("subprocess.Popen", OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))),
        ("tritonnb.backends.isolation.process.threading.Thread", RuntimeError("can't start new thread")),
        ("tritonnb.backends.isolation.instance.ChildProcess.start", InternalError("broken")),
    ],
)
def test_instance_starts_again_after_a_step_of_its_start_has_failed(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str, error: Exception
) -> None:
    model = server["m"]
    ask(model)
    descriptors = psutil.Process().num_fds()

    def fail(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(step, fail)
    with pytest.raises(InternalError):
        ask(model, "exit")
    assert ask(model) == 0.0
    assert f"instance 'm_0' could not be started again: {error}" in caplog.text
    assert len(children()) == 1
    assert psutil.Process().num_fds() == descriptors


def test_process_that_ends_as_soon_as_its_model_is_initialised_starts_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, before = ChildProcess.start, len(states(server))

    def end(child: ChildProcess, header: list[Any]) -> Any:
        message = start(child, header)
        if header[0] == "initialize":
            monkeypatch.undo()
            child.kill()
            child._reader.join()
        return message

    monkeypatch.setattr(ChildProcess, "start", end)
    children()[0].kill()
    _wait(lambda: len(states(server)) == before + 4)
    ended = ("m_0", "LOST", "its process ended: signal SIGKILL")
    assert states(server)[before:] == [ended, ended, ("m_0", "READY", ""), ("m_0", "READY", "")]


def test_stop_does_not_wait_for_processes_to_start_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "m", ISOLATED)
    server = Server(tmp_path, port=0, exit_timeout=3600)
    failed = threading.Event()

    def fail(child: ChildProcess, header: list[Any]) -> None:
        failed.set()
        raise InternalError("broken")

    monkeypatch.setattr(ChildProcess, "start", fail)
    for constant in ("_FIRST_S", "_LONGEST_S", "_LONGEST_WAIT_S"):  # far beyond the time limit of the test
        monkeypatch.setattr(f"tritonnb.backends.isolation.instance.{constant}", 3600.0)
    with ThreadPoolExecutor() as threads:
        calls = [threads.submit(ask, server["m"], "exit") for _ in range(3)]
        assert failed.wait(30)
        server.stop()
        assert all(isinstance(call.exception(), InternalError) for call in calls)


def test_crashes_appear_in_card_metrics_statistics_and_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    model = server["m"]
    failed = model.stats()["inference_stats"]["fail"]["count"]
    with pytest.raises(InternalError):
        ask(model, "exit")
    assert ask(model) == 0.0
    assert model.stats()["inference_stats"]["fail"]["count"] == failed + 1
    assert "is unhealthy and it will be restarted: its process ended: exit code 3" in caplog.text
    card = model._repr_html_()
    assert str(children()[0].pid) in card
    assert "exit code 3" in card
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=30) as response:
        metrics = response.read().decode()
    (count,) = re.findall(r'^tritonnb_instance_restarts_total\{.*instance="m_0".*\} (\d+)', metrics, re.MULTILINE)
    assert int(count) == sum(state == "LOST" for _, state, _ in states(server))


def test_lack_of_shared_memory_fails_only_the_batch(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    model = server["m"]
    executions = ask(model)

    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InternalError, match=r"Failed to allocate \d+ bytes of shared memory: No space left on device"):
        ask(model, size=1 << 20)
    monkeypatch.undo()
    assert ask(model, size=1 << 20) == executions + 1


def test_memory_limit_fails_the_batch(tmp_path: Path) -> None:
    write(tmp_path, "m", ISOLATED + parameter("EXECUTION_MEMORY_LIMIT", 2 << 30))
    with Server(tmp_path, port=0) as server:
        with pytest.raises(InternalError, match="Unable to allocate"):
            ask(server["m"], "allocate")
        assert ask(server["m"], x=1.0) == 1.0
        assert states(server) == []


@pytest.mark.slow
def test_repeatedly_ending_process_restarts_with_growing_delays_while_batches_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritonnb.backends.isolation.instance._LONGEST_WAIT_S", 0.1)
    write(tmp_path, "m", ISOLATED, body=MODEL.replace("self.executions = 0", "self.executions = 0; self.check(args)")
          + '\n    def check(self, args):\n'
          '        if os.path.exists(os.path.join(args["model_repository"], "broken")): os._exit(1)\n')  # fmt: skip
    with Server(tmp_path, port=0) as server:
        assert ask(server["m"]) == 0.0
        (tmp_path / "m" / "broken").touch()
        with pytest.raises(InternalError, match="is not healthy"):
            ask(server["m"], "exit")
        with pytest.raises(InternalError, match="is not healthy"):
            ask(server["m"])
        assert ("m_0", "UNAVAILABLE", "") in states(server)
        assert not server["m"].ready
        (tmp_path / "m" / "broken").unlink()
        _wait(lambda: _succeeds(server["m"]))


@pytest.mark.slow
def test_instance_that_cannot_start_receives_no_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonnb.backends.isolation.instance._LONGEST_WAIT_S", 0.1)
    monkeypatch.setattr("tritonnb.engine.execution.instance.RECOVERY_INTERVAL_S", 0.05)
    two = ISOLATED + "instance_group { kind: KIND_CPU count: 2 }"
    write(tmp_path, "m", two, body=MODEL.replace("self.executions = 0", "self.executions = 0; self.check(args)")
          + '\n    def check(self, args):\n'
          '        place = os.path.join(args["model_repository"], args["model_instance_name"])\n'
          '        if os.path.exists(place): os._exit(1)\n')  # fmt: skip
    with Server(tmp_path, port=0) as server:
        (tmp_path / "m" / "m_0_0").touch()
        while ("m_0_0", "LOST") not in [state[:2] for state in states(server)]:
            with pytest.raises(InternalError, match="is not healthy"):
                ask(server["m"], "exit")
        _wait(lambda: ("m_0_0", "UNAVAILABLE", "") in states(server))
        assert [ask(server["m"]) for _ in range(20)] == [float(number) for number in range(20)]  # of the other one
        (tmp_path / "m" / "m_0_0").unlink()
        _wait(lambda: states(server)[-1][:2] == ("m_0_0", "READY"))


SUM = """
import json
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            if json.loads(request.parameters()).get("do"):
                os._exit(3)
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if pb_utils.get_input_tensor_by_name(request, "START").as_numpy().any():
                self.sums[request.correlation_id()] = np.zeros_like(x)
            self.sums.setdefault(request.correlation_id(), np.zeros_like(x))  # of a null request
            self.sums[request.correlation_id()] += x
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.sums[request.correlation_id()])]))
        return answers
"""
START = (
    'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } '
    "max_sequence_idle_microseconds: 600000000"
)


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
def test_sequences_in_the_slots_of_a_lost_instance_end_with_an_error(tmp_path: Path, strategy: str) -> None:
    write(tmp_path, "m", f"max_batch_size: 4 sequence_batching {{ {START} {strategy} }}", SUM)
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: -1", "dims: 1"))
    with Server(tmp_path, port=0, isolate=["m"]) as server:
        model = server["m"]

        def send(id: int, x: float, **options: Any) -> float:
            return float(model(X=np.full((1, 1), x, np.float32), sequence_id=id, **options)["Y"].item())

        assert [send(id, 1.0, sequence_start=True) for id in (1, 2)] == [1.0, 1.0]
        with pytest.raises(InternalError, match=NOT_HEALTHY):
            send(1, 1.0, parameters={"do": "exit"})
        for id in (1, 2):
            with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
                send(id, 1.0)
        assert [send(id, float(id), sequence_start=True) for id in (1, 2)] == [1.0, 2.0]
        assert [send(id, 1.0, sequence_end=True) for id in (1, 2)] == [2.0, 3.0]


@pytest.mark.parametrize("do", ["loop", "stop", ""])
def test_processes_end_with_a_server_that_is_stopped_after_its_exit_timeout(tmp_path: Path, do: str) -> None:
    threads, others = set(threading.enumerate()), set(children())
    server = Server(write(tmp_path, "m", ISOLATED), port=0, exit_timeout=0.2)
    (child,) = set(children()) - others
    with ThreadPoolExecutor(1) as pool:
        if do:
            call = pool.submit(ask, server["m"], do)
            served = server.engine.model("m")
            wait_for(lambda: server.call(lambda: served.in_flight))
            wait_for(lambda: do == "loop" or child.status() == psutil.STATUS_STOPPED)
        else:
            child.suspend()
        with pytest.raises(InternalError, match=r"the server was stopped after 0.2 s \(exit_timeout\)"):
            server.stop()
        if do:
            assert isinstance(call.exception(), UnavailableError)
    wait_for(lambda: not child.is_running())
    wait_for(lambda: threads.issuperset(threading.enumerate()))


@pytest.mark.slow
def test_child_ends_when_the_servers_process_is_killed_even_in_an_endless_loop(tmp_path: Path) -> None:
    write(tmp_path, "m", ISOLATED, MODEL.replace("def loop", "def spin(self):\n        pass\n\n    def loop"))
    program = (
        "import sys, threading, numpy as np\n"
        "from tritonnb.server.server import Server\n"
        "server = Server(sys.argv[1], port=None, allow_http=False)\n"
        "model = server['m']\n"
        "pid = int(model(X=np.zeros(1, np.float32), parameters={'do': 'pid'})['Y'][0])\n"
        "print(server.call(lambda: server.engine.model('m').instances[0].backend_instance.process_id), flush=True)\n"
        "model(X=np.zeros(1, np.float32), parameters={'do': 'loop'})\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    child.wait(timeout=30)


def test_interrupt_is_not_sent_to_the_child(server: Server) -> None:
    before = children()[0].pid
    os.kill(before, signal.SIGINT)
    assert ask(server["m"]) >= 0.0
    assert children()[0].pid == before
    assert os.getpgid(before) != os.getpgid(0)


def test_stopped_server_is_freed(tmp_path: Path) -> None:
    before, descriptors, threads = shared_memory(), len(os.listdir("/proc/self/fd")), threading.active_count()
    processes = len(children())
    write(tmp_path, "m", f"{ISOLATED} instance_group {{ count: 2 }}")
    with Server(tmp_path, port=0) as server:
        assert ask(server["m"], size=1 << 20) == 0.0
        with pytest.raises(InternalError):
            ask(server["m"], "kill")
        assert len(children()) - processes in (1, 2)
    _wait(lambda: threading.active_count() <= threads)
    assert shared_memory() == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(children()) == processes


# --- what crosses the boundary ---------------------------------------------------------------------


def test_output_and_log_lines_appear_as_those_of_a_model_in_this_process(
    server: Server, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ask(server["m"], "talk")
    printed = ["", ""]

    def is_complete() -> bool:
        captured = capsys.readouterr()
        printed[0] += captured.out
        printed[1] += captured.err
        return "to the output\n" in printed[0] and "to the error output\n" in printed[1]

    _wait(is_complete)
    lines = {(record.name, record.levelno, record.getMessage()) for record in caplog.records}
    assert {("tritonnb.model", logging.WARNING, "to the log"), ("model", logging.WARNING, "to its own log")} <= lines


ECHO = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    kept = []

    def execute(self, requests):
        answers = []
        for request in requests:
            tensors = request.inputs()
            self.kept.append([tensor.as_numpy() for tensor in tensors][:1])
            answers.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor(f"OUT_{tensor.name()}", tensor.as_numpy()) for tensor in tensors]
                + [pb_utils.Tensor("FIRST", self.kept[0][0].ravel()[:1])]
            ))
        return answers
"""


def test_isolated_model_receives_tensors_of_every_size_and_may_keep_them(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(ECHO)
    tensors = "".join(
        f'{place} {{ name: "{prefix}{name}" data_type: {kind} dims: -1 }}'
        for place, prefix in (("input", ""), ("output", "OUT_"))
        for name, kind in (("A", "TYPE_FP32"), ("S", "TYPE_STRING"), ("B", "TYPE_BOOL"))
    )
    first = 'output { name: "FIRST" data_type: TYPE_FP32 dims: -1 }'
    (tmp_path / "m" / "config.pbtxt").write_text(f'backend: "python" {tensors} {first}')
    with Server(tmp_path, port=0, isolate=["m"]) as server:
        for number, size in enumerate((1, 100_000, 3, 2_000_000, 1)):
            arrays = {
                "A": np.full(size, number, np.float32),
                "S": np.array([b"", b"x\0y" * (1 + size // 50), "ä".encode()], object),
                "B": np.arange(size % 1000) % 2 == 0,
            }
            response = server["m"](arrays)
            for name, array in arrays.items():
                np.testing.assert_array_equal(response[f"OUT_{name}"], array)
            assert response["FIRST"].tolist() == [0.0]
            response["OUT_A"][:] = -1  # the caller owns it


def test_functions_run_in_the_kernel(tmp_path: Path) -> None:
    def double(X: Any) -> Any:
        return 2 * X

    with Server(port=0, isolate=True) as server:
        import tritonnb as tnb

        double.__annotations__ = {"X": tnb.FP32[1], "return": tnb.FP32[1]}
        server.model(double)
        assert server["double"](X=np.ones(1, np.float32))["OUTPUT"].item() == 2.0
        with pytest.raises(TritonError, match="got a function, which runs in this process") as caught:
            server.model(double, name="own", parameters={"EXECUTION_PROCESS": {"string_value": "isolated"}})
        assert isinstance(caught.value, UnsupportedError | InvalidArgumentError)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("EXECUTION_PROCESS", "fork", "expected 'isolated' or 'in_process', got 'fork'"),
        ("EXECUTION_TIMEOUT", "-1", "expected a number of seconds > 0, got '-1'"),
        ("EXECUTION_TIMEOUT", "nan", "expected a number of seconds > 0, got 'nan'"),
        ("EXECUTION_MEMORY_LIMIT", "0", "expected a number of bytes > 0, got '0'"),
        ("EXECUTION_MEMORY_LIMIT", "2G", "expected an integer, got '2G'"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, name: str, value: str, expected: str) -> None:
    write(tmp_path, "m", parameter(name, value))
    with Server(tmp_path, port=0, isolate=True, model_control_mode="explicit") as server:
        with pytest.raises(TritonError, match=f"parameter '{name}' {expected}"):
            server.load("m")


@pytest.mark.parametrize("concurrency", [1, 8])
def test_crash_fails_one_batch_of_two_instances_under_load(tmp_path: Path, concurrency: int) -> None:
    write(tmp_path, "m", f"{ISOLATED} instance_group {{ count: 2 }}")
    with Server(tmp_path, port=0) as server, ThreadPoolExecutor(concurrency) as pool:
        model = server["m"]

        def send(number: int) -> str:
            try:
                ask(model, "segfault" if number == 10 else "", float(number))
            except InternalError as error:
                return error.message
            return ""

        failures = [message for message in pool.map(send, range(40)) if message]
        assert len(failures) == 1
        assert failures[0].startswith("Stub process 'm_0_")


def _succeeds(model: ModelHandle) -> bool:
    try:
        ask(model)
    except InternalError:
        return False
    return True


def _wait(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the test's own time limit applies."""
    blocked = threading.Event()
    while not condition():
        blocked.wait(0.01)
