"""The dashboard without a browser: its worker thread follows the server, and closing it leaves nothing behind."""

from __future__ import annotations

import gc
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
from ipywidgets.widgets.widget import _instances

from tritonnb.core.errors import UnavailableError
from tritonnb.notebook.batch_view import LiveBatchView
from tritonnb.notebook.config_editor import edit_config, open_editors
from tritonnb.notebook.dashboard import Dashboard
from tritonnb.notebook.traffic import Traffic
from tritonnb.server.server import Server

EXAMPLES = Path(__file__).parents[2] / "model_repository"
INPUTS = {"INPUT0": [[1.0, 2, 3, 4]], "INPUT1": [[1.0, 1, 1, 1]]}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["add_sub", "identity_fp32"]) as server:
        yield server


@pytest.fixture
def dashboard(server: Server) -> Iterator[Dashboard]:
    dashboard = server.dashboard("add_sub")
    yield dashboard
    dashboard.close()


def parts(dashboard: Dashboard) -> tuple[Any, Any, Any]:
    """Return the server's card, the choice of models, and the tabs."""
    return dashboard.children


def until(widget: Any, trait: str, reached: Callable[[], bool]) -> None:
    done = threading.Event()
    widget.observe(lambda change: reached() and done.set(), trait)  # type: ignore[func-returns-value]
    if not reached():
        assert done.wait(60)


def test_it_opens_a_model_in_tabs(dashboard: Dashboard) -> None:
    card, choice, tabs = parts(dashboard)
    assert "add_sub" in card.value
    assert choice.options == ("add_sub", "identity_fp32")
    assert {"Configuration", "Statistics"} <= set(tabs.titles)


def test_it_opens_the_first_model_by_default(server: Server) -> None:
    dashboard = server.dashboard()
    _, choice, tabs = parts(dashboard)
    assert choice.value == "add_sub"
    assert tabs.children[1].model == "add_sub"
    dashboard.close()


def test_it_follows_the_server_by_itself(server: Server, dashboard: Dashboard) -> None:
    tabs = parts(dashboard)[2]
    statistics = tabs.children[tabs.titles.index("Statistics")]
    assert "No request has been executed yet" in statistics.value
    server["add_sub"](INPUTS)
    until(statistics, "value", lambda: "1 rows of 1 requests in 1 executions" in statistics.value)


def test_it_follows_the_list_of_models(server: Server, dashboard: Dashboard) -> None:
    choice = parts(dashboard)[1]
    server.load("string_upper")
    until(choice, "options", lambda: "string_upper" in choice.options)
    assert choice.value == "add_sub"


def test_a_newly_loaded_model_does_not_replace_the_open_one(server: Server) -> None:
    dashboard = server.dashboard("identity_fp32")
    _, choice, tabs = parts(dashboard)
    live, editor, _ = tabs.children
    watched = live.children[-1]
    server.load("accumulator")
    until(choice, "options", lambda: choice.options == ("accumulator", "add_sub", "identity_fp32"))
    settled = threading.Event()
    dashboard._worker.submit(settled.set)
    assert settled.wait(60)
    assert choice.value == "identity_fp32"
    assert live.children[-1] is watched
    assert open_editors.find(server, "accumulator") is None
    assert tabs.children[1] is editor
    dashboard.close()


def test_edited_text_stays_while_another_model_is_shown(server: Server, dashboard: Dashboard) -> None:
    _, choice, tabs = parts(dashboard)
    edited = tabs.children[tabs.titles.index("Configuration")]
    edited.text += "# mine\n"
    choice.value = "identity_fp32"
    until(tabs, "children", lambda: bool(tabs.children) and tabs.children[-2].model == "identity_fp32")
    choice.value = "add_sub"
    until(tabs, "children", lambda: bool(tabs.children) and tabs.children[-2].model == "add_sub")
    assert tabs.children[-2].text.endswith("# mine\n")


def test_a_cell_that_is_run_again_shows_the_same_dashboard_and_starts_no_thread(
    server: Server, dashboard: Dashboard
) -> None:
    threads = set(threading.enumerate())
    parts(dashboard)[1].value = "identity_fp32"
    assert server.dashboard("add_sub") is dashboard
    assert parts(dashboard)[1].value == "add_sub"
    another = server.dashboard("identity_fp32")
    assert another is not dashboard
    another.close()
    assert server.dashboard("identity_fp32") is not another
    server.dashboard("identity_fp32").close()
    assert "tritonnb dashboard" not in {each.name for each in set(threading.enumerate()) - threads}


def test_closing_leaves_neither_widgets_nor_threads(server: Server) -> None:
    widgets, threads = set(_instances), set(threading.enumerate())
    dashboard = server.dashboard("add_sub")
    started = set(threading.enumerate()) - threads
    dashboard.close()
    for thread in started:
        thread.join(60)
    assert not started & set(threading.enumerate())
    left = {key: each for key, each in _instances.items() if key not in widgets}
    assert [each for each in left.values() if not isinstance(each, (ipywidgets.Layout, ipywidgets.Style))] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "create", [LiveBatchView, Traffic, edit_config, lambda model: Dashboard(model.server, model.name)]
)
def test_a_widget_that_cannot_be_created_raises_and_leaves_nothing_behind(
    server: Server, monkeypatch: pytest.MonkeyPatch, create: Callable[[Any], Any]
) -> None:
    model = server["add_sub"]
    server.stop()
    widgets, errors = set(_instances), []  # type: ignore[var-annotated]
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    with pytest.raises(UnavailableError, match="the server has been stopped"):
        create(model)
    gc.collect()
    assert errors == []
    left = [each for key, each in _instances.items() if key not in widgets]
    assert [each for each in left if not isinstance(each, (ipywidgets.Layout, ipywidgets.Style))] == []


def test_a_stopped_server_leaves_the_last_state(server: Server) -> None:
    dashboard = server.dashboard("add_sub")
    card = parts(dashboard)[0]
    server.stop()
    until(card, "value", lambda: "has been stopped" in card.value)
    assert "max_batch_size: 8" in dashboard.last_state()
    dashboard.close()


def test_a_model_that_failed_to_load_is_corrected_there(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "add_sub", tmp_path / "add_sub")
    file = tmp_path / "add_sub" / "config.pbtxt"
    good = file.read_text()
    file.write_text(good.replace("max_batch_size: 8", "max_batch_size: -8"))
    shutil.copytree(EXAMPLES / "identity_fp32", tmp_path / "identity_fp32")
    with Server(tmp_path, port=0) as server:
        dashboard = server.dashboard()
        card, choice, tabs = parts(dashboard)
        assert "must be non-negative value for add_sub" in card.value
        assert choice.options == ("identity_fp32", "add_sub")
        choice.value = "add_sub"
        until(tabs, "children", lambda: tabs.children[1].model == "add_sub")
        live, editor, _ = tabs.children
        (why,) = live.children
        assert "must be non-negative value for add_sub" in why.value
        editor.text = good
        assert editor.apply() == "loaded"
        until(live, "children", lambda: any(isinstance(each, LiveBatchView) for each in live.children))
        assert server["add_sub"](INPUTS)["OUTPUT0"].tolist() == [[2.0, 3, 4, 5]]
        dashboard.close()
