"""Widgets in pages with the rules of other hosts: their text can be read on the painted background."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import pytest

import tritonnb as tnb
from tests.notebook.test_browser_ensemble_graph import graph_of
from tests.notebook.test_browser_view_truth import DELAYED
from tests.notebook.test_step_batches import picture
from tritonnb.client.connection import RemoteModelHandle
from tritonnb.notebook import views
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.containers import Markup
from tritonnb.notebook.dashboard import Charts, ModelList, Tiles
from tritonnb.notebook.debugger_view import DebuggerPanel
from tritonnb.notebook.ensemble_view import Graph
from tritonnb.notebook.statistics_view import StatisticsView
from tritonnb.notebook.step_batches import StepBatches
from tritonnb.notebook.view_session import recorded_history
from tritonnb.notebook.widget_files import stylesheet

#: Of each host: the start tags of its page, the style of what a widget is in, and whether it is a shadow root.
HOSTS = {
    "JupyterLab, light": ('<html><body data-jp-theme-light="true" class="light">', "", False),
    "JupyterLab, dark": ('<html><body data-jp-theme-light="false" class="dark">', "", False),
    "VS Code, light": ('<html><body class="vscode-light" style="background: #ffffff">', "", False),
    "VS Code, dark": ('<html><body class="vscode-dark" style="background: #1e1e1e">', "", False),
    "VS Code, dark, widget on white": (
        '<html><body class="vscode-dark" style="background: #1e1e1e; color: #cccccc">', "background: white", False,
    ),
    "Colab, light": ('<html theme="light"><body style="background: #ffffff">', "", False),
    "Colab, dark": ('<html theme="dark"><body style="background: #383838; color: #d4d4d4">', "", False),
    "marimo, light": ('<html class="light"><body style="background: #ffffff">', "", True),
    "marimo, dark": ('<html class="dark"><body style="background: #181c1a; color: #e0e0e0">', "", True),
    "a page without a style": ("<html><body>", "", False),
}  # fmt: skip
LAB = """
.light { --jp-ui-font-color1: rgba(0, 0, 0, 0.87); --jp-ui-font-color2: rgba(0, 0, 0, 0.6); --jp-layout-color1: white;
  --jp-layout-color2: #eeeeee; --jp-border-color1: #bdbdbd; background: white; }
.dark { --jp-ui-font-color1: rgba(255, 255, 255, 0.87); --jp-ui-font-color2: rgba(255, 255, 255, 0.6);
  --jp-layout-color1: #111111; --jp-layout-color2: #212121; --jp-border-color1: #616161; background: #111111; }
"""
OPEN = """async ([source, style, state, isShadow]) => {
  const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const host = document.getElementById("host");
  const scope = isShadow ? host.attachShadow({ mode: "open" }) : host;
  const sheet = document.createElement("style");
  sheet.textContent = style;
  window.shown = document.createElement("div");
  scope.append(sheet, window.shown);
  const nothing = () => {};
  const model = { get: (name) => state[name], set: nothing, on: nothing, off: nothing, send: nothing,
    save_changes: nothing };
  widget.render({ model, el: window.shown });
}"""
#: The texts with the least contrast with the background that is painted behind them: contrast, text, class.
CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const scale = (colour) => (colour.startsWith("color(") ? 1 : 255);
  const luminance = (colour) => {
    const [red, green, blue] = channels(colour).slice(0, 3).map((value) => value / scale(colour))
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const parent = (node) => node.parentElement ?? node.getRootNode().host;
  const background = (node) => {
    for (let at = node; at; at = parent(at)) {
      const colour = getComputedStyle(at).backgroundColor;
      if (channels(colour)[3] === undefined || channels(colour)[3] > 0.5) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const hasText = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  const nodes = [...window.shown.querySelectorAll("*")]
    .filter((node) => hasText(node) && node.checkVisibility())
    .filter((node) => node.closest(".tnb-shown") || !node.closest("[aria-hidden=true]"));
  return nodes.map((node) => {
    const style = getComputedStyle(node);
    const ink = node.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [one, other] = [luminance(ink), luminance(background(node))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    return [contrast, node.textContent.slice(0, 40), node.getAttribute("class")];
  }).filter(([contrast]) => contrast < 4.5);
}"""
REC = tnb.simulate(DELAYED, tnb.poisson(rate=80, duration=1, seed=4), tnb.fixed(30))


def panel() -> DebuggerPanel:
    """The panel of a debugger."""
    shown: DebuggerPanel = REC.debug().view().panel
    return shown


SERIES = {"time": [0, 1, 2], "rate": [1, 2, 3], "errors": [0, 1, 0], "p50_ms": [1, 2, 3], "p99_ms": [3, 4, 5],
          "n": [1, 2, 3], "busy": [0.1, 0.2, 0.3]}  # fmt: skip
LISTED = [
    {"name": "m", "state": "READY", "reason": "", "scheduling": "", "rate": 3, "errors": 0, "problem": "", "curve": []},
    {"name": "n", "state": "FAILED", "reason": "x", "scheduling": "", "rate": 3, "errors": 2, "problem": "y",
     "curve": [1, 2]},
]  # fmt: skip


def long_name(number: int) -> str:
    """The name of a model that differs from others at its end only."""
    return f"language_identification_fasttext_onnx_v{number}"


LISTED_MANY = [
    {**LISTED[0], "name": long_name(number), "errors": 2 * (number in {40, 53}), "state": "READY"}
    | ({"state": "FAILED"} if number == 12 else {})
    for number in range(67)
]
TILES = [
    {"label": "errors", "value": "3", "unit": "requests/s", "note": "failed", "level": level}
    for level in ("", "warning", "error")
]


def graph() -> Graph:
    """The graph of an ensemble."""
    shown = Graph(print)
    shown.graph = graph_of("ocr")
    return shown


def of_model(open_widget: Callable[[Any], Any]) -> Callable[[], Any]:
    """A widget of a served model, which has ended."""

    def opened() -> Any:
        with tnb.Server(port=0) as server:

            @server.model(max_batch_size=8, dynamic_batching={})
            def double(X: tnb.FP32[-1]) -> tnb.FP32[-1]:
                return X * 2

            return open_widget(server["double"])

    return opened


def of_remote(open_widget: Callable[[tnb.Remote], Any]) -> Callable[[], Any]:
    """A widget of another server, which has ended."""

    def opened() -> Any:
        with tnb.Server(port=0) as server:

            @server.model(max_batch_size=8)
            def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
                return X * 2

            with tnb.connect(server.url) as remote:
                return open_widget(remote)

    return opened


def statistics(model: RemoteModelHandle) -> Markup:
    """Two seconds of a model."""
    view = StatisticsView(model)
    for rows in (1, 3):
        model(X=[[1.0]] * rows)
        view.refresh()
    view.close()
    return Markup(view.picture.value + view.table.value + view.batch_sizes.value)


WIDGETS: dict[str, Any] = {
    "batches": lambda: BatchView(recorded_history(REC)),
    "live batches": of_model(lambda model: model.watch()),
    "traffic": of_model(lambda model: model.traffic()),
    "editor": of_model(lambda model: model.edit()),
    "worksheet": lambda: tnb.worksheet(seed=3).view(),
    "debugger": panel,
    "model list": lambda: ModelList(models=LISTED, selected="m", shown="m"),
    "many models": lambda: ModelList(models=LISTED_MANY, selected=long_name(3), shown=long_name(3)),
    "tiles": lambda: Tiles(tiles=TILES),
    "charts": lambda: Charts(series=SERIES, recent={"rate": 1, "errors": 0, "n": 3, "busy": 0.2}, periods=[]),
    "ensemble graph": graph,
    "table": lambda: Markup(REC.blame()._repr_html_()),
    "statistics": of_remote(lambda remote: statistics(remote["double"])),
    "step batches": lambda: StepBatches(picture=picture()),
}


def open_alone(page: Any, name: str, host: str, below: int = 0) -> list[str]:
    """Open a widget in a page with the rules of a host, below a space; return the list that gets the page's errors."""
    widget: anywidget.AnyWidget = WIDGETS[name]()
    tags, style, is_shadow = HOSTS[host]
    errors: list[str] = []
    page.goto("about:blank")
    page.once("pageerror", lambda error: errors.append(str(error)))
    place = f"<div style='height: {below}px'></div><div id='host' style='{style}'></div>"
    page.set_content(f"<!doctype html>{tags}<style>{LAB}</style>{place}")
    css = str(getattr(widget, "_css", stylesheet("dashboard")))
    page.evaluate(OPEN, [str(widget._esm), css, _state(widget), is_shadow])
    widget.close()
    return errors


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", WIDGETS)
def test_text_is_readable_in_each_host(shared_page: Any, host: str, name: str) -> None:
    errors = open_alone(shared_page, name, host)
    assert shared_page.evaluate(CONTRAST) == []
    assert errors == []
    expected = "dark" if "dark" in host and "white" not in host else "light"
    theme = shared_page.evaluate("() => window.shown.querySelector('[data-tnb-theme]')?.dataset.tnbTheme "
                                 "?? window.shown.dataset.tnbTheme")  # fmt: skip
    assert theme == expected


@pytest.mark.parametrize("name", WIDGETS)
def test_widget_that_is_opened_out_of_sight_does_not_scroll_the_page(shared_page: Any, name: str) -> None:
    open_alone(shared_page, name, "JupyterLab, light", below=3000)
    assert shared_page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done(scrollY)))") == 0


def _state(widget: anywidget.AnyWidget) -> dict[str, Any]:
    """The traits of a widget that its script reads."""
    state = {key: getattr(widget, key) for key in widget.keys if not key.startswith("_")}
    return {key: value for key, value in state.items() if isinstance(value, str | bool | int | float | list | dict)}


def test_last_state_is_hidden_below_its_live_widget_only(shared_page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(views, "display", lambda data, **options: shown.append(data["text/html"]))
    one, other = (BatchView(recorded_history(REC)) for _ in range(2))
    for view in (one, other):
        view._show({"text/html": "<p>A figure</p>"}, update=False)
    outputs = [f"<div id='live' class='{' '.join(one._dom_classes)}'></div>", *shown]
    shared_page.set_content("<!doctype html>" + "".join(f"<div class='output'>{output}</div>" for output in outputs))
    states = shared_page.locator(".tnb-last-state")
    assert [states.nth(number).is_visible() for number in range(2)] == [False, True]
    shared_page.evaluate("() => document.getElementById('live').remove()")
    assert [states.nth(number).is_visible() for number in range(2)] == [True, True]
    for view in (one, other):
        view.close()
