"""Builds lessons that run in a browser: ``python -m docs.sitegen.lite build/site [pyodide]``.

JupyterLite is JupyterLab without a server; its kernel is Pyodide, the runtime of the playground. With ``pyodide``, npm
and pip fetch what it consists of, and the site then needs no network. Otherwise the page *lite/lessons.html* says that
the lessons are missing.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import nbformat

from docs.sitegen import lite_lessons, notebooks
from docs.sitegen.playground import ROOT, fetch_runtime

#: The lessons with a simulation.
LESSONS = ("02_dynamic_batching", "04_stateful_models", "06_why_is_my_batch_small")
#: What builds the pages, in its own environment: the kernel's extension would also load in a real JupyterLab.
_BUILDERS = ("jupyterlite-core", "jupyterlite-pyodide-kernel", "jupyter-server", "jupyterlab-server")
#: The JavaScript of the widgets, without what these packages depend on.
_EXTENSIONS = ("jupyterlab-widgets", "anywidget")
#: What the kernel loads, all pure Python; without the packages that exist for it in another form or that nothing uses.
_WHEELS = (
    "anywidget", "asttokens", "comm", "executing", "ipython", "ipython-pygments-lexers", "ipywidgets", "jedi",
    "lazy-loader", "matplotlib-inline", "micropip", "packaging", "parso", "prompt-toolkit", "protobuf", "psygnal",
    "pure-eval", "pygments", "six", "stack-data", "traitlets", "tritonclient", "typing-extensions", "wcwidth",
)  # fmt: skip
_RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
_KERNEL = "@jupyterlite/pyodide-kernel-extension"
_CONSTRAINTS = ("--constraint", str(ROOT / "binder" / "constraints.txt"))


class Tools:
    """What builds JupyterLite, and the wheels of its kernel: fetched once for each version of the constraints.

    Parameters
    ----------
    directory : pathlib.Path

    Raises
    ------
    RuntimeError
        If npm or pip cannot get it.
    """

    def __init__(self, directory: Path) -> None:
        self.runtime = fetch_runtime(directory)
        pins = "\n".join((*_BUILDERS, *_EXTENSIONS, *_WHEELS, Path(_CONSTRAINTS[1]).read_text("utf-8")))
        self._environment = directory / f"lite-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"
        self._wheels = self._environment / "wheels"
        is_complete = self._environment / ".complete"
        if not is_complete.exists():
            shutil.rmtree(self._environment, ignore_errors=True)
            venv.create(self._environment, with_pip=True)
            self._pip("install", *_BUILDERS)
            self._pip("install", "--no-deps", *_EXTENSIONS)
            target = ("--platform", "any", "--python-version", "3.14", "--implementation", "py", "--abi", "none")
            only = ("--no-deps", "--only-binary", ":all:")
            self._pip("download", "--dest", str(self._wheels), *only, *target, *_WHEELS)
            is_complete.touch()

    def _pip(self, command: str, *arguments: str) -> None:
        call = [self._python, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *_CONSTRAINTS, *arguments]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode:
            problem = done.stderr.strip().splitlines()[-1:]
            raise RuntimeError(f"pip cannot get the packages of JupyterLite: {''.join(problem)}")

    @property
    def _python(self) -> str:
        return str(self._environment / ("Scripts" if os.name == "nt" else "bin") / "python")

    def write_kernel(self, directory: Path) -> list[str]:
        """Write the runtime, all wheels, and the list from which Pyodide loads them; return the packages."""
        directory.mkdir(parents=True)
        for name in _RUNTIME:
            shutil.copy(self.runtime / name, directory)
        extension = self._environment / "share" / "jupyter" / "labextensions" / _KERNEL / "static" / "pypi"
        # the last one is a stand-in for a package with the widgets' JavaScript, for the older Notebook 6
        for wheel in (*self._wheels.glob("*.whl"), *extension.glob("*.whl")):
            if not wheel.name.startswith("widgetsnbextension-3"):
                shutil.copy(wheel, directory)
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
        pure = {**os.environ, "HATCH_BUILD_NO_HOOKS": "true", "HATCH_QUIET": "1"}
        subprocess.run(build, cwd=ROOT, env=pure, check=True, capture_output=True)
        lock = json.loads((self.runtime / "pyodide-lock.json").read_text("utf-8"))
        lock["packages"] = {entry["name"]: entry for entry in map(_locked, sorted(directory.glob("*.whl")))}
        (directory / "pyodide-lock.json").write_text(json.dumps(lock), "utf-8")
        return list(lock["packages"])

    def build(self, source: Path, target: Path) -> None:
        """Build a site of JupyterLite from its configuration, notebooks and kernel."""
        call = [self._python, "-m", "jupyterlite_core", "build", "--lite-dir", str(source), "--output-dir", str(target)]
        call += ["--contents", str(source / "contents"), "--apps", "lab", "--apps", "notebooks", "--no-sourcemaps"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
        done = subprocess.run(call, cwd=source, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"JupyterLite cannot be built: {done.stdout}{done.stderr}")


def _locked(wheel: Path) -> dict[str, object]:
    """Return a wheel as an entry of Pyodide's list of packages."""
    name, version = wheel.name.split("-")[:2]
    return {
        "name": name.lower().replace("_", "-"),
        "version": version,
        "file_name": wheel.name,
        "install_dir": "site",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "package_type": "package",
        "imports": [name],
        "depends": [],  # all packages are loaded at once
        "unvendored_tests": False,
    }


