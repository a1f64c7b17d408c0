"""The process of previews: its answers, and that nothing of it remains."""

from __future__ import annotations

import os
from collections.abc import Iterator

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


def test_idle_process_ends_and_leaves_no_zombie(side: SideProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_process, "_IDLE_S", 0.01)
    child = side.call(os.getpid)
    while psutil.pid_exists(child):  # also as a zombie
        pass
    assert side.call(os.getpid) != child
