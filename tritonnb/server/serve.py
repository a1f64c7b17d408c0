"""`serve`: start a server, and replace it when the cell runs again."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Unpack

from tritonnb.core.failures import with_short_traceback
from tritonnb.endpoints import endpoint_set
from tritonnb.server.options import KeywordsWithPort, StrPath, paths_of, with_server_keywords
from tritonnb.server.server import Server

#: The running servers that `serve` started, by their model repositories.
_running: weakref.WeakValueDictionary[tuple[str, ...], Server] = weakref.WeakValueDictionary()


@with_server_keywords
@with_short_traceback
def serve(model_repository: StrPath | Sequence[StrPath] = (), **options: Unpack[KeywordsWithPort]) -> Server:
    """Start an inference server in this process.

    A second call with the same repositories replaces the server, and can use its port. If the new server cannot start,
    the old one continues.

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
    key = tuple(str(repository.resolve()) for repository in repositories)
    server = _running[key] = Server(repositories, replaces=_running.get(key), **options)
    if options.get("port") is None and server.url and server.port != endpoint_set.DEFAULT_PORTS[0]:
        print(f"port {endpoint_set.DEFAULT_PORTS[0]} is in use; serving on {server.url}")
    for repository in repositories:
        if (repository / "config.pbtxt").is_file():
            parent = repository.resolve().parent
            print(f"'{repository}': expected a model repository, got a model; serve its parent, '{parent}'")
    return server
