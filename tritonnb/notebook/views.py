"""The base classes of widgets, which keep their last state in the notebook, and the registry of open widgets.

The last state is plain HTML. Jupyter stores a widget in a notebook only as a reference into the kernel: opened without
the kernel, the notebook shows an error. So each widget is followed by a second output, which is hidden while the widget
is live and updated from time to time; from it the notebook shows the last state, on GitHub and in exports.

Clients that execute a notebook without a browser (nbclient, nbconvert, papermill) only accept output that belongs to
the cell that is running. So the last states are also updated at the end of each cell.
"""

from __future__ import annotations

import html
import itertools
import re
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import anywidget
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from tritonnb.core.copies import OfThisProcess
from tritonnb.core.errors import TritonError
from tritonnb.notebook.containers import Group, Markup
from tritonnb.notebook.worker import Job, Worker

if TYPE_CHECKING:
    from tritonnb.client.connection import Remote
    from tritonnb.server.background import BackgroundServer

W = TypeVar("W")

#: The CSS class of a live widget, and that of its last state, before the id of its model.
_LIVE, _SAVED = "tnb-live-", "tnb-saved-"
#: Seconds between updates of a last state at least, and between two readings of a `PolledView`.
_KEEP_S, _POLL_S = 2.0, 1.0
#: Characters of last states that a widget sends each second at most: nobody sees them while the widget is live.
_KEPT_PER_S = 10_000

# A widget that Jupyter cannot show is an element without children, in an exported page its text: hide it, so that only
# the last state is shown.
_STYLE = """<style>
.jp-OutputArea:has(.tnb-last-state) .jp-OutputArea-output:not(:has(*)) { display: none; }
.jp-OutputArea-child:has(> [data-mime-type="text/plain"]):has(+ * .tnb-last-state) { display: none; }
.tnb-saved { padding: 4px 10px; border-left: 4px solid #d55e00; }
</style>"""

#: The open widgets by server, and by class and model. A widget removes itself when it is closed, or when its server was
#: stopped. A server that is no longer used is freed together with its widgets.
_open: weakref.WeakKeyDictionary[BackgroundServer | Remote, dict[tuple[type, str | None], list[Any]]] = (
    weakref.WeakKeyDictionary()
)
#: The displayed widgets by shell; weak, so that unused widgets are freed.
_displayed: weakref.WeakKeyDictionary[InteractiveShell, weakref.WeakSet[StaticFallback]] = weakref.WeakKeyDictionary()


class StaticFallback(OfThisProcess):
    """A mixin for widgets: define `last_state`, and call `keep_last_state` whenever it may have changed.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10))
    >>> view = recording.view()
    >>> "2 requests ran in 2 batches" in view.last_state(), sorted(view.last_data())
    (True, ['image/png', 'text/html', 'text/plain'])
    >>> view.refresh_last_state()
    False
    >>> view.keep_last_state(at_once=True)
    >>> view.keep_at_end_of_cell()
    >>> view.close()
    """

    _display_id = ""
    _kept = ""
    _kept_until_s = 0.0
    _kept_in_cell = ""

    def __init__(self, *args: Any, **traits: Any) -> None:
        super().__init__(*args, **traits)
        self.add_class(_LIVE + self.model_id)  # type: ignore[attr-defined]

    def _not_copied(self) -> tuple[str, str]:
        return f"view {type(self).__name__}", "open another one, or copy the recording that it shows"

    def __copy__(self) -> NoReturn:
        self.__reduce_ex__(4)  # instead of the error of ipywidgets

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce_ex__(4)

    def __del__(self) -> None:
        """Do nothing: ipywidgets refers to open widgets, so this one was closed or its creation failed."""

    def last_state(self) -> str:
        """Return the contents of the widget as HTML without scripts."""
        raise NotImplementedError

    def last_data(self) -> dict[str, str]:
        """Return the contents of the widget by MIME type: HTML, text, and PNG if it is a figure."""
        state = self.last_state()
        return {"text/html": state, "text/plain": as_text(state)}

    def refresh_last_state(self) -> bool:
        """Update the data of `last_state` at the end of a cell; return False if that is not necessary."""
        return True

    def keep_last_state(self, at_once: bool = False) -> None:
        """Update the notebook's copy; unless ``at_once``, less often the larger it is."""
        now = time.monotonic()
        if not self._display_id or (now < self._kept_until_s and not at_once):
            return
        data = self.last_data()
        if data["text/html"] != self._kept:
            self._kept = data["text/html"]
            self._kept_until_s = now + max(_KEEP_S, sum(map(len, data.values())) / _KEPT_PER_S)
            self._show(data, update=True)

    def keep_at_end_of_cell(self) -> None:
        """Update the notebook's copy as output of the cell that ends now."""
        if not self.refresh_last_state():
            return
        data = self.last_data()
        if data["text/html"] != self._kept_in_cell:
            self._kept = self._kept_in_cell = data["text/html"]
            self._show(data, update=True)

    def close(self) -> None:
        """Close the widget; its output shows the last state from now on."""
        if self._display_id:
            with suppress(TritonError, RuntimeError):  # model unloaded or server stopped
                self._show(self.last_data(), update=True, how="Closed")
            self._display_id = ""
        super().close()  # type: ignore[misc]

    def __repr__(self) -> str:
        model = getattr(self, "model", "")
        return f"<{type(self).__name__}{f' of {model!r}' if model else ''}>"

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

    def _show(self, data: dict[str, str], *, update: bool, how: str = "Picture saved") -> None:
        saved = f"<b>{how} at {time.strftime('%Y-%m-%d %H:%M:%S')}.</b> Run the cell for the live view."
        model = self.model_id  # type: ignore[attr-defined]
        # Hosts nest outputs in elements with different classes, so the rule names the widget itself.
        hidden = f"<style>:root:has(.{_LIVE}{model}) .{_SAVED}{model} {{ display: none; }}</style>"
        state = f"<p class='tnb-saved'>{saved}</p>{data['text/html']}"
        state = f"{_STYLE}{hidden}<div class='tnb-last-state {_SAVED}{model}'>{state}</div>"
        display(data | {"text/html": state}, raw=True, display_id=self._display_id, update=update)


