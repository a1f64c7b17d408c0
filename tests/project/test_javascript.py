"""`make check-javascript` checks every module that a browser runs, and what it installs is fixed."""

from __future__ import annotations

import json
import re
from glob import glob
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools" / "javascript"
CONFIG = json.loads((TOOLS / "tsconfig.json").read_text("utf-8"))
#: Modules of the wheel, and of the playground.
MODULES = sorted(
    path
    for directory in ("tritonnb", "docs/playground")
    for suffix in ("js", "mjs", "cjs", "ts")
    for path in (ROOT / directory).rglob(f"*.{suffix}")
)
#: Comments that exclude a file or a line from a check.
EXCLUSION = re.compile(r"@ts-(?:nocheck|ignore|expect-error)|eslint-disable")


def uncovered(modules: list[Path], config: dict[str, object], directory: Path) -> list[str]:
    """Return the modules that the globs of a configuration in a directory do not include, or exclude."""
    assert isinstance(config["include"], list)
    included = {
        (directory / name).resolve()
        for pattern in config["include"]
        for name in glob(pattern, root_dir=directory, recursive=True)
    }
    assert not {"files", "exclude", "extends"} & config.keys(), "expected that `include` alone selects the files"
    return [str(path) for path in modules if path.resolve() not in included]


def test_types_of_every_module_are_checked() -> None:
    assert len(MODULES) > 60
    assert uncovered(MODULES, CONFIG, TOOLS) == []
    assert CONFIG["compilerOptions"]["checkJs"]
    assert CONFIG["compilerOptions"]["strict"]


@pytest.mark.parametrize("name", ["new.js", "widget/view.mjs", "view.ts"])
def test_module_that_no_glob_includes_is_found(tmp_path: Path, name: str) -> None:
    module = tmp_path / "static" / name
    module.parent.mkdir(parents=True)
    module.touch()
    (tmp_path / "static" / "known.js").touch()
    config: dict[str, object] = {"include": ["static/k*.js"]}
    assert uncovered([tmp_path / "static" / "known.js", module], config, tmp_path) == [str(module)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_module_excludes_nothing_from_the_checks(path: Path) -> None:
    assert EXCLUSION.findall(path.read_text("utf-8")) == []


def test_installed_packages_are_exact_and_have_no_address() -> None:
    package = json.loads((TOOLS / "package.json").read_text("utf-8"))
    lock = json.loads((TOOLS / "package-lock.json").read_text("utf-8"))
    assert package["private"] is True
    assert "dependencies" not in package
    assert [name for name, version in package["devDependencies"].items() if not re.fullmatch(r"[\d.]+", version)] == []
    assert lock["packages"].pop("")["devDependencies"] == package["devDependencies"]
    assert [name for name, entry in lock["packages"].items() if "resolved" in entry or "integrity" not in entry] == []
