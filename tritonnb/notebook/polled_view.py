"""A view whose content is read again and again, on the view's thread."""

from __future__ import annotations

import html
from collections.abc import Sequence

import ipywidgets as widgets

from tritonnb.core.errors import TritonError
from tritonnb.notebook.static_fallback import LIVE, StaticFallback
from tritonnb.notebook.worker import Job, Worker

#: Seconds between two readings.
INTERVAL_S = 1.0


class PolledView(StaticFallback, widgets.VBox):  # type: ignore[misc]
    """A view of another server that is refreshed every second, until reading fails or `close` ends it.

    Parameters
    ----------
    name : str
        Of the thread.
    status : ipywidgets.HTML
        Says what is shown, and why it has ended.
    children : sequence of ipywidgets.Widget
        The widgets below the status.

    Examples
    --------
    >>> class Clock(PolledView):
    ...     def refresh(self) -> None:
    ...         self.status.value = "read"
    >>> view = Clock("clock", widgets.HTML())
    >>> view.refresh()
    >>> view.status.value, view.refresh_last_state()
    ('read', False)
    >>> view.close()
    """

    def __init__(self, name: str, status: widgets.HTML, children: Sequence[widgets.Widget] = ()) -> None:
        self.status = status
        self._parts = [status, *children]  # the widgets that are closed with the view
        super().__init__(self._parts)
        self.add_class(LIVE)
        self._worker = Worker(name, self._run, self.refresh, INTERVAL_S)
        self._worker.start()

    def refresh(self) -> None:
        """Read the data to show; called on the thread of the view."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop reading, and close the view; the server is not affected."""
        self._worker.close()
        for widget in self._parts:
            widget.close()
        super().close()

    def refresh_last_state(self) -> bool:
        """Return False: the view refreshes itself."""
        return False

    def _run(self, job: Job) -> None:
        try:
            job()
        except TritonError as error:
            self.status.value += f" <b>Ended:</b> {html.escape(str(error))}"
            self._worker.stop()
