"""Compiles what a request passes through, and the shim for C++ backends, where there is a C compiler.

The modules are the same Python; mypyc makes C extensions of them beside their sources, which stay to be
read. A wheel gets them when it is built; `python hatch_build.py` makes them in a checkout, and a wheel of that
checkout has the same ones. The list of modules is in pyproject.toml; one of them may not be inherited from by a class
that is not compiled.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from tempfile import TemporaryDirectory

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent

# Types of other packages count as unknown, so that what is compiled does not depend on what is installed; a class
# that inherits from one of theirs cannot be compiled then, and mypyc has to say so.
_OPTIONS = (
    "--config-file=",
    "--no-site-packages",
    "--ignore-missing-imports",
    "--follow-imports=silent",
    "--disallow-subclassing-any",
)
_SETUP = """
import sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import setup
from distutils.ccompiler import CCompiler  # setuptools'

compile_one_after_the_other = CCompiler.compile

def compile_in_parallel(self, sources, *arguments, **options):
    with ThreadPoolExecutor({processes}) as pool:
        compiled = pool.map(lambda source: compile_one_after_the_other(self, [source], *arguments, **options), sources)
        return [file for files in compiled for file in files]

CCompiler.compile = compile_in_parallel
options = {{"opt_level": "2", "debug_level": "0", "multi_file": True, "group_name": {group!r}}}
extensions = mypycify({options!r} + {modules!r}, **options)
for extension in extensions:
    extension.include_dirs.append("build/tritonnb")  # where mypyc writes the headers of a group in a package
setup(name="compiled", ext_modules=extensions)
"""
# The library that holds the code of all modules: `tritonnb/compiled__mypyc.*.so`, so that it is part of the package.
_GROUP = "tritonnb.compiled"
_WITHOUT = "tritonnb was not compiled (is there a C compiler, with Python's headers?): it is interpreted, and slower"


class CompileHook(BuildHookInterface[object]):
    """A hook that puts the compiled modules into a wheel; ``HATCH_BUILD_NO_HOOKS=true`` leaves them out."""

    def dependencies(self) -> list[str]:
        """The build dependencies beyond hatchling."""
        return ["mypy[mypyc]>=2.4"]

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        """Compile a copy of the package and add what came out to the wheel."""
        self._scratch = TemporaryDirectory(prefix="tritonnb-")
        if version == "editable":
            return
        scratch = Path(self._scratch.name)
        compiled = compile_all(scratch, self.config["modules"], copy_compiled(scratch, self.config["modules"]))
        if not compiled:
            return
        for extension in compiled:
            build_data["force_include"][str(scratch / extension)] = str(extension)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, object], artifact_path: str) -> None:
        """Leave nothing behind."""
        self._scratch.cleanup()


def compile_all(scratch: Path, modules: Sequence[str], compiled: Sequence[Path] = ()) -> list[Path]:
    """Compile the modules, and at the same time the shim; what cannot be compiled is reported on stderr.

    Parameters
    ----------
    scratch : pathlib.Path
        An empty directory.
    modules : sequence of str
        Paths in the checkout.
    compiled : sequence of pathlib.Path, optional
        The extension modules, if ``scratch`` has them already.

    Returns
    -------
    list of pathlib.Path
        The files that were created, relative to ``scratch``.
    """
    with ThreadPoolExecutor(1) as executor:
        shim = executor.submit(compile_shim, scratch)
        extensions = list(compiled) or compile_in(scratch, modules)
        if not extensions:
            print(_WITHOUT, file=sys.stderr)
        return extensions + shim.result()


def copy_compiled(scratch: Path, modules: Sequence[str]) -> list[Path]:
    """Copy what this checkout was compiled to.

    Parameters
    ----------
    scratch : pathlib.Path
        The directory to copy to.
    modules : sequence of str
        Paths in the checkout.

    Returns
    -------
    list of pathlib.Path
        The extension modules, relative to ``scratch``; none if one is missing, or older than what it was made of.
    """
    suffix = EXTENSION_SUFFIXES[0]
    extensions = [Path(module).with_suffix(suffix) for module in modules]
    extensions.append(Path(f"{_GROUP.replace('.', '/')}__mypyc{suffix}"))
    sources = [*modules, "pyproject.toml", "hatch_build.py"]
    changed_ns = max((ROOT / source).stat().st_mtime_ns for source in sources)
    for extension in extensions:
        compiled = ROOT / extension
        if not compiled.is_file() or compiled.stat().st_mtime_ns < changed_ns:
            return []
    for extension in extensions:
        (scratch / extension).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / extension, scratch / extension)
    return extensions


def compile_in(scratch: Path, modules: Sequence[str]) -> list[Path]:
    """Compile a copy of the package.

    Parameters
    ----------
    scratch : pathlib.Path
        An empty directory.
    modules : sequence of str
        Paths in the checkout.

    Returns
    -------
    list of pathlib.Path
        The extension modules, relative to ``scratch``; none if it did not work, and why is on stderr.
    """
    copy = scratch / "copy"
    shutil.copytree(ROOT / "tritonnb", copy / "tritonnb", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    script = _SETUP.format(
        options=[*_OPTIONS],
        modules=[*modules],
        processes=os.cpu_count(),
        group=_GROUP,
    )
    (copy / "setup.py").write_text(script)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", f"--build-lib={scratch}"]
    process = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    if process.returncode:
        output = process.stdout + process.stderr
        # Warnings are about the sources, and of no use to those who install them.
        print("\n".join(line for line in output.splitlines() if ": warning: " not in line), file=sys.stderr)
        return []
    shutil.rmtree(copy)
    return [extension.relative_to(scratch) for extension in scratch.rglob(f"*{EXTENSION_SUFFIXES[0]}")]


def compile_shim(scratch: Path) -> list[Path]:
    """Compile the shim for C++ backends.

    Returns
    -------
    list of pathlib.Path
        The library, relative to ``scratch``; none if it did not work, and why is on stderr.
    """
    native = Path("tritonnb", "backends", "native")
    spec = importlib.util.spec_from_file_location("native_build", ROOT / native / "build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    library = native / build.SHIM
    try:
        build.compile_shim(scratch / library)
    except build.CompileError as error:
        print(f"C++ backends cannot be loaded: {error}", file=sys.stderr)
        return []
    return [library]


def compile_checkout() -> None:
    """Compile this checkout, or leave it interpreted and say so."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    modules = config["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    begin_ns = time.time_ns()  # a source that is edited meanwhile is newer
    with TemporaryDirectory(prefix="tritonnb-") as scratch:
        compiled = compile_all(Path(scratch), modules)
        for outdated in ROOT.glob("tritonnb/**/*.so"):
            outdated.unlink()
        for extension in compiled:
            shutil.copyfile(Path(scratch) / extension, ROOT / extension)
            os.utime(ROOT / extension, ns=(begin_ns, begin_ns))


if __name__ == "__main__":
    compile_checkout()
