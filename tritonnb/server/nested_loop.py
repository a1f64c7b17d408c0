"""Nested event loops, for user code that calls ``asyncio.run`` in a cell.

The server does not need them: it has its own event loop and thread.
"""

from __future__ import annotations

import importlib
import importlib.util

from tritonnb.core.failures import warn
from tritonnb.core.version import installed_version

#: The packages that can nest event loops, the preferred one first.
_PACKAGES = ("nest_asyncio2", "nest_asyncio")


def allow_nested() -> str:
    """Let ``asyncio.run`` and ``run_until_complete`` work while a loop is running.

    Uses the maintained ``nest_asyncio2`` if it is installed, ``nest_asyncio`` otherwise. ``nest_asyncio`` is archived
    and loses the cells queued behind a nested call on ipykernel 7 and later.

    Returns
    -------
    str
        The package that was applied.

    Raises
    ------
    ImportError
        If neither is installed; both come with ``pip install "tritonnb[nested]"``.

    Examples
    --------
    >>> package = allow_nested()  # doctest: +SKIP
    """
    installed = [name for name in _PACKAGES if importlib.util.find_spec(name) is not None]
    if not installed:
        raise ImportError(
            f"allow_nested: expected {_PACKAGES[0]} or {_PACKAGES[1]} to be installed, got neither: "
            'pip install "tritonnb[nested]"'
        )
    name = installed[0]
    if name == "nest_asyncio" and int(installed_version("ipykernel").partition(".")[0] or 0) >= 7:
        warn('nest_asyncio loses queued cells on ipykernel 7: pip install "tritonnb[nested]" brings nest-asyncio2')
    importlib.import_module(name).apply()
    return name
