"""`serve`: start a server, and replace it when its cell runs again."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Unpack

from tritonnb.core.failures import with_short_traceback
from tritonnb.endpoints import endpoint_set
from tritonnb.server.options import KeywordsWithPort, StrPath, paths_of, with_server_keywords
from tritonnb.server.server import Server


@dataclass(frozen=True)
class _Execution:
    """The execution of a cell.

    Attributes
    ----------
    cell : str
        The ID of the cell if the front end sends it, so that an edited cell is the same; otherwise a name by its text.
    previous : weakref.ref or None
        The result of the execution before this one, which tells two executions of one cell apart.
    """

    cell: str
    previous: weakref.ref[Any] | None

    def is_over(self, now: _Execution) -> bool:
        """Return whether another execution, the current one, is a later one."""
        return self.previous != now.previous or (self.previous is not None and self.previous() is None)


@dataclass(frozen=True)
class _Origin:
    """The call of `serve` that started a server."""

    repositories: tuple[str, ...]
    port: int | None
    execution: _Execution | None


#: The servers that `serve` started, the oldest first.
_started: weakref.WeakKeyDictionary[Server, _Origin] = weakref.WeakKeyDictionary()


@with_server_keywords
@with_short_traceback
def serve(model_repository: StrPath | Sequence[StrPath] = (), **options: Unpack[KeywordsWithPort]) -> Server:
    """Start an inference server in this process.

    In a notebook, a cell that runs again replaces the server of its previous run, with the same repositories, and can
    use its port; the same holds for two cells that give no port. Elsewhere, as in scripts and tests, only a call with
    the port of the earlier server replaces it. If the new server cannot start, the old one continues. `Server` never
    replaces another one.

    Parameters
    ----------
    model_repository : path or sequence of paths, optional
        Directories in Triton's repository layout. Without one the server has no models at first; `Server.model` adds
        Python functions.
    port : int, optional
        HTTP port; 0 for any free port. By default 8000 or the next free port, which is printed.
    **options
        Other arguments of `Server`.

    Returns
    -------
    Server

    Raises
    ------
    UnavailableError
        If the given port is in use.
    InvalidArgumentError
        If a model repository does not exist.

    Examples
    --------
    >>> server = serve(port=0)
    >>> server.url.startswith("http://127.0.0.1:")
    True
    >>> server.stop()
    """
    repositories = paths_of(model_repository)
    origin = _Origin(tuple(str(path.resolve()) for path in repositories), options.get("port"), _current_execution())
    server = Server(repositories, replaces=_replaced(origin), **options)
    _started[server] = origin
    if origin.port is None and server.url and server.port != endpoint_set.DEFAULT_PORTS[0]:
        print(f"port {endpoint_set.DEFAULT_PORTS[0]} is in use; serving on {server.url}")
    for repository in repositories:
        if (repository / "config.pbtxt").is_file():
            parent = repository.resolve().parent
            print(f"'{repository}': expected a model repository, got a model; serve its parent, '{parent}'")
    return server


def _replaced(new: _Origin) -> Server | None:
    """Return the server that a new one replaces.

    Only one: if a cell starts two servers, the first call of its next run replaces the first server.
    """
    for server, old in list(_started.items()):
        if not server.alive or old.repositories != new.repositories:
            continue
        if new.port and server.url and server.port == new.port:
            return server
        if old.execution is None or new.execution is None or not old.execution.is_over(new.execution):
            continue
        if old.execution.cell == new.execution.cell or old.port is new.port is None:
            return server
    return None


def _current_execution() -> _Execution | None:
    """Return the execution of the cell that called; None outside a cell, as in a script or on a thread."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    name = ""
    frame: FrameType | None = sys._getframe()
    while shell is not None and frame is not None:
        if frame.f_globals is shell.user_ns:  # the outermost is the cell, the others are functions of cells
            name = frame.f_code.co_filename
        frame = frame.f_back
    if shell is None or not name:
        return None
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}  # a kernel's message
    # IPython's names of cells have the number of the execution, a kernel's only a hash of the text.
    cell = parent.get("metadata", {}).get("cellId") or re.sub(r"(?<=ipython-input-)\d+", "", name)
    previous = shell.last_execution_result
    return _Execution(cell, None if previous is None else weakref.ref(previous))
