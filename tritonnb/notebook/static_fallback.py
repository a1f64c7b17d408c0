"""What a widget showed last, kept in the notebook as plain HTML.

Jupyter stores a widget in a notebook as no more than a reference into the kernel: opened without it, the notebook
shows an error. So a second output follows each widget, invisible as long as the widget lives, which is
brought up to date from time to time; with it the notebook shows the last state, on GitHub and in exports too.

Clients that execute a notebook without a browser (nbclient, nbconvert, papermill) only accept output that belongs to
the cell that is running. So the last states are also brought up to date at the end of each cell.
"""

from __future__ import annotations

import html
import re
import time
import uuid
import weakref
from contextlib import suppress
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from tritonnb.core.errors import TritonError

#: The class that marks a living widget.
LIVE = "tnb-live"
_EVERY_S = 2.0

# A widget that Jupyter cannot show is a node without children: it gives way to the last state.
_STYLE = f"""<style>
.jp-OutputArea:has(.{LIVE}) .tnb-last-state {{ display: none; }}
.jp-OutputArea:has(.tnb-last-state) .jp-OutputArea-output:not(:has(*)) {{ display: none; }}
</style>"""
_REMARK = "As it was last; without its kernel it cannot change."

#: The widgets that were displayed, by the shell that did; a widget that is not used any more vanishes from it.
_displayed: weakref.WeakKeyDictionary[InteractiveShell, weakref.WeakSet[StaticFallback]] = weakref.WeakKeyDictionary()


class StaticFallback:
    """Mixed into a widget: give it `last_state`, and call `keep_last_state` whenever that may have changed."""

    _display_id = ""
    _kept = ""
    _kept_at = 0.0
    _kept_in_cell = ""

    def __del__(self) -> None:
        """Close nothing: ipywidgets holds what is open, so this one was closed, or could not be made."""

    def last_state(self) -> str:
        """What the widget shows, as HTML without scripts."""
        raise NotImplementedError

    def last_data(self) -> dict[str, str]:
        """What the widget shows by MIME type: HTML, text, and where it is a figure, PNG."""
        state = self.last_state()
        return {"text/html": state, "text/plain": as_text(state)}

    def refresh_last_state(self) -> bool:
        """Bring what `last_state` reads up to date at the end of a cell; false where that is not necessary."""
        return True

    def keep_last_state(self, at_once: bool = False) -> None:
        """Bring the notebook's copy up to date, at most every two seconds unless ``at_once``."""
        now = time.monotonic()
        if not self._display_id or (now - self._kept_at < _EVERY_S and not at_once):
            return
        data = self.last_data()
        if data["text/html"] != self._kept:
            self._kept, self._kept_at = data["text/html"], now
            self._show(data, update=True)

    def keep_at_end_of_cell(self) -> None:
        """Bring the notebook's copy up to date as output of the cell that ends now."""
        if not self.refresh_last_state():
            return
        data = self.last_data()
        if data["text/html"] != self._kept_in_cell:
            self._kept = self._kept_in_cell = data["text/html"]
            self._show(data, update=True)

    def _ipython_display_(self, **options: Any) -> None:
        bundle = self._repr_mimebundle_(**options)  # type: ignore[attr-defined]
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        display(data, metadata=metadata, raw=True)
        if InteractiveShell.initialized():
            self._display_id = uuid.uuid4().hex
            data = self.last_data()
            self._kept = self._kept_in_cell = data["text/html"]
            self._show(data, update=False)
            _keep_at_end_of_cells(self, InteractiveShell.instance())

    def _show(self, data: dict[str, str], *, update: bool) -> None:
        state = f"{_STYLE}<div class='tnb-last-state'>{data['text/html']}<p><i>{_REMARK}</i></p></div>"
        display(data | {"text/html": state}, raw=True, display_id=self._display_id, update=update)


def as_text(markup: str) -> str:
    r"""The words of HTML: a line for each paragraph and row, images by their alternative texts.

    Examples
    --------
    >>> as_text("<p><b>1 &lt; 2</b></p><table><tr><td>rows</td><td>8</td></tr></table><img alt='A figure' src=''>")
    '1 < 2\nrows 8\nA figure'
    """
    words = re.sub(r"<(style|script)\b.*?</\1>", "", markup, flags=re.DOTALL)
    words = re.sub(r"<img\b[^>]*?\balt=(['\"])(.*?)\1[^>]*>", r"\2", words)
    words = re.sub(r"</(p|tr|li|div|h\d|table|pre)>|<br>", "\n", words)
    words = html.unescape(re.sub(r"<[^>]*>", " ", words))
    return "\n".join(line for each in words.splitlines() if (line := " ".join(each.split())))


def _keep_at_end_of_cells(widget: StaticFallback, shell: InteractiveShell) -> None:
    if shell not in _displayed:
        widgets = _displayed[shell] = weakref.WeakSet()

        def keep(result: object) -> None:
            for each in list(widgets):
                with suppress(TritonError, RuntimeError):  # its model or server is gone
                    each.keep_at_end_of_cell()

        shell.events.register("post_run_cell", keep)
    _displayed[shell].add(widget)
