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
from tritonnb.notebook.config_editor import ConfigEditor, edit_config
from tritonnb.notebook.dashboard import Charts, Dashboard
from tritonnb.notebook.live_batch_view import LiveBatchView
from tritonnb.notebook.traffic import Traffic
from tritonnb.notebook.views import find_view
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


class Parts:
    """The parts of a dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.title, body = dashboard.children
        self.models, main = body.children
        self.tiles, self.tabs = main.children

    @property
    def names(self) -> list[str]:
        return [model["name"] for model in self.models.models]

    def tab(self, title: str) -> Any:
        return self.tabs.children[self.tabs.titles.index(title)]

    @property
    def editor(self) -> Any:
        (editor,) = self.tab("Configuration").children
        return editor


def ensemble_repository(directory: Path) -> Path:
    """Write a model and an ensemble that calls it twice into a model repository; return it."""
    shutil.copytree(EXAMPLES / "add_sub", directory / "add_sub")
    (directory / "twice" / "1").mkdir(parents=True)
    (directory / "twice" / "config.pbtxt").write_text(TWICE)
    return directory


def until(widget: Any, trait: str, reached: Callable[[], bool]) -> None:
    done = threading.Event()
    widget.observe(lambda change: reached() and done.set(), trait)  # type: ignore[func-returns-value]
    if not reached():
        assert done.wait(60)


def test_dashboard_opens_a_model_in_tabs(dashboard: Dashboard) -> None:
    parts = Parts(dashboard)
    assert "tritonnb server" in parts.title.value
    assert parts.names == ["add_sub", "identity_fp32"]
    assert parts.models.selected == parts.models.shown == "add_sub"
    assert parts.tabs.titles == ("Live", "Configuration", "Statistics", "Server")
    assert "identity_fp32" in parts.tab("Server").value


def test_live_tab_contains_traffic_view_and_charts(dashboard: Dashboard) -> None:
    traffic, view, charts = Parts(dashboard).tab("Live").children
    assert isinstance(traffic, Traffic)
    assert isinstance(view, LiveBatchView)
    assert isinstance(charts, Charts)


def test_dashboard_opens_the_first_model_by_default(server: Server) -> None:
    dashboard = server.dashboard()
    parts = Parts(dashboard)
    assert parts.models.selected == "add_sub"
    assert parts.editor.model == "add_sub"
    dashboard.close()


def test_dashboard_follows_the_server(server: Server, dashboard: Dashboard) -> None:
    statistics = Parts(dashboard).tab("Statistics")
    assert "No request has been executed yet" in statistics.value
    server["add_sub"](INPUTS)
    until(statistics, "value", lambda: "1 row of 1 request in 1 execution:" in statistics.value)


@pytest.mark.slow
def test_tiles_charts_and_list_count_what_was_executed(server: Server, dashboard: Dashboard) -> None:
    parts = Parts(dashboard)
    charts = parts.tab("Live").children[-1]
    server["add_sub"](INPUTS)
    until(parts.tiles, "tiles", lambda: any("n = 1," in tile["note"] for tile in parts.tiles.tiles))
    tiles = {tile["label"]: tile for tile in parts.tiles.tiles}
    assert tiles["mean batch"]["value"] == "1"
    assert tiles["mean batch"]["note"] == "at most 8, last 5 s"
    assert sum(charts.series["n"]) == 1
    assert len({len(column) for column in charts.series.values()}) == 1
    counted = {model["name"]: sum(model["curve"]) for model in parts.models.models}
    assert counted == {"add_sub": 1, "identity_fp32": 0}


@pytest.mark.slow
def test_applied_configuration_is_marked_in_the_charts(server: Server, dashboard: Dashboard) -> None:
    charts = Parts(dashboard).tab("Live").children[-1]
    server["add_sub"](INPUTS)
    until(charts, "recent", lambda: charts.recent["n"] == 1)
    config = server["add_sub"].config
    config.dynamic_batching.max_queue_delay_microseconds = 500
    config.apply()
    until(charts, "periods", lambda: len(charts.periods) == 2)
    while not charts.periods[1]["n"]:
        server["add_sub"](INPUTS)
    before, after = charts.periods
    assert (before["text"], after["text"]) == ("before", "dynamic_batching.max_queue_delay_microseconds: 0 → 500")
    assert before["n"] == 1
    assert min(before["p50_ms"], after["p99_ms"]) > 0


def test_dashboard_follows_the_list_of_models(server: Server, dashboard: Dashboard) -> None:
    parts = Parts(dashboard)
    server.load("string_upper")
    until(parts.models, "models", lambda: "string_upper" in parts.names)
    assert parts.models.selected == "add_sub"


def test_newly_loaded_model_does_not_replace_the_open_one(server: Server) -> None:
    dashboard = server.dashboard("identity_fp32")
    parts = Parts(dashboard)
    editor, view = parts.editor, parts.tab("Live").children[1]
    server.load("accumulator")
    until(parts.models, "models", lambda: parts.names == ["accumulator", "add_sub", "identity_fp32"])
    settled = threading.Event()
    dashboard._worker.submit(settled.set)
    assert settled.wait(60)
    assert parts.models.selected == "identity_fp32"
    assert parts.tab("Live").children[1] is view
    assert find_view(ConfigEditor, server, "accumulator") is None
    assert parts.editor is editor
    dashboard.close()


def test_edited_text_stays_while_another_model_is_shown(server: Server, dashboard: Dashboard) -> None:
    parts = Parts(dashboard)
    parts.editor.text += "# mine\n"
    for name in ("identity_fp32", "add_sub"):
        parts.models.selected = name
        until(parts.models, "shown", lambda: bool(parts.models.shown == parts.models.selected))
    assert parts.editor.text.endswith("# mine\n")


@pytest.mark.slow
def test_ensemble_is_a_graph_with_the_numbers_of_each_step(tmp_path: Path) -> None:
    with Server(ensemble_repository(tmp_path), port=0) as server:
        dashboard = server.dashboard("twice")
        graph = Parts(dashboard).tab("Live").children[1]
        assert [node["label"] for node in graph.graph["nodes"]] == ["request", "add_sub", "add_sub", "response"]
        assert [edge["label"] for edge in graph.graph["edges"]] == ["A, B", "difference, sum", "OUT"]
        server["twice"](A=[[1.0, 2, 3, 4]], B=[[1.0, 1, 1, 1]])
        until(graph, "graph", lambda: "compute" in graph.graph["nodes"][1]["texts"][-1])
        assert "add_sub: queue" in graph.graph["description"]
        graph._handle_custom_msg({"select": "add_sub"}, [])
        models = Parts(dashboard).models
        until(models, "shown", lambda: models.shown == "add_sub")
        dashboard.close()


@pytest.mark.slow
def test_watching_an_ensemble_shows_its_graph_and_the_batches_of_its_steps(tmp_path: Path) -> None:
    with Server(ensemble_repository(tmp_path), port=0) as server:
        view = server["twice"].watch()
        _, graph, batches = view.children
        with server.record() as rec:
            server["twice"](A=[[1.0, 2, 3, 4]], B=[[1.0, 1, 1, 1]])
        until(graph, "graph", lambda: "compute" in graph.graph["nodes"][1]["texts"][-1])
        until(batches, "picture", lambda: bool(batches.picture))
        assert [step["model"] for step in batches.picture["requests"][0]["steps"]] == ["add_sub", "add_sub"]
        graph._handle_custom_msg({"select": "add_sub"}, [])
        until(view, "children", lambda: len(view.children) == 4)
        step = view.children[3]
        assert isinstance(step, LiveBatchView)
        view.close()
        assert step.live
        step.close()
        rec.to_html(tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert page.index("Graph of the ensemble twice") < page.index('<section aria-label="add_sub"')


TWICE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling {
  step {
    model_name: "add_sub" model_version: -1
    input_map [ { key: "INPUT0" value: "A" }, { key: "INPUT1" value: "B" } ]
    output_map [ { key: "OUTPUT0" value: "sum" }, { key: "OUTPUT1" value: "difference" } ]
  }
  step {
    model_name: "add_sub" model_version: -1
    input_map [ { key: "INPUT0" value: "sum" }, { key: "INPUT1" value: "difference" } ]
    output_map { key: "OUTPUT0" value: "OUT" }
  }
}
"""


