"""Both runs of a comparison as batch views with linked time, one below the other."""

from __future__ import annotations

import html

import ipywidgets as widgets

from tritonnb.notebook.batch_view import view
from tritonnb.notebook.static_fallback import StaticFallback
from tritonnb.notebook.view_encoding import TICKS
from tritonnb.recording.comparison import Comparison


def compare(comparison: Comparison) -> ComparisonView:
    """Open both runs in the widget of `Recording.view`, one below the other, on the same time axis.

    Batches that differ are marked.

    Returns
    -------
    ipywidgets.VBox
    """
    runs = (comparison.before, comparison.after)
    until = max((end - begin) * TICKS // 1_000_000 for begin, end in (run.span_ns for run in runs))
    views = [view(run) for run in runs]
    for shown, numbers in zip(views, comparison.changed_batches(), strict=True):
        batches = shown.history["batches"]
        differs = [number in numbers for number in batches.get("n", ())]
        shown.history = {**shown.history, "now": until, "batches": {**batches, "differs": differs}}
    widgets.jslink((views[0], "moment"), (views[1], "moment"))
    difference = comparison.difference()
    table = widgets.HTML(comparison._repr_html_())
    table.add_class("jp-RenderedHTMLCommon")  # looks like those of other outputs
    names = [html.escape(name.capitalize() if comparison.recorded else name) for name in comparison.names]
    before = widgets.HTML(f"<b>{names[0]}</b>")
    after = widgets.HTML(f"<b>{names[1]}</b>: {html.escape(difference)}")
    return ComparisonView(comparison, [table, before, views[0], after, views[1]])


class ComparisonView(StaticFallback, widgets.VBox):  # type: ignore[misc]
    """Both runs of a comparison, one below the other."""

    def __init__(self, comparison: Comparison, children: list[widgets.Widget]) -> None:
        self._comparison = comparison
        super().__init__(children)

    def __repr__(self) -> str:
        return repr(self._comparison)

    def last_state(self) -> str:
        """Return the table and both timelines as HTML."""
        return self.last_data()["text/html"]

    def last_data(self) -> dict[str, str]:
        """Return the table and both timelines by MIME type."""
        figure: dict[str, str] = self._comparison.plot()._repr_mimebundle_()
        return figure | {
            "text/html": self._comparison._repr_html_() + figure["text/html"],
            "text/plain": f"{self._comparison!r}\n{figure['text/plain']}",
        }

    def refresh_last_state(self) -> bool:
        """Return False: a comparison does not change."""
        return False
