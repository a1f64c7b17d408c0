"""Errors of public functions have tracebacks that end where the package was called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb import errors
from tritonnb.client.connection import RemoteModelHandle
from tritonnb.client.remote_config import RemoteConfig
from tritonnb.lab.analysis.debugger import Debugger
from tritonnb.server.model_handle import ConfigHandle, ModelHandle

#: Classes whose objects public functions return.
RETURNED = [ConfigHandle, Debugger, ModelHandle, RemoteConfig, RemoteModelHandle]
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type)}


def functions() -> Iterator[tuple[str, Callable[..., object]]]:
    """The public functions and methods that can raise an error of this package, according to their documentation."""
    for value in (*(getattr(tnb, name) for name in dir(tnb)), *RETURNED):
        if inspect.isfunction(value):
            members: list[tuple[str, Any]] = [(value.__name__, value)]
        elif not inspect.isclass(value) or value.__name__.endswith("Options"):
            continue
        else:
            members = [
                (f"{value.__name__}.{name}", getattr(member, "__func__", member))
                for name, member in inspect.getmembers(value, inspect.isroutine)
                if not name.startswith(("_", "require_")) or name in ("__call__", "__getitem__")
            ]
        yield from ((name, function) for name, function in members if _raises(function))


def _raises(function: Any) -> bool:
    own = str(getattr(function, "__module__", "")).startswith("tritonnb.")
    section = re.search(r"Raises\n------\n(.*?)(?:\n\n\w+\n--|\Z)", inspect.getdoc(function) or "", re.DOTALL)
    return own and section is not None and bool(ERRORS & set(re.findall(r"\w+", section[1])))


@pytest.mark.parametrize(("name", "function"), sorted(dict(functions()).items()))
def test_public_function_that_raises_errors_shortens_their_tracebacks(
    name: str, function: Callable[..., object]
) -> None:
    while "shorten_traceback" not in function.__code__.co_names:
        assert hasattr(function, "__wrapped__"), f"{name} expected the decorator with_short_traceback"
        function = function.__wrapped__
