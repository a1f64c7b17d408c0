"""The model instance, and through it the server, that Python code of a model belongs to.

When the *model.py* of an instance imports ``triton_python_backend_utils``, it gets a module that is bound to that
instance, on every thread that the model starts. Code that imports the module later gets the instance of its thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from tritonnb.backends.contract import ServerCalls
from tritonnb.core.messages import Caller

P = ParamSpec("P")
T = TypeVar("T")

_current = threading.local()


@dataclass(eq=False)
class InstanceBinding:
    """A model instance and the server around it.

    Attributes
    ----------
    directory : pathlib.Path
        The model's version directory.
    server : ServerCalls or None
        None while ``auto_complete_config`` runs.
    name : str
        Name of the instance.
    executing : bool
        Whether the instance is initialised and not being finalised: only then can it send requests to other models.
    process : int
        ID of the process with the server's threads.
    caller : tuple of (str, int, int), or None
        `Execution.caller` of the last batch, which threads of the model send requests for.
    missed : set of str
        Tensors that the model asked for by a wrong name, and got None: each is logged once.
    """

    directory: Path
    server: ServerCalls | None = None
    name: str = ""
    executing: bool = False
    # Compared at each call, because a process that the model forks inherits this object but none of the server's
    # threads.
    process: int = field(default_factory=os.getpid)
    caller: Caller | None = None
    missed: set[str] = field(default_factory=set)

    def enter(self) -> None:
        """Bind the current thread to this instance."""
        _current.binding = self

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function while the current thread is bound to this instance."""
        # Restored and not cleared, because calls nest: `execute` itself calls utilities that are bound in this way.
        before = current_binding()
        _current.binding = self
        try:
            return function(*args, **kwargs)
        finally:
            _current.binding = before


def current_binding() -> InstanceBinding | None:
    """Return the instance that the current thread is bound to."""
    return getattr(_current, "binding", None)
