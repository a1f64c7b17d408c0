"""How far something long has come, on one line that changes; in a notebook only."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line to tell the progress on; it goes away at the end.

    Examples
    --------
    >>> with progress() as tell:
    ...     tell("half of it")
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        yield lambda text: None
        return
    from IPython.display import HTML, display

    line = display(HTML(""), display_id=True)
    try:
        yield lambda text: line.update(HTML(f"<i>{html.escape(text)}</i>"))
    finally:
        line.update(HTML(""))
