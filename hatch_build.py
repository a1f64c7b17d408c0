"""Compiles what a request passes through, for a wheel that is asked for so: `make wheel`.

The modules are the same Python; mypyc makes C extensions of them beside their sources, which stay in
the wheel to be read. A checkout is never compiled: what is edited there runs at once. The list of
modules is in pyproject.toml; one of them may not be inherited from by a class that is not compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

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
from mypyc.build import mypycify
from setuptools import setup
setup(name="compiled", ext_modules=mypycify({sources!r}, opt_level="2", debug_level="0", multi_file=True))
"""


class CompileHook(BuildHookInterface[Any]):
    """Enabled by ``HATCH_BUILD_HOOK_ENABLE_CUSTOM=true``, as any hook that is off by default."""

    def dependencies(self) -> list[str]:
        """What building needs beyond hatchling."""
        return ["mypy[mypyc]>=1.15"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile a copy of the package and add what came out to the wheel."""
        if version == "editable":
            return
        self._scratch = TemporaryDirectory(prefix="tritonnb-")
        scratch = Path(self._scratch.name)
        shutil.copytree(Path(self.root) / "tritonnb", scratch / "tritonnb")
        (scratch / "setup.py").write_text(_SETUP.format(sources=[*_OPTIONS, *self.config["modules"]]))
        command = [
            sys.executable,
            "setup.py",
            "--quiet",
            "build_ext",
            "--build-lib=compiled",
            f"--parallel={os.cpu_count()}",
        ]
        subprocess.run(command, cwd=scratch, check=True)
        for extension in (scratch / "compiled").rglob("*.so"):
            build_data["force_include"][str(extension)] = str(extension.relative_to(scratch / "compiled"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing behind."""
        if version != "editable":
            self._scratch.cleanup()