def write_lite(site: Path, tools: Tools | None, outputs: bool = True) -> None:
    """Write the directory *lite* of a site.

    Parameters
    ----------
    site : pathlib.Path
    tools : Tools, optional
        Without them, the page says that the lessons are missing.
    outputs : bool, default True
        Whether cells that cannot run show their outputs, for which the lessons are executed unless they have been.
    """
    target = site.resolve() / "lite"  # JupyterLite runs in another directory
    shutil.rmtree(target, ignore_errors=True)
    if tools is not None:
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory)
            (source / "contents").mkdir()
            missing = lite_lessons.missing_names()
            for name in LESSONS:
                path = notebooks.SOURCES / f"{name}.ipynb"
                executed = notebooks.executed(path) if outputs else None
                lesson = lite_lessons.for_browser(notebooks.read(path), missing, executed)
                nbformat.write(lesson, source / "contents" / path.name)
            packages = tools.write_kernel(source / "static" / "pyodide")
            kernel = {"disablePyPIFallback": True, "loadPyodideOptions": {"packages": packages}}
            settings = {"exposeAppInBrowser": True, "litePluginSettings": {f"{_KERNEL}:kernel": kernel}}
            configuration = {"jupyter-lite-schema-version": 0, "jupyter-config-data": settings}
            (source / "jupyter-lite.json").write_text(json.dumps(configuration), "utf-8")
            tools.build(source, target)
    target.mkdir(exist_ok=True)
    (target / "lessons.html").write_text(_page(tools is not None), "utf-8")


def _page(is_built: bool) -> str:
    """Return the page from which the lessons are opened."""
    items = ""
    for name in LESSONS:
        title = notebooks.read(notebooks.SOURCES / f"{name}.ipynb").cells[0].source.splitlines()[0].lstrip("# ")
        items += f'<li><a href="notebooks/index.html?path={name}.ipynb">{html.escape(title)}</a></li>'
    text = (
        f"<p>These lessons run in this browser, without an installation and without a server:</p><ul>{items}</ul>"
        "<p>The first start takes up to a minute. What needs a server says so in its cell. Changes are kept in this "
        "browser.</p>"
        if is_built
        else "<p>This site was built without the lessons. <code>make site</code> builds them; it needs npm and pip.</p>"
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Lessons in the browser</title>'
        '<meta name="viewport" content="width=device-width"></head>'
        f'<body><h1>Lessons in the browser</h1>{text}<p><a href="../index.html">Documentation</a></p></body></html>\n'
    )


def main() -> int:
    """Write the lessons of the site named on the command line; the exit status."""
    site, tools = Path(sys.argv[1]), None
    if sys.argv[2:] == ["pyodide"]:
        try:
            tools = Tools(ROOT / "build")
        except RuntimeError as error:
            print(f"lite: left out: {error}", file=sys.stderr)
    write_lite(site, tools)
    files = [path for path in (site / "lite").rglob("*") if path.is_file()]
    print(f"lite: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
