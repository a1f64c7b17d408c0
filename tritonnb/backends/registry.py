"""Backends by name, found through the entry point group ``tritonnb.backends``.

The built-in backends are registered in the same way as backends of other packages. A backend written in Python, as on
Triton, is a directory with a *model.py* in the backend directory; a backend written in C++ is a shared library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tritonnb.backends.contract import Backend, ModelContext
from tritonnb.backends.isolation.backend import IsolatedBackend
from tritonnb.backends.location import find_backend
from tritonnb.backends.native.library import unique_path
from tritonnb.core.forks import fork_safe
from tritonnb.core.paths import working_directory


class BackendRegistry:
    """The backends of one server; each is created and initialised when the first model needs it.

    Parameters
    ----------
    settings_of : callable
        Returns the ``--backend-config`` settings of a backend, by its name.
    directory : pathlib.Path, optional
        ``--backend-directory``.
    """

    def __init__(self, settings_of: Callable[[str], Mapping[str, str]], directory: Path | None = None) -> None:
        self._settings_of = settings_of
        self._directory = directory
        # The directory at the start, because user code may change it before a child is spawned.
        self._working_directory = working_directory()
        self._backends: dict[tuple[str, str], Backend] = {}
        self._lock = fork_safe(threading.Lock())  # models are loaded on several threads

    def get(self, name: str, library: Path | None = None) -> Backend:
        """Return the backend with a name, created by the first call.

        Parameters
        ----------
        name : str
        library : pathlib.Path, optional
            The shared library that implements it. A library that was replaced is another backend.

        Raises
        ------
        InvalidArgumentError
            If a backend with this name does not exist.
        UnsupportedError
            If a library that the backend needs is not installed, or the backend exists on Triton only.
        """
        key = name, "" if library is None else unique_path(library)
        with self._lock:
            if key not in self._backends:
                # Under the lock: two models that are loaded at once must not initialise the same library twice.
                backend = find_backend(name, self._directory, library).create()
                backend.initialize(self._settings_of(name))
                self._backends[key] = backend
            return self._backends[key]

    def finalize(self) -> None:
        """Finalize every backend that was created."""
        for backend in self._backends.values():
            backend.finalize()
        self._backends.clear()

    def isolated(self, context: ModelContext, library: Path | None = None) -> IsolatedBackend:
        """Return a backend for one model with instances in their own processes.

        Parameters
        ----------
        context : ModelContext
            Its configuration names the backend.
        library : pathlib.Path, optional
            As for `get`.

        Raises
        ------
        TritonError
            As for `get`, and if the process cannot create the backend.
        """
        # Found here and created in the child: the server's process need not even import the framework.
        location = find_backend(context.config.backend, self._directory, library)
        return IsolatedBackend(replace(location, directory=str(self._working_directory)), context)
