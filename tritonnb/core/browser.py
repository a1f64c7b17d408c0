"""Python in a browser (Pyodide), which has no sockets, no threads, and few packages."""

from __future__ import annotations

import sys

#: Whether this is WebAssembly.
IN_BROWSER = sys.platform == "emscripten"


def missing_package(name: str, error: ImportError) -> ImportError:
    """Return the error for a name that needs a missing package; in a browser, it says what works there.

    Parameters
    ----------
    name : str
        What was used, such as ``tnb.serve``.
    error : ImportError
    """
    if not IN_BROWSER or error.name is None:
        return error
    package = error.name.partition(".")[0]
    return ModuleNotFoundError(
        f"{name} expected the package '{package}', got Python in a browser, which has no sockets, no threads and few "
        "packages: use it in JupyterLab; here, simulations, their views, the debugger and worksheets work",
        name=error.name,
    )
