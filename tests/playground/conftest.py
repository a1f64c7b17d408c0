"""The built playground: once for all tests, with the runtime that npm fetches."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from docs.sitegen.playground import ROOT, fetch_runtime, write_playground
from tests.notebook.conftest import axe

__all__ = ["axe"]


@pytest.fixture(scope="session")
def runtime() -> Path:
    """The directory of Pyodide."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm, which fetches Pyodide")
    try:
        return fetch_runtime(ROOT / "build")
    except RuntimeError as error:
        if "npm cannot get" in str(error):
            pytest.skip(str(error))
        raise


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(root: Path) -> Iterator[str]:
    """The address of a server of files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def site(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the playground, below a path, served by a server of files."""
    root = tmp_path_factory.mktemp("site")
    write_playground(root / "some" / "path", runtime)
    (root / "some" / "path" / "index.html").write_text("<title>Documentation</title>")
    with served(root) as address:
        yield f"{address}some/path/playground/"
