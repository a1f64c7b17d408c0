"""The libraries of these tests, compiled once for a run of the tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from tritonnb.backends.native import build

_SOURCES = Path(__file__).parent


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tritonnb-native-")


@functools.cache
def compiled(source: str) -> Path:
    """The library of a source of this directory; the test skips without a compiler."""
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler: install g++ to test C++ backends")
    library = Path(_directory().name) / source.removesuffix(".cc") / f"libtriton_{source.removesuffix('.cc')}.so"
    build.compile_library([_SOURCES / source], library)
    return library


def backend_directory() -> Path:
    """A backend directory with the backend *probe*."""
    return compiled("probe.cc").parents[1]
