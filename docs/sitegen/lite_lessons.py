"""Lessons for a browser, which has no server and few packages: what cannot run there says so, and the rest stays.

A statement is left out if it uses what a browser lacks, or a name that a statement that was left out defines or
changes. Figures are replaced by views. So there is one copy of a lesson only.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbformat import NotebookNode, v4

ROOT = Path(__file__).parents[2]
#: The packages that lessons may import in a browser, besides Python's own.
_PACKAGES = {"IPython", "ipywidgets", "tritonnb"}
#: What depends on files or packages that a browser lacks, although it can be imported there.
_ABSENT = {"tritonnb.model_zoo", "multiprocessing", "socket", "subprocess", "threading"}
#: Prints the public names that cannot be imported in a browser: imports of all other packages fail here, too.
_PROGRAM = """
import json, os, sys
os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
present = {"IPython", "anywidget", "google", "ipywidgets", "lazy_loader", "traitlets", "tritonclient", "tritonnb"}
class OnlyThese:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in present | sys.stdlib_module_names:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, OnlyThese())
import tritonnb
def is_missing(name):
    try:
        getattr(tritonnb, name)
    except ModuleNotFoundError:
        return True
print(json.dumps([name for name in tritonnb.__all__ if is_missing(name)]))
"""
_VIEW = "  # view() instead of a figure: a browser has no Matplotlib"


def missing_names() -> set[str]:
    """Return the public names of tritonnb that need what a browser lacks: ``serve``, ``load``, ``FP32``, ..."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.check_output([sys.executable, "-c", _PROGRAM], text=True, cwd=ROOT, env=environment)
    return set(json.loads(output))


def for_browser(lesson: NotebookNode, missing: Iterable[str], executed: NotebookNode | None = None) -> NotebookNode:
    """Return a lesson in which every cell runs in a browser, or says what it needs.

    Parameters
    ----------
    lesson : NotebookNode
    missing : iterable of str
        The public names of tritonnb that a browser lacks.
    executed : NotebookNode, optional
        The lesson with its outputs: a cell that cannot run shows its output.
    """
    cutter = Cutter(frozenset(missing))
    outputs = {} if executed is None else {cell.id: cell.get("outputs", []) for cell in executed.cells}
    parts = {cell.id: cutter.cut(cell.source) for cell in lesson.cells if cell.cell_type == "code"}
    used: set[str] = set()
    cells: list[NotebookNode] = []
    for cell in reversed(lesson.cells):
        part = parts.get(cell.id)
        if part is None:
            cells.append(cell)
        elif part.is_useful or part.defines & used:
            used |= part.uses
            cells.append(v4.new_code_cell(part.text, id=cell.id))
        else:
            cells.append(_explained(cell, part.needs, outputs.get(cell.id, [])))
    cells.reverse()
    metadata = {
        "kernelspec": {"display_name": "Python (Pyodide)", "language": "python", "name": "python"},
        "language_info": {"name": "python"},
    }
    browser_lesson: NotebookNode = v4.new_notebook(cells=cells, metadata=metadata)
    return browser_lesson


def _explained(cell: NotebookNode, needs: str, outputs: list[Any]) -> NotebookNode:
    """Return a text instead of a cell that cannot run: what it needs, its code, and its output elsewhere."""
    text = f"**Needs {needs}, which a browser does not have.** In JupyterLab (`make lab`) this cell runs:\n\n"
    text += f"```python\n{cell.source}\n```\n"
    attachments = {}
    for number, output in enumerate(outputs):
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "application/vnd.jupyter.widget-view+json" in data:
            continue
        image = next((kind for kind in ("image/png", "image/svg+xml") if kind in data), None)
        if image is not None:
            name = f"output-{number}"
            content = data[image]
            encoded = content if image == "image/png" else base64.b64encode(content.encode()).decode()
            attachments[name] = {image: encoded}
            text += f"\n![its output](attachment:{name})\n"
        elif data.get("text/plain", "").strip():
            text += f"\n```text\n{data['text/plain'].rstrip()}\n```\n"
    explained: NotebookNode = v4.new_markdown_cell(text, id=cell.id)
    if attachments:
        explained["attachments"] = attachments
    return explained


@dataclass(frozen=True)
class Part:
    """What remains of a cell.

    Attributes
    ----------
    text : str
        The cell, with the statements that cannot run as comments.
    needs : str
        What these statements need, a server first; empty if all run.
    is_useful : bool
        Whether its last statement runs, which shows the result; otherwise it may define names for other cells.
    defines, uses : set of str
        The names that the remaining statements define and use.
    """

    text: str
    needs: str
    is_useful: bool
    defines: set[str]
    uses: set[str]


