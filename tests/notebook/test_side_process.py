"""The process of previews: its answers, and that nothing of it remains."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.model_config.read import read_config
from tritonnb.notebook import side_process
from tritonnb.notebook.side_process import SideProcess


@pytest.fixture
def side() -> Iterator[SideProcess]:
    process = SideProcess()
    yield process
    process.close()


def test_errors_of_the_function_reach_the_caller(side: SideProcess) -> None:
    assert side.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(InvalidArgumentError):
        side.call(read_config, "max_batch_size: {")
    with pytest.raises(UnavailableError, match="divmod: ZeroDivisionError"):
        side.call(divmod, 7, 0)
    assert side.call(divmod, 7, 2) == (3, 1)


def test_process_that_was_killed_is_replaced(side: SideProcess) -> None:
    psutil.Process(side.call(os.getpid)).kill()
    assert side.call(divmod, 7, 2) == (3, 1)


def test_close_ends_a_call_in_progress(side: SideProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        endless = pool.submit(side.call, signal.pause)
        while side._process is None:
            pass
        side.close()
        with pytest.raises(UnavailableError, match="pause: expected a result"):
            endless.result(30)
    assert side.call(divmod, 7, 2) == (3, 1)


def test_close_ends_a_call_whose_process_is_being_started(side: SideProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    with ThreadPoolExecutor(1) as pool:

        def started_late(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
            pool.submit(side.close)
            while not side._closing:
                pass
            return start(*args, **kwargs)

        monkeypatch.setattr(subprocess, "Popen", started_late)
        with pytest.raises(UnavailableError, match="pause: expected a result"):
            side.call(signal.pause)


def test_answer_that_cannot_be_read_is_not_the_answer_to_the_next_call(
    side: SideProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(pickle, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            side.call(divmod, 9, 2)
    assert side.call(divmod, 7, 2) == (3, 1)


def interrupted(file: object) -> object:
    raise KeyboardInterrupt


def test_idle_process_ends_and_leaves_no_zombie(side: SideProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_process, "_IDLE_S", 0.01)
    child = side.call(os.getpid)
    while psutil.pid_exists(child):  # also as a zombie
        pass
    assert side.call(os.getpid) != child
