"""Which model a piece of Python code belongs to, and so which server it may ask.

A *model.py* imports ``triton_python_backend_utils`` while its instance is made; what it gets is bound to that
instance, and stays so on any thread that the model starts. Whoever imports it later gets the instance of
the thread that it runs on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tritonnb.backends.contract import ServerCalls

_current = threading.local()


@dataclass(eq=False)
class InstanceBinding:
    """A model instance and the server around it.

    Attributes
    ----------
    directory : pathlib.Path
        The model's version directory.
    server : ServerCalls or None
        None while only the configuration is being completed.
    name : str
        The instance's.
    executing : bool
        Whether the instance is initialised and not yet being finalised: only then may it ask other models.
    process : int
        The id of the process in which the server's threads run.
    """

    directory: Path
    server: ServerCalls | None = None
    name: str = ""
    executing: bool = False
    process: int = field(default_factory=os.getpid)

    def enter(self) -> None:
        """From now on this thread works for this instance."""
        _current.binding = self

    @contextmanager
    def acting(self) -> Iterator[None]:
        """For a while this thread, whoever it works for, works for this instance."""
        before = current_binding()
        _current.binding = self
        try:
            yield
        finally:
            _current.binding = before

    @property
    def is_in_another_process(self) -> bool:
        """Whether who asks was forked from the server's process: the server is not there."""
        return os.getpid() != self.process


def current_binding() -> InstanceBinding | None:
    """The instance that this thread works for."""
    return getattr(_current, "binding", None)
