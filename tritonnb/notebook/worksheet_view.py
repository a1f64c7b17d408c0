"""The widget of a worksheet: requests are moved into batches, and the answer is graded, hinted at or revealed.

Requests are moved in the browser, without the kernel. Grading only looks up a finished simulation, so the kernel's main
thread does it.
"""

from __future__ import annotations

import html
from typing import Any

import anywidget
import traitlets

from tritonnb.core.errors import TritonError
from tritonnb.core.json_types import Json
from tritonnb.lab.teaching.grading import ACTIONS, describe_sheet, grade
from tritonnb.lab.teaching.worksheet import Worksheet
from tritonnb.notebook.views import StaticFallback
from tritonnb.notebook.widget_files import STATIC, join_modules, stylesheet


def view(worksheet: Worksheet) -> WorksheetView:
    """Open the exercise as a widget, in which requests are moved into batches; a notebook shows it by itself.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> view = tnb.worksheet("dynamic", seed=1).view()
    """
    return WorksheetView(worksheet)


class WorksheetView(StaticFallback, anywidget.AnyWidget):
    """A widget to predict the batches of a worksheet; use `Worksheet.view`.

    Parameters
    ----------
    worksheet : Worksheet

    Attributes
    ----------
    sheet : dict
        The exercise: see `describe_sheet`.
    answer : list of list of str
        The batches that were predicted so far, each with the names of its requests; setting it is like moving them.
    result : dict
        What the last check, hint or reveal said: see `grade`.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> view = tnb.worksheet("dynamic", seed=1).view()
    >>> view.answer = [["A"]]
    >>> view.check()
    >>> view.hint()
    >>> view.reveal()
    >>> sorted(view.result)
    ['batches', 'done', 'next_ms', 'text', 'total']
    >>> view.close()
    """

    _esm = join_modules(STATIC / "worksheet.js")
    _css = stylesheet("worksheet")
    sheet = traitlets.Dict().tag(sync=True)
    answer = traitlets.List(traitlets.List(traitlets.Unicode())).tag(sync=True)
    result = traitlets.Dict().tag(sync=True)

    def __init__(self, worksheet: Worksheet) -> None:
        self._worksheet = worksheet
        super().__init__(sheet=describe_sheet(worksheet))
        self.on_msg(_on_message)

    def __repr__(self) -> str:
        return repr(self._worksheet)

    def check(self) -> None:
        """Grade the answer."""
        self._ask("check")

    def hint(self) -> None:
        """Give a hint for the first batch that is missing or wrong."""
        self._ask("hint")

    def reveal(self) -> None:
        """Reveal the first batch that is missing or wrong, and why the scheduler sends it."""
        self._ask("reveal")

    def last_state(self) -> str:
        """Return the exercise with the last answer and result as HTML."""
        answer = "; ".join(" ".join(batch) for batch in self.answer if batch) or "none"
        text = self.result.get("text", "")
        return (
            f"{self._worksheet._repr_html_()}<p>Predicted batches: {html.escape(answer)}</p><p>{html.escape(text)}</p>"
        )

    def _ask(self, action: str) -> None:
        self.result = grade(self._worksheet, action, self.answer)
        self.keep_last_state(at_once=True)


def _on_message(view: WorksheetView, content: Json, buffers: Any) -> None:
    """Handle a button of the browser."""
    if content.get("action") in ACTIONS:
        try:
            view.answer = content.get("answer", view.answer)
            view._ask(content["action"])
        except TritonError as error:
            view.result = {**view.result, "text": error.message, "done": False}
