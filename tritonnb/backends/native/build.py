"""Compiling C++ libraries: the shim, and backends.

This module imports nothing of the package: *hatch_build.py* loads it where the package is not installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_NATIVE = Path(__file__).parent

#: Our declarations of the backend interface: ``#include "triton/core/tritonbackend.h"``.
INCLUDE = _NATIVE / "include"
#: The name of the shim, which is also its SONAME: backends are linked with it.
SHIM = "libtritonserver.so"

_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-Wall")


class CompileError(Exception):
    """The compiler rejected the source; the text is the compiler's."""


def find_compiler() -> str | None:
    """Return the C++ compiler: ``$CXX``, or the first compiler that is installed; None if there is none."""
    names = filter(None, (os.environ.get("CXX"), "g++", "c++", "clang++"))
    return next((name for name in names if shutil.which(name)), None)


def extra_flags() -> list[str]:
    """Return the options of the user: ``$CXXFLAGS``."""
    return shlex.split(os.environ.get("CXXFLAGS", ""))


def shim_sources() -> list[Path]:
    """Return the files that the shim is made of."""
    return sorted([*(_NATIVE / "shim").glob("*.cc"), *(_NATIVE / "shim").glob("*.h"), *INCLUDE.rglob("*.h")])


def compile_shim(output: Path) -> None:
    """Compile the shim.

    Raises
    ------
    CompileError
        If that fails.
    """
    sources = [source for source in shim_sources() if source.suffix == ".cc"]
    # Hidden by default: only Triton's interface and the functions for Python are exported, so nothing else can collide.
    options = ("-fvisibility=hidden", f"-Wl,-soname,{SHIM}")
    compile_library(sources, output, options, ("-ldl", "-pthread"))


def compile_library(
    sources: Sequence[Path], output: Path, flags: Sequence[str] = (), libraries: Sequence[str] = ()
) -> str:
    """Compile a shared library; an existing file is replaced, and stays in use where it is loaded.

    Parameters
    ----------
    sources : sequence of pathlib.Path
    output : pathlib.Path
    flags : sequence of str, optional
        Further options of the compiler.
    libraries : sequence of str, optional
        Options that follow the sources.

    Returns
    -------
    str
        The compiler's warnings.

    Raises
    ------
    CompileError
        If the compiler rejects the sources, or there is none.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompileError("no C++ compiler was found (g++, c++, clang++, or the program that $CXX names)")
    output.parent.mkdir(parents=True, exist_ok=True)
    # Beside the output, since `os.replace` is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=output.parent) as scratch:
        library = Path(scratch) / output.name
        options = [*_FLAGS, f"-I{INCLUDE}", *flags, *extra_flags()]
        command = [compiler, *options, "-o", str(library), *map(str, sources), *libraries]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise CompileError(result.stderr.strip())
        # A new file and not new contents: writing into a library that a process has loaded would crash it.
        os.replace(library, output)
    return result.stderr.strip()