def test_rerunning_a_cell_shows_the_same_dashboard_and_starts_no_thread(server: Server, dashboard: Dashboard) -> None:
    threads = set(threading.enumerate())
    models = Parts(dashboard).models
    models.selected = "identity_fp32"
    assert server.dashboard("add_sub") is dashboard
    assert models.selected == "add_sub"
    another = server.dashboard("identity_fp32")
    assert another is not dashboard
    another.close()
    assert server.dashboard("identity_fp32") is not another
    server.dashboard("identity_fp32").close()
    assert "tritonnb dashboard" not in {thread.name for thread in set(threading.enumerate()) - threads}


def test_closing_releases_widgets_threads_and_sinks(server: Server) -> None:
    widgets, threads = set(_instances), set(threading.enumerate())
    sinks = server.engine.stream._sinks
    dashboard = server.dashboard("add_sub")
    started = set(threading.enumerate()) - threads
    dashboard.close()
    for thread in started:
        thread.join(60)
    assert not started & set(threading.enumerate())
    assert server.engine.stream._sinks == sinks
    left = {key: widget for key, widget in _instances.items() if key not in widgets}
    assert [widget for widget in left.values() if not isinstance(widget, (ipywidgets.Layout, ipywidgets.Style))] == []


@pytest.mark.parametrize(
    "create", [LiveBatchView, Traffic, edit_config, lambda model: Dashboard(model.server, model.name)]
)
def test_failed_widget_creation_raises_and_releases_resources(
    server: Server, monkeypatch: pytest.MonkeyPatch, create: Callable[[Any], Any]
) -> None:
    model = server["add_sub"]
    server.stop()
    widgets = set(_instances)
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    with pytest.raises(UnavailableError, match="the server has been stopped"):
        create(model)
    gc.collect()
    assert errors == []
    left = [widget for key, widget in _instances.items() if key not in widgets]
    assert [widget for widget in left if not isinstance(widget, (ipywidgets.Layout, ipywidgets.Style))] == []


