"""No file from a stranger can run code: no module of the package imports a reader of pickled objects."""

from __future__ import annotations

import ast

from tests.project.test_layers import PACKAGE

#: Reads only what a process that it has started itself writes to a pipe between them.
OWN_PROCESS = "notebook/side_process.py"
READERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}


def test_no_module_reads_pickled_objects() -> None:
    found = []
    for path in set(PACKAGE.rglob("*.py")) - {PACKAGE / OWN_PROCESS}:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path.name}: {name}" for name in names if name.partition(".")[0] in READERS]
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                found.append(f"{path.name}: allow_pickle")
    assert not found
