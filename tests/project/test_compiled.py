"""Compiled modules behave as their sources, and never run instead of edited ones."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from abc import ABCMeta
from pathlib import Path

import pytest

from tritonnb import compiled

ROOT = Path(__file__).parents[2]
_WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
MODULES = _WHEEL["hooks"]["custom"]["modules"]


def copied(directory: Path) -> dict[str, str]:
    """A copy of the package as a checkout has it, and the environment in which it is imported."""
    directory.mkdir()
    shutil.copytree(ROOT / "tritonnb", directory / "tritonnb", ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "model_repository").symlink_to(ROOT / "model_repository")
    shutil.copy2(ROOT / "hatch_build.py", directory)
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}


def state(environment: dict[str, str]) -> str:
    program = "import tritonnb.compiled as c; from tritonnb.core import messages as m; print(c.STATE, m.__file__[-3:])"
    return subprocess.check_output([sys.executable, "-c", program], text=True, env=environment).strip()


@pytest.mark.skipif(compiled.STATE != "compiled", reason="nothing was compiled (make compile)")
def test_edited_module_runs_interpreted(tmp_path: Path) -> None:
    environment = copied(tmp_path / "checkout")
    assert state(environment) == "compiled .so"
    (tmp_path / "checkout" / "tritonnb" / "scheduling" / "queue.py").touch()
    assert state(environment) == "interpreted, since it was edited after it was compiled .py"


@pytest.mark.skipif(compiled.STATE != "compiled", reason="nothing was compiled (make compile)")
def test_wheel_includes_compiled_modules_unless_a_source_has_changed(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    copied(checkout)
    shutil.copy2(ROOT / "pyproject.toml", checkout)
    program = """
from pathlib import Path
from hatch_build import copy_compiled
print(len(copy_compiled(Path("scratch"), ["tritonnb/scheduling/queue.py"])))
Path("tritonnb/scheduling/queue.py").touch()
print(len(copy_compiled(Path("scratch"), ["tritonnb/scheduling/queue.py"])))
"""
    printed = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=checkout)
    assert printed.split() == ["2", "0"]  # the module, and what all modules share


def test_documentation_imports_the_sources(tmp_path: Path) -> None:
    """mypyc leaves docstrings out."""
    environment = copied(tmp_path / "checkout")
    program = """
from tritonnb import compiled
compiled.interpret()
from tritonnb.core import messages
print(messages.__file__[-3:], messages.Tensor.copy.__doc__ is not None)
"""
    printed = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)
    assert printed.split() == [".py", "True"]


def test_compiled_classes_do_not_derive_from_abc() -> None:
    """Compiled, all such classes would be one another's instances, and weak references to them would outlive them."""
    for path in MODULES:
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        own = [member for member in vars(module).values() if getattr(member, "__module__", "") == module.__name__]
        assert not [member for member in own if type(member) is ABCMeta]


#: mypyc puts an underscore before the name of an attribute: these are keywords of C compilers then.
KEYWORDS = {
    "_asm",
    "_attribute",
    "_complex",
    "_const",
    "_inline",
    "_label",
    "_restrict",
    "_signed",
    "_thread",
    "_typeof",
}
ATTRIBUTE = re.compile(r"\bself\.(\w+)(?::[^=\n]*)? = |^    (\w+): ", flags=re.MULTILINE)


def test_no_attribute_of_a_compiled_class_is_a_keyword_of_c() -> None:
    assigned = [(path, {*names}) for path in MODULES for names in ATTRIBUTE.findall((ROOT / path).read_text())]
    assert [(path, names) for path, names in assigned if names & KEYWORDS] == []