def test_last_state_remains_after_the_server_stopped(server: Server) -> None:
    dashboard = server.dashboard("add_sub")
    title = Parts(dashboard).title
    server["add_sub"](INPUTS)
    server.stop()
    until(title, "value", lambda: "has been stopped" in title.value)
    until(Parts(dashboard).models, "ended", lambda: Parts(dashboard).models.ended)
    state = dashboard.last_state()
    assert "max_batch_size: 8" in state
    assert "<img" in state
    assert "href=" not in state
    dashboard.close()


def test_failed_model_is_corrected_in_the_editor(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "add_sub", tmp_path / "add_sub")
    file = tmp_path / "add_sub" / "config.pbtxt"
    good = file.read_text()
    file.write_text(good.replace("max_batch_size: 8", "max_batch_size: -8"))
    shutil.copytree(EXAMPLES / "identity_fp32", tmp_path / "identity_fp32")
    with Server(tmp_path, port=0) as server:
        dashboard = server.dashboard()
        parts = Parts(dashboard)
        assert "must be non-negative value for add_sub" in parts.tab("Server").value
        states = {model["name"]: model["state"] for model in parts.models.models}
        assert states == {"identity_fp32": "READY", "add_sub": "FAILED"}
        parts.models.selected = "add_sub"
        until(parts.models, "shown", lambda: parts.models.shown == "add_sub")
        live, editor = parts.tab("Live"), parts.editor
        (reason,) = live.children
        assert "must be non-negative value for add_sub" in reason.value
        editor.text = good
        assert editor.apply() == "loaded"
        until(live, "children", lambda: any(isinstance(part, LiveBatchView) for part in live.children))
        assert server["add_sub"](INPUTS)["OUTPUT0"].tolist() == [[2.0, 3, 4, 5]]
        dashboard.close()
