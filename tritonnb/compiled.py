"""Choose at import between the compiled modules of the request path (*hatch_build.py*) and their sources.

In a checkout, the compiled modules are in the same directories as their sources, and Python prefers them. They call
one another without the interpreter, so all of them are used or none: after an edit of one source, all modules are
interpreted until they are compiled again.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

_PACKAGE = Path(__file__).parent


def _is_outdated(compiled: Path) -> bool:
    source = compiled.with_name(compiled.name.partition(".")[0] + ".py")
    return not source.is_file() or source.stat().st_mtime_ns > compiled.stat().st_mtime_ns


def _compiled_modules() -> list[Path]:
    # The library that they share (`compiled__mypyc`) has no source.
    return [path for path in _PACKAGE.rglob(f"*{EXTENSION_SUFFIXES[0]}") if "__mypyc" not in path.name]


def interpret() -> None:
    """Import the sources from now on, which have docstrings, even if there are compiled modules."""
    for directory in {str(path.parent) for path in _compiled_modules()}:
        sys.path_importer_cache[directory] = FileFinder(directory, (SourceFileLoader, SOURCE_SUFFIXES))


def _choose() -> str:
    compiled = _compiled_modules()
    if not compiled:
        return "interpreted"
    # Elsewhere, an installer wrote the files in any order.
    if (_PACKAGE.parent / "hatch_build.py").is_file() and any(map(_is_outdated, compiled)):
        interpret()
        return "interpreted, since it was edited after it was compiled"
    return "compiled"


#: Which it is, in words; decided before any module that may be compiled is imported.
STATE = _choose()
