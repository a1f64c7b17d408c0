"""`serve`: which call replaces which server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

import tritonnb as tnb


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "others").mkdir()
    return tmp_path / "models"


@pytest.fixture
def shell(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    shell.user_ns.update(tnb=tnb, models=repository, kept=[])
    # Away from the ports of other servers on this machine.
    monkeypatch.setattr("tritonnb.endpoints.endpoint_set.DEFAULT_PORTS", range(28_000, 28_100))
    yield shell
    for server in shell.user_ns["kept"]:
        server.stop()
    InteractiveShell.clear_instance()


RunCell = Callable[[str], None]


def run(shell: InteractiveShell, cell: str, *, store_history: bool = True) -> None:
    shell.run_cell(cell, store_history=store_history).raise_error()


#: Cells that are run one after the other, and which of the servers that they started are alive afterwards.
CELLS = {
    "again, on any port": (["kept.append(tnb.serve(models, port=0))"] * 2, [False, True]),
    "again, by default": (["kept.append(tnb.serve(models))"] * 3, [False, False, True]),
    "again, several servers of a cell": (
        ["kept += [tnb.serve(models, port=0), tnb.serve(models, port=0)]"] * 2,
        [False, False, True, True],
    ),
    "again, in a loop": (["for _ in range(2): kept.append(tnb.serve(models, port=0))"] * 2, [False, False, True, True]),
    "several statements": (
        ["a = tnb.serve(models, port=0)\nb = tnb.serve(models, port=0)\nkept += [a, b]"],
        [True] * 2,
    ),
    "two cells, two ports": (
        ["kept.append(tnb.serve(models, port=0))", "a = 1; kept.append(tnb.serve(models, port=0))"],
        [True, True],
    ),
    "an edited cell without a port": (
        ["kept.append(tnb.serve(models))", "a = 1; kept.append(tnb.serve(models))"],
        [False, True],
    ),
    "other repositories": (
        ["kept.append(tnb.serve(models))", "kept.append(tnb.serve(models.parent / 'others'))"],
        [True, True],
    ),
    "the port of the first": (
        ["kept.append(tnb.serve(models, port=0))", "kept.append(tnb.serve(models, port=kept[0].port))"],
        [False, True],
    ),
    "a function of another cell": (
        ["def start(): kept.append(tnb.serve(models, port=0))", "start()", "start()"],
        [False, True],
    ),
    "never by Server": (["kept.append(tnb.Server(models, port=0))"] * 2, [True, True]),
}


@pytest.mark.parametrize("store_history", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_cell_that_runs_again_replaces_its_server(shell: InteractiveShell, name: str, store_history: bool) -> None:
    cells, alive = CELLS[name]
    for cell in cells:
        run(shell, cell, store_history=store_history)
    assert [server.alive for server in shell.user_ns["kept"]] == alive


def test_edited_cell_of_a_notebook_is_known_by_its_id(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "get_parent", lambda: {"metadata": {"cellId": "abc"}}, raising=False)
    run(shell, "kept.append(tnb.serve(models, port=0))")
    run(shell, "kept.append(tnb.serve(models, port=0, grpc_port=0))  # edited")
    assert [server.alive for server in shell.user_ns["kept"]] == [False, True]


def test_servers_of_a_script_live_side_by_side(repository: Path) -> None:
    with tnb.serve(repository, port=0) as first, tnb.serve(repository, port=0) as second:
        assert first.ready()
        assert second.ready()
        with tnb.serve(repository, port=second.port):
            assert [first.alive, second.alive] == [True, False]


def test_servers_of_threads_live_side_by_side(shell: InteractiveShell, repository: Path) -> None:
    kept = shell.user_ns["kept"]
    for _ in range(2):
        thread = threading.Thread(target=lambda: kept.append(tnb.serve(repository, port=0)))
        thread.start()
        thread.join()
    assert [server.alive for server in kept] == [True, True]
