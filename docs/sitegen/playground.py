"""Builds the playground: ``python -m docs.sitegen.playground build/site [pyodide]``.

The page is the widgets' JavaScript as it stands in the package, its own in *docs/playground/static*, and an archive of
the Python modules that `docs.playground.session` imports. With ``pyodide`` the runtime is fetched from the npm
registry, checked, and added; a site without it says on the page that it is missing.
"""

from __future__ import annotations

import hashlib
import html
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "tritonnb" / "notebook" / "static"
PAGE = ROOT / "docs" / "playground" / "static"
#: The runtime: package of the npm registry, and the SHA-512 of its archive, as the registry states it.
PYODIDE = "314.0.7"
PYODIDE_SHA512 = (
    "d18bd7c4485f11da4b7dbfd790cd8114078c44eab488c517d9bcf31fda4eb6dc"
    "8c716930abe1db139bb2b860fcd8b37bcb6abe48dbe2ffa579244b0e943d91d4"
)
#: The files of the runtime that the page loads, and its licence.
_RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
#: What the archive contains of each package, and the distribution with its licence.
_PACKAGES = {
    "tritonnb": "",
    "docs.playground": "",
    "google.protobuf": "protobuf",
    "lazy_loader": "lazy-loader",
    "tritonclient": "tritonclient",
}
#: Prints the files of the modules that the page needs. NumPy and the others do not exist there. The scenarios are
#: answered, because the attributes of a recording import their modules when they are read (tritonnb/accessors.py).
_PROGRAM = '''
import json, os, sys
os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
from docs.playground.presets import PRESETS
from docs.playground.session import Session
session = Session()
for preset in PRESETS.values():
    answers = [session.answer(json.dumps({"do": "simulate", "scenario": preset["scenario"]}))]
    batches = json.loads(answers[0])["result"]["shown"]["batches"]
    request = next(serial for serial in batches[0][4] if serial is not None)
    answers.append(session.answer(json.dumps({"do": "blame", "batch": batches[0][0], "request": str(request)})))
    assert not [answer for answer in answers if "error" in json.loads(answer)], answers
config = "name: 'm' max_batch_size: 1 instance_group { count: 1 kind: KIND_CPU }"
times = "overhead 0 usec + queue 9000 usec + compute input 0 usec + compute infer 9000 usec + compute output 0 usec"
report = f"""Request concurrency: 2
Throughput: 110 infer/sec
Avg latency: 18000 usec
Server:
Inference count: 9
Execution count: 9
Successful request count: 9
Avg request latency: 18000 usec ({times})"""
trace = '[{"id": 1, "model_name": "m", "timestamps": [{"name": "REQUEST_START", "ns": 1}]}]'
sources = [{"name": str(number), "text": text} for number, text in enumerate((config, report, trace))]
answer = session.answer(json.dumps({"do": "explain", "sources": sources, "seconds": None}))
assert "instances are at their capacity" in answer and "twice as many instances" in answer, answer
absent = {"numpy", "tornado", "grpc", "matplotlib", "ipywidgets", "anywidget"} & sys.modules.keys()
assert not absent, f"the playground expected to need none of the packages, got {absent}"
for name, module in sorted(sys.modules.items()):
    if getattr(module, "__file__", None):
        print(name, module.__file__, sep="\\t")
'''
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
    shutil.copytree(PAGE, target / "static" / "playground", ignore=shutil.ignore_patterns("*.html"))
    (target / "index.html").write_text(_page(), "utf-8")
    shutil.copy(PAGE / "explain.html", target)
    (target / "static" / "playground" / "widgets.css").write_text(
        stylesheet("batch_view", "config_editor", "worksheet"), "utf-8"
    )
    (target / "first.json").write_text(_first(), "utf-8")
    write_archive(target / "tritonnb.zip")
    (target / "licences.html").write_text(_licences(), "utf-8")
    if runtime is not None:
        (target / "pyodide").mkdir()
        for name in _RUNTIME:
            shutil.copy(runtime / name, target / "pyodide" / name)


def _page() -> str:
    """Return the page; without JavaScript it lists the scenarios, at the anchors by which other pages open them."""
    from docs.playground.presets import PRESETS

    items = (
        f'<li id="preset={name}">{html.escape(preset["title"])}: {html.escape(preset["about"])}</li>'
        for name, preset in PRESETS.items()
    )
    page = (PAGE / "index.html").read_text("utf-8")
    return page.replace("<!-- presets -->", "\n".join(items))