class PolledView(StaticFallback, Group):
    """A view of another server that is refreshed every second, until reading fails or `close` ends it.

    Parameters
    ----------
    name : str
        Of the thread.
    status : Markup
        Says what is shown, and why it has ended.
    children : sequence of anywidget.AnyWidget
        The widgets below the status.
    **traits
        Of the group.

    Examples
    --------
    >>> class Clock(PolledView):
    ...     def refresh(self) -> None:
    ...         self.status.value = "read"
    >>> view = Clock("clock", Markup())
    >>> view.refresh()
    >>> view.status.value, view.refresh_last_state()
    ('read', False)
    >>> view.close()
    """

    def __init__(self, name: str, status: Markup, children: Sequence[anywidget.AnyWidget] = (), **traits: Any) -> None:
        self.status = status
        self._parts = [status, *children]  # the widgets that are closed with the view
        super().__init__(self._parts, **traits)
        self._worker = Worker(name, self._run, self.refresh, _POLL_S)
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
        if close_disconnected(self):
            return
        try:
            job()
        except TritonError as error:
            self.status.value += f" <b>Ended:</b> {html.escape(str(error))}"
            self._worker.stop()


def as_text(markup: str) -> str:
    r"""Return the text of HTML: a line for each paragraph and table row, images by their alternative texts.

    Examples
    --------
    >>> as_text("<p><b>1 &lt; 2</b></p><table><tr><td>rows</td><td>8</td></tr></table><img alt='A figure' src=''>")
    '1 < 2\nrows 8\nA figure'
    """
    text = re.sub(r"<(style|script)\b.*?</\1>", "", markup, flags=re.DOTALL)
    text = re.sub(r"<img\b[^>]*?\balt=(['\"])(.*?)\1[^>]*>", r"\2", text)
    text = re.sub(r"</(p|tr|li|div|h\d|table|pre)>|<br>", "\n", text)
    text = html.unescape(re.sub(r"<[^>]*>", " ", text))
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def _keep_at_end_of_cells(widget: StaticFallback, shell: InteractiveShell) -> None:
    if shell not in _displayed:
        views = _displayed[shell] = weakref.WeakSet()

        def keep(result: object) -> None:
            for displayed in list(views):
                with suppress(TritonError, RuntimeError):  # model unloaded or server stopped
                    displayed.keep_at_end_of_cell()

        shell.events.register("post_run_cell", keep)
    _displayed[shell].add(widget)


def is_connected(widget: object) -> bool:
    """Return whether a browser can show a widget.

    marimo closes the comms of the widgets that a cell has created when the cell runs again.

    Parameters
    ----------
    widget : object
    """
    comm = getattr(widget, "comm", None)
    return comm is not None and not comm._closed


def close_disconnected(view: StaticFallback) -> bool:
    """Close a widget if its host has closed its comm; return whether it had.

    The threads of views call it: marimo reports an error for each message to a widget that it has closed.

    Parameters
    ----------
    view : StaticFallback
    """
    comm = view.comm  # type: ignore[attr-defined]
    if comm is None or not comm._closed:
        return False
    view.close()
    return True


def can_share() -> bool:
    """Return whether several cells can show one widget; in marimo it belongs to the cell that has created it."""
    marimo = sys.modules.get("marimo")
    return marimo is None or not marimo.running_in_notebook()


def find_view(kind: type[W], server: BackgroundServer | Remote, model: str | None) -> W | None:
    """Return the newest open widget of a class and a model, or None."""
    views: list[W] = _open.get(server, {}).get((kind, model), [])
    return next(filter(is_connected, reversed(views)), None)


def open_view(kind: type[W], server: BackgroundServer | Remote, model: str | None, create: Callable[[], W]) -> W:
    """Return the open widget of a class and a model; create it if there is none that this cell can show."""
    view = find_view(kind, server, model) if can_share() else None
    if view is None:
        for disconnected in itertools.filterfalse(is_connected, list(_open.get(server, {}).get((kind, model), []))):
            disconnected.close()
        view = create()
        _open.setdefault(server, {}).setdefault((kind, model), []).append(view)
    return view


def forget_view(server: BackgroundServer | Remote, view: object) -> None:
    """Forget a widget; the next `open_view` creates another widget."""
    for views in _open.get(server, {}).values():
        views[:] = [other for other in views if other is not view]
