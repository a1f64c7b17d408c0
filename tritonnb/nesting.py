"""The one opt-in to nested event loops, for code that calls ``asyncio.run`` inside a cell.

Nothing here needs it: the server has a loop and a thread of its own. It is for user code.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import warnings


def allow_nested() -> str:
    """Let ``asyncio.run`` and ``run_until_complete`` work while a loop is running.

    The maintained ``nest_asyncio2`` is taken where it is installed. ``nest_asyncio``, which is
    archived, loses the cells queued behind a nested call on ipykernel 7 and later.

    Returns
    -------
    str
        The package that was applied.

    Raises
    ------
    ImportError
        If neither is installed.
    """
    if importlib.util.find_spec("nest_asyncio2") is not None:
        name = "nest_asyncio2"
    else:
        name = "nest_asyncio"
        if _ipykernel_major() >= 7:
            warnings.warn("nest_asyncio loses queued cells on ipykernel 7: pip install nest-asyncio2", stacklevel=2)
    importlib.import_module(name).apply()
    return name


def _ipykernel_major() -> int:
    try:
        return int(importlib.metadata.version("ipykernel").partition(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0
