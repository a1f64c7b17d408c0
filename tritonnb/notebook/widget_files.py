"""The JavaScript and CSS of the widgets: one module and one style sheet for each, made from the files in *static*.

ES modules are joined into one, because a widget's module cannot import other files.
"""

from __future__ import annotations

import re
from pathlib import Path

from tritonnb.lab.figures import palette

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.\.?/[\w./]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:default )?\{[^}]*\};\n", re.MULTILINE)


def javascript(widget: str) -> str:
    """Return the module of a widget: *static/<widget>/view.js* and its imports."""
    return join_modules(STATIC / widget / "view.js")


def stylesheet(*names: str) -> str:
    """Return the colours, the shared style of controls, and *static/<name>.css* for each name."""
    files = ["shared/controls.css", *(f"{name}.css" for name in names)]
    return "\n".join([palette.style_sheet(".tnb-controls"), *((STATIC / file).read_text("utf-8") for file in files)])


def join_modules(entry: Path) -> str:
    """Return a module and everything that it imports as the source of one module.

    The modules share one scope then, so a name may be defined in one of them only, and imports are not renamed.
    Modules import ``{names}`` from files by relative paths, and export in separate statements.

    Parameters
    ----------
    entry : pathlib.Path
        The module that keeps its exports.

    Raises
    ------
    ValueError
        If a module imports something in another form.
    """
    sources: dict[Path, str] = {}  # each module after those that it imports

    def add(path: Path) -> None:
        source = path.read_text("utf-8")
        for name in _IMPORT.findall(source):
            imported = (path.parent / name).resolve()
            if imported not in sources:
                add(imported)
        joined = _IMPORT.sub("", source)
        if unsupported := re.search(r"^import .*$", joined, re.MULTILINE):
            raise ValueError(f"{path.name}: expected 'import {{ names }} from \"./file.js\";', got {unsupported[0]!r}")
        sources[path] = joined if path == entry.resolve() else _EXPORT.sub("", joined)

    add(entry.resolve())
    return "\n".join(sources.values())
