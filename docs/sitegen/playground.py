"""Builds the playground: ``python -m docs.sitegen.playground build/site [pyodide]``.

The page is the widgets' JavaScript as it stands in the package, and an archive of the Python modules that
`tritonnb.playground.session` imports. With ``pyodide`` the runtime is fetched from the npm registry, checked, and
added; a site without it says on the page that it is missing.
"""

from __future__ import annotations

import hashlib
import html
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "tritonnb" / "notebook" / "static"
#: The runtime: package of the npm registry, and the SHA-512 of its archive, as the registry states it.
PYODIDE = "314.0.7"
PYODIDE_SHA512 = (
    "d18bd7c4485f11da4b7dbfd790cd8114078c44eab488c517d9bcf31fda4eb6dc"
    "8c716930abe1db139bb2b860fcd8b37bcb6abe48dbe2ffa579244b0e943d91d4"
)
#: The files of the runtime that the page loads, and its licence.
_RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
#: What the archive contains of each package, and the distribution with its licence.
_PACKAGES = {"tritonnb": "", "google.protobuf": "protobuf", "tritonclient": "tritonclient"}
#: Prints the files of the modules that the page needs. NumPy and the others do not exist there.
_PROGRAM = """
import os, sys
os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
import tritonnb.playground.session
absent = {"numpy", "tornado", "grpc", "matplotlib", "ipywidgets", "anywidget"} & sys.modules.keys()
assert not absent, f"the playground expected to need none of the packages, got {absent}"
for name, module in sorted(sys.modules.items()):
    if getattr(module, "__file__", None):
        print(name, module.__file__, sep="\\t")
"""
#: An archive with the same content is the same file.
_DATE = (2026, 1, 1, 0, 0, 0)


def write_playground(site: Path, runtime: Path | None = None) -> None:
    """Write the directory *playground* of a site.

    Parameters
    ----------
    site : pathlib.Path
    runtime : pathlib.Path, optional
        Directory with the files of the runtime.
    """
    from tritonnb.notebook.widget_files import stylesheet

    target = site / "playground"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(STATIC, target / "static")
    (target / "index.html").write_text(_page(), "utf-8")
    (target / "static" / "playground" / "index.html").unlink()
    (target / "static" / "playground" / "widgets.css").write_text(
        stylesheet("batch_view", "config_editor", "worksheet"), "utf-8"
    )
    write_archive(target / "tritonnb.zip")
    (target / "licences.html").write_text(_licences(), "utf-8")
    if runtime is not None:
        (target / "pyodide").mkdir()
        for name in _RUNTIME:
            shutil.copy(runtime / name, target / "pyodide" / name)


def _page() -> str:
    """The page; without JavaScript it lists the scenarios, at the anchors by which other pages open them."""
    from tritonnb.playground.presets import PRESETS

    items = (
        f'<li id="preset={name}">{html.escape(preset["title"])}: {html.escape(preset["about"])}</li>'
        for name, preset in PRESETS.items()
    )
    page = (STATIC / "playground" / "index.html").read_text("utf-8")
    return page.replace("<!-- presets -->", "\n".join(items))


def write_archive(path: Path) -> None:
    """Write the Python modules of the page as a ZIP archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in _modules():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, source.read_bytes())


def _modules() -> list[tuple[str, Path]]:
    """The path in the archive, and the source, of each module that the page imports."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.check_output([sys.executable, "-c", _PROGRAM], text=True, cwd=ROOT, env=environment)
    files = []
    for line in output.splitlines():
        name, file = line.split("\t")
        if not any(name == package or name.startswith(f"{package}.") for package in _PACKAGES):
            continue
        path = name.replace(".", "/")
        if name.startswith("tritonnb."):  # a compiled module has another file, and mypyc may state a wrong one
            file = str(next(filter(Path.is_file, (ROOT / f"{path}.py", ROOT / path / "__init__.py")), ""))
        if file:  # the library that the compiled modules share has no source
            source = Path(file)
            files.append((f"{path}/__init__.py" if source.name == "__init__.py" else f"{path}.py", source))
    return sorted(files)
