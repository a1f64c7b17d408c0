"""The widget of a worksheet: requests are moved into batches, and the answer is graded, hinted at or revealed.

Moving requests works in the browser alone. Grading is a lookup in a simulation that was run before, so the kernel's
main thread does it.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from tritonnb.core.errors import TritonError
from tritonnb.notebook.static_fallback import LIVE, StaticFallback
from tritonnb.recording.batches import Batch

if TYPE_CHECKING:
    from tritonnb.teaching.worksheet import Worksheet

_STATIC = Path(__file__).parent / "static"
_NULL = "-"

Json = dict[str, Any]


class WorksheetView(StaticFallback, anywidget.AnyWidget):
    """A widget in which one predicts the batches of a worksheet; use `Worksheet.view`.

    Parameters
    ----------
    worksheet : Worksheet

    Attributes
    ----------
    sheet : dict
        ``question``, ``config``, and ``requests``: name, arrival in ms and rows or flags of each.
    answer : list of list of str
        The batches that were predicted so far, each with the names of its requests; setting it is like moving them.
    result : dict
        What the last check, hint or reveal said: ``text``, ``correct`` batches, ``total``, and the ``batches`` to draw.
    """

    _esm = _STATIC / "worksheet.js"
    _css = _STATIC / "worksheet.css"
    sheet = traitlets.Dict().tag(sync=True)
    answer = traitlets.List(traitlets.List(traitlets.Unicode())).tag(sync=True)
    result = traitlets.Dict().tag(sync=True)

    def __init__(self, worksheet: Worksheet) -> None:
        self._worksheet = worksheet
        head, rows = worksheet.table()
        super().__init__(
            sheet={
                "question": worksheet.question,
                "config": worksheet.config,
                "detail": head[-1],
                "requests": [[name, float(ms), detail] for name, ms, detail in rows],
            }
        )
        self.add_class(LIVE)
        self.on_msg(_on_message)

    def __repr__(self) -> str:
        return repr(self._worksheet)

    def check(self) -> None:
        """Grade the answer."""
        grade = self._worksheet.check(self.answer)
        text = f"{grade.correct} of {grade.total} batches correct. {grade.explanation}"
        self._show_result(text, grade.correct, bool(grade))

    def hint(self) -> None:
        """Give a hint for the first batch that is missing or wrong."""
        grade = self._worksheet.check(self.answer)
        self._show_result(self._worksheet.hint(self.answer), grade.correct, bool(grade))

    def reveal(self) -> None:
        """Reveal the first batch that is missing or wrong, and why the scheduler sends it."""
        grade = self._worksheet.check(self.answer)
        self._show_result(self._worksheet.reveal(self.answer), min(grade.correct + 1, grade.total), bool(grade))

    def last_state(self) -> str:
        """Return the exercise with the last answer and result as HTML."""
        answer = "; ".join(" ".join(batch) for batch in self.answer if batch) or "none"
        text = self.result.get("text", "")
        return (
            f"{self._worksheet._repr_html_()}<p>Predicted batches: {html.escape(answer)}</p><p>{html.escape(text)}</p>"
        )

    def _show_result(self, text: str, shown: int, done: bool) -> None:
        """Show a text, and draw the first ``shown`` batches and when the next one is sent."""
        batches = self._worksheet.batches
        solution = self._worksheet.solution
        self.result = {
            "text": text,
            "done": done,
            "total": len(batches),
            "batches": [
                _described(batch, members) for batch, members in zip(batches[:shown], solution[:shown], strict=True)
            ],
            "next_ms": batches[shown].sent_ns / 1e6 if shown < len(batches) else None,
            "end_ms": max(batch.exec_end_ns for batch in batches) / 1e6,
        }
        self.keep_last_state(at_once=True)


def _described(batch: Batch, members: list[str]) -> Json:
    return {
        "names": [name for name in members if name != _NULL],
        "instance": batch.instance,
        "begin_ms": batch.exec_start_ns / 1e6,
        "end_ms": batch.exec_end_ns / 1e6,
        "why": batch.why,
    }


def _on_message(view: WorksheetView, content: Json, buffers: Any) -> None:
    """Handle a button of the browser."""
    actions = {"check": view.check, "hint": view.hint, "reveal": view.reveal}
    if content.get("action") in actions:
        try:
            actions[content["action"]]()
        except TritonError as error:
            view.result = {**view.result, "text": error.message, "done": False}
