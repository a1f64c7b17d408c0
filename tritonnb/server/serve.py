"""`serve`: a server in one line, replaced when its cell runs again."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tritonnb.core.failures import with_short_traceback
from tritonnb.endpoints import listeners
from tritonnb.notebook.switch_interval import share_interpreter
from tritonnb.server.server import Server, StrPath, paths_of

#: The servers that `serve` started and that still run, by what they serve.
_running: weakref.WeakValueDictionary[tuple[str, ...], Server] = weakref.WeakValueDictionary()


@with_short_traceback
def serve(model_repository: StrPath | Sequence[StrPath] = (), *, port: int | None = None, **options: Any) -> Server:
    """Start an inference server in this process.

    Running the same cell again replaces the server of the same repositories; its port is free again
    before the new one starts. Where the new one cannot start, the old one goes on. From the first on, cells
    that keep Python busy let the server's threads in more often (``sys.setswitchinterval``).

    Parameters
    ----------
    model_repository : path or sequence of paths, optional
        Directories in Triton's repository layout. None at all makes a server for Python functions
        (`Server.model`).
    port : int, optional
        HTTP port; 0 for any free one. By default 8000, or the next free one, said aloud.
    **options
        Other arguments of `Server`.

    Returns
    -------
    Server

    Raises
    ------
    UnavailableError
        If the port that was asked for is taken.
    InvalidArgumentError
        If a model repository does not exist.
    """
    repositories = paths_of(model_repository)
    key = tuple(str(each.resolve()) for each in repositories)
    server = _running[key] = Server(repositories, port=port, replaces=_running.get(key), **options)
    share_interpreter()
    if port is None and server.url and server.port != listeners.DEFAULT_PORT:
        print(f"port {listeners.DEFAULT_PORT} is taken: serving on {server.url}")
    for each in repositories:
        if (each / "config.pbtxt").is_file():
            print(f"'{each}' looks like a model: serve the directory that it lies in, '{each.resolve().parent}'")
    return server