@dataclass
class Cutter:
    r"""Cuts the cells of one notebook, in their order.

    Attributes
    ----------
    missing : frozenset of str
        The public names of tritonnb that a browser lacks.
    lost : dict of str to str
        The names that are not defined in a browser, or have another value, with what their definition needs.
    modules : set of str
        The names of imported modules, which a call does not change.

    Examples
    --------
    >>> cutter = Cutter(frozenset({"serve"}))
    >>> print(cutter.cut("import tritonnb as tnb\nserver = tnb.serve()").text)
    import tritonnb as tnb
    # Needs a server (tnb.serve), which a browser does not have:
    # server = tnb.serve()
    >>> cutter.cut("server.stop()").needs
    'a server (tnb.serve)'
    """

    missing: frozenset[str]
    lost: dict[str, str] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)

    def cut(self, source: str) -> Part:
        """Return what remains of the next cell."""
        lines: list[str | None] = list(source.split("\n"))
        statements = ast.parse(source).body
        reason, reasons = "", []
        defines: set[str] = set()
        uses: set[str] = set()
        for statement in statements:
            begin = min(node.lineno for node in [statement, *getattr(statement, "decorator_list", [])]) - 1
            end = statement.end_lineno or statement.lineno
            shown = _recording_of_figure(statement) if statement is statements[-1] else None
            previous, reason = reason, _first(self._needs(shown or statement))
            if reason:
                reasons.append(reason)
                text = [f"# {line}".rstrip() for line in source.split("\n")[begin:end]]
                if reason != previous:
                    text.insert(0, f"# Needs {reason}, which a browser does not have:")
                lines[begin:end] = ["\n".join(text)] + [None] * (end - begin - 1)
                for name in {*_defined(statement), *_changed(statement)} - self.modules:
                    self.lost[name] = reason
                continue
            if shown is not None:
                lines[begin:end] = [f"{ast.unparse(shown)}.view(){_VIEW}"] + [None] * (end - begin - 1)
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self.modules |= _defined(statement)
            defines |= _defined(statement)
            uses |= _used(shown or statement)
            for name in _defined(statement):
                self.lost.pop(name, None)
        text_left = "\n".join(line for line in lines if line is not None)
        return Part(text_left, _first(reasons), not reason, defines, uses)

    def _needs(self, tree: ast.AST) -> Iterator[str]:
        """Yield what a statement needs and a browser lacks."""
        yield from (self.lost[name] for name in sorted(_used(tree) & self.lost.keys()))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from (f"the package {module}" for module in _modules(node) if not _is_importable(module))
            elif isinstance(node, ast.Attribute):
                if ast.unparse(node.value) == "tnb" and node.attr in self.missing:
                    yield f"a server (tnb.{node.attr})" if node.attr.islower() else f"tnb.{node.attr}"
                if node.attr == "plot":
                    yield "Matplotlib"


def _first(reasons: Iterable[str]) -> str:
    """Return the reason that says most: a server, if one is needed; empty if there is no reason."""
    return min(reasons, key=lambda reason: not reason.startswith("a server"), default="")


def _is_importable(module: str) -> bool:
    is_absent = any(module == absent or module.startswith(f"{absent}.") for absent in _ABSENT)
    return not is_absent and module.partition(".")[0] in _PACKAGES | sys.stdlib_module_names


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]


def _recording_of_figure(statement: ast.stmt) -> ast.expr | None:
    """Return ``rec`` of a statement ``rec.plot()`` or ``rec.plot.timeline()``; None for other statements."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return None
    function = statement.value.func
    for node in (function, getattr(function, "value", None)):
        if isinstance(node, ast.Attribute) and node.attr == "plot":
            return node.value
    return None


def _used(tree: ast.AST) -> set[str]:
    """Return the names of the notebook that a statement reads."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return names - set(_parameters(tree))


def _parameters(tree: ast.AST) -> Iterator[str]:
    """Yield the names that exist in functions and comprehensions of a statement only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.comprehension):
            yield from _stored(node.target)


def _stored(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines in the notebook."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names = set(_stored(statement)) - set(_parameters(statement))
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(name.asname or name.name).partition(".")[0] for name in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Yield the names of objects that a statement may change: ``x.append(1)``, ``x[0] = 1``, ``x.y = 1``."""
    for node in ast.walk(statement):
        target: ast.AST | None = None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            target = node.value.func if isinstance(node.value.func, ast.Attribute) else None
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            target = node
        while isinstance(target, ast.Attribute | ast.Subscript | ast.Call):
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name):
            yield target.id