def _first() -> str:
    """Return the result of the scenario that the page opens with."""
    from docs.playground.presets import preset
    from docs.playground.session import Session

    return Session().answer(json.dumps({"do": "simulate", "scenario": preset("five-requests")}))


def write_archive(path: Path) -> None:
    """Write the Python modules of the page as a ZIP archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in _modules():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, source.read_bytes())


def _modules() -> list[tuple[str, Path]]:
    """Return the archive path and the file of each module that the page imports, and of the list of public names."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.check_output([sys.executable, "-c", _PROGRAM], text=True, cwd=ROOT, env=environment)
    files = [("tritonnb/__init__.pyi", ROOT / "tritonnb" / "__init__.pyi")]
    for line in output.splitlines():
        name, file = line.split("\t")
        if not any(name == package or name.startswith(f"{package}.") for package in _PACKAGES):
            continue
        path = name.replace(".", "/")
        if name.startswith(
            ("tritonnb.", "docs.")
        ):  # a compiled module has another file, and mypyc may state a wrong one
            file = str(next(filter(Path.is_file, (ROOT / f"{path}.py", ROOT / path / "__init__.py")), ""))
        if file:  # the library that the compiled modules share has no source
            source = Path(file)
            files.append((f"{path}/__init__.py" if source.name == "__init__.py" else f"{path}.py", source))
    return sorted(files)


def fetch_runtime(directory: Path) -> Path:
    """Fetch the runtime with npm into a directory, unless it is there already, and return its files' directory.

    Raises
    ------
    RuntimeError
        If npm cannot get it, or the archive is not the expected one.
    """
    target = directory / f"pyodide-{PYODIDE}"
    if (target / "package" / _RUNTIME[0]).is_file():
        return target / "package"
    target.mkdir(parents=True, exist_ok=True)
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("the runtime of the playground expected npm, got none: install Node.js")
    packed = subprocess.run(
        [npm, "pack", "--silent", f"pyodide@{PYODIDE}"], cwd=target, capture_output=True, text=True, check=False
    )
    if packed.returncode:
        raise RuntimeError(f"npm cannot get pyodide {PYODIDE}: {packed.stderr.strip()}")
    archive = target / packed.stdout.split()[-1]
    digest = hashlib.sha512(archive.read_bytes()).hexdigest()
    if digest != PYODIDE_SHA512:
        raise RuntimeError(f"'{archive.name}' expected the SHA-512 {PYODIDE_SHA512}, got {digest}")
    with tarfile.open(archive) as content:
        content.extractall(target, filter="data")
    return target / "package"


def _licences() -> str:
    """Return a page with the licences of the packages in the archive."""
    sections = [
        f"<h2>Pyodide {PYODIDE}</h2><p>The runtime in the directory <i>pyodide</i>: Mozilla Public License 2.0. Its "
        f'source: <a href="https://github.com/pyodide/pyodide/tree/{PYODIDE}">github.com/pyodide/pyodide</a>. It has '
        'CPython: <a href="https://docs.python.org/3/license.html">PSF License Agreement</a>.</p>',
    ]
    sections.append(f"<h2>tritonnb</h2><pre>{html.escape((ROOT / 'LICENSE').read_text('utf-8'))}</pre>")
    for distribution in filter(None, _PACKAGES.values()):
        metadata = importlib.metadata.distribution(distribution)
        files = [file for file in metadata.files or () if "LICENSE" in file.name.upper()]
        text = "\n".join(Path(str(file.locate())).read_text("utf-8") for file in files)
        sections.append(f"<h2>{distribution} {metadata.version}</h2><pre>{html.escape(text)}</pre>")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Licences</title></head>'
        f"<body><h1>Licences</h1>{''.join(sections)}</body></html>\n"
    )


def main() -> int:
    """Write the playground of the site named on the command line; the exit status."""
    site = Path(sys.argv[1])
    runtime = fetch_runtime(ROOT / "build") if sys.argv[2:] == ["pyodide"] else None
    write_playground(site, runtime)
    files = [path for path in (site / "playground").rglob("*") if path.is_file()]
    print(f"playground: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
