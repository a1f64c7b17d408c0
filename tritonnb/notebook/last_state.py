"""What a widget showed last, kept in the notebook as plain HTML.

Jupyter stores a widget in a notebook as no more than a reference into the kernel: opened without it, the notebook
shows an error. So a second output follows each widget, invisible as long as the widget lives, which is
brought up to date from time to time; with it the notebook shows the last state, on GitHub too.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import HTML, display

#: The class that marks a living widget.
LIVE = "tnb-live"
_EVERY_S = 2.0

# A widget that Jupyter cannot show is a node without children: it gives way to the last state.
_STYLE = f"""<style>
.jp-OutputArea:has(.{LIVE}) .tnb-last-state {{ display: none; }}
.jp-OutputArea:has(.tnb-last-state) .jp-OutputArea-output:not(:has(*)) {{ display: none; }}
</style>"""


class KeepsLastState:
    """Mixed into a widget: give it `last_state`, and call `keep_last_state` whenever that may have changed."""

    _display_id = ""
    _kept = ""
    _kept_at = 0.0

    def __del__(self) -> None:
        """Close nothing: ipywidgets holds what is open, so this one was closed, or could not be made."""

    def last_state(self) -> str:
        """What the widget shows, as HTML without scripts."""
        raise NotImplementedError

    def keep_last_state(self, at_once: bool = False) -> None:
        """Bring the notebook's copy up to date, at most every two seconds unless ``at_once``."""
        now = time.monotonic()
        if not self._display_id or (now - self._kept_at < _EVERY_S and not at_once):
            return
        state = self.last_state()
        if state != self._kept:
            self._kept, self._kept_at = state, now
            display(_as_html(state), display_id=self._display_id, update=True)

    def _ipython_display_(self, **options: Any) -> None:
        bundle = self._repr_mimebundle_(**options)  # type: ignore[attr-defined]
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        display(data, metadata=metadata, raw=True)
        if InteractiveShell.initialized():
            self._display_id = uuid.uuid4().hex
            self._kept = self.last_state()
            display(_as_html(self._kept), display_id=self._display_id)


def _as_html(state: str) -> HTML:
    remark = "<p><i>As it was last; without its kernel it cannot change.</i></p>"
    return HTML(f"{_STYLE}<div class='tnb-last-state'>{state}{remark}</div>")
