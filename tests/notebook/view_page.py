"""The batch view on a dedicated page, with deliveries as the kernel sends them: what it shows is deterministic."""

from __future__ import annotations

from typing import Any

from tritonnb.core.packed_events import pack
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.view_session import ViewSession
from tritonnb.recording.recording import Recording

PAGE = """<!doctype html><body data-jp-theme-light="{light}" style="margin: 0; background: {paper}">
<style>{style}</style><div style="height: 300px">above</div><div id="root"></div><div style="height: 900px"></div>"""
OPEN = """async ([source, history, live]) => {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { default: widget, View } = await import(url);
  const state = { history, live, moment: {} };
  const listeners = {};
  window.messages = [];
  const model = {
    get: (name) => state[name],
    set: (name, value) => { state[name] = value; },
    on: (event, listener) => { listeners[event] = listener; },
    off: () => {},
    send: (message) => { window.messages.push(message); },
  };
  const draw = View.prototype.draw;
  View.prototype.draw = function record() { window.view = this; draw.call(this); };
  window.receive = (delivery) => listeners["msg:custom"](delivery);
  window.replaceHistory = (newer) => { state.history = newer; listeners["change:history"](); };
  widget.render({ model, el: document.getElementById("root") });
}"""
DARK = """:root { --jp-ui-font-color1: #e6e6e6; --jp-ui-font-color2: #a0a0a0; --jp-layout-color1: #111111;
  --jp-layout-color2: #212121; --jp-border-color1: #616161; }"""
#: The share of the columns of pixels of a lane that are covered, or the share of the area of the busy bars.
COVERED = """() => {
  const { frame, canvas } = window.view;
  const { scale, layout, columns } = frame;
  const ratio = canvas.width / canvas.clientWidth;
  const context = canvas.getContext("2d");
  const top = 8 + 15; // TOP + LABELS
  const height = columns ? layout.lane * 0.36 : 2;
  const y = top + layout.lane - height - (columns ? 0 : 1.5);
  const left = Math.round(Math.max(scale.left, scale.x(0)) * ratio);
  const width = Math.round(Math.min(scale.right, scale.x(frame.end)) * ratio) - left;
  const image = context.getImageData(left, Math.round(y * ratio), width, Math.round(height * ratio));
  const corner = [Math.round(scale.right * ratio) - 2, Math.round((top + 2) * ratio)];
  const background = [...context.getImageData(...corner, 1, 1).data];
  const differs = (at) => [0, 1, 2].some((channel) => Math.abs(image.data[at + channel] - background[channel]) > 24);
  let covered = 0;
  if (columns) {
    for (let at = 0; at < image.data.length; at += 4) covered += differs(at);
    return covered / (image.width * image.height);
  }
  for (let x = 0; x < image.width; x += 1) covered += differs(4 * x);
  return covered / image.width;
}"""


def deliveries(rec: Recording, interval_ms: int = 100, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the history at the beginning of a recording, and what the kernel would have sent since then."""
    (name,) = rec.configs
    begin, end = rec.span_ns
    session = ViewSession(name, rec.configs[name], begin, **options)
    history = session.history()
    events = iter(map(pack, rec.events))
    event = next(events, None)
    sent = []
    for now in range(begin + interval_ms * 1_000_000, end + 2 * interval_ms * 1_000_000, interval_ms * 1_000_000):
        part = []
        while event is not None and event[1] <= now:
            part.append(event)
            event = next(events, None)
        session.tracker.fold(part)
        if not session.tracker.quiet:
            sent.append(session.flush(now))
    return history, sent


class ViewPage:
    """A page with one view."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error.stack or error)))

    def open(self, history: dict[str, Any], *, live: bool = True, dark: bool = False, width: int = 1232) -> None:
        """Show a view of a history."""
        self.page.set_viewport_size({"width": width, "height": 800})
        style = (DARK if dark else "") + str(BatchView._css)
        paper = "#111111" if dark else "#ffffff"
        self.page.goto("about:blank")  # ends the view before
        self.page.set_content(PAGE.format(light=str(not dark).lower(), paper=paper, style=style))
        self.page.evaluate(OPEN, [str(BatchView._esm), history, live])

    def receive(self, sent: list[dict[str, Any]]) -> None:
        """Deliver what the kernel has sent."""
        self.page.evaluate("(sent) => sent.forEach((delivery) => window.receive(delivery))", sent)

    def run(self, expression: str) -> Any:
        """Evaluate an expression of ``view``."""
        return self.page.evaluate(f"() => {{ const view = window.view; return {expression}; }}")

    def do(self, action: str) -> None:
        """Click a button."""
        self.page.locator(f'[data-do="{action}"]').click()

    def text(self, part: str) -> str:
        """The text of a part of the view."""
        return str(self.page.locator(f".tnb-{part}").first.inner_text())

    def settle(self) -> None:
        """Draw the newest state without an animation, as while requests arrive."""
        self.run(
            "(view.pace.lag = 0, view.pace.receivedAt = view.activeAt = performance.now(), view.window.heldAt = -1e6, "
            "view.textUpdatedAt = -1e6, view.draw())"
        )

    def labels(self) -> list[tuple[str, float, float]]:
        """The labels of the picture: text, left and right edge in pixels."""
        script = """() => {
          const svg = new DOMParser().parseFromString(window.view.svg(), "image/svg+xml");
          return [...svg.querySelectorAll("text")].map((node) => {
            const [x, anchor] = [Number(node.getAttribute("x")), node.getAttribute("text-anchor")];
            const width = node.textContent.length * Number(node.getAttribute("font-size")) * 0.56;
            const left = { start: x, middle: x - width / 2, end: x - width }[anchor];
            return [node.textContent, left, left + width];
          });
        }"""
        return [tuple(label) for label in self.page.evaluate(script)]
