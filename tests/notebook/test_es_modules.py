"""The JavaScript of the widgets: real ES modules, and the one module that a widget gets."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tritonnb.notebook import batch_view
from tritonnb.notebook.widget_files import join_modules

STATIC = Path(batch_view.__file__).parent / "static"
MODULES = sorted(STATIC.rglob("*.js"))
IMPORT = re.compile(r'^import \{ ([^}]*) \} from "\.\.?/[\w./]+";\n', re.MULTILINE)


@pytest.fixture(scope="module")
def node() -> str:
    program = shutil.which("node")
    if program is None:
        pytest.skip("needs Node.js: apt-get install nodejs")
    return program


def load(node: str, directory: Path, file: str) -> str:
    """Import a module in Node.js; return the names that it exports, or the error."""
    (directory / "package.json").write_text('{"type": "module"}')
    code = f"import('./{file}').then((module) => console.log(Object.keys(module).sort().join(' ')))"
    result = subprocess.run([node, "-e", code], cwd=directory, capture_output=True, text=True, check=False)
    return result.stdout.strip() or result.stderr


def name_of(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
@pytest.mark.slow
def test_module_can_be_imported_by_itself(node: str, tmp_path: Path, path: Path) -> None:
    shutil.copytree(STATIC, tmp_path, dirs_exist_ok=True)
    assert set(load(node, tmp_path, name_of(path)).split()) == exports(path)


def exports(path: Path) -> set[str]:
    source = path.read_text()
    names = {
        name.strip() for match in re.findall(r"^export \{([^}]*)\};", source, re.MULTILINE) for name in match.split(",")
    }
    return names | ({"default"} if re.search(r"^export default ", source, re.MULTILINE) else set())


@pytest.mark.parametrize("entry", sorted(STATIC.glob("*/view.js")), ids=name_of)
def test_joined_module_has_the_exports_of_its_entry(node: str, tmp_path: Path, entry: Path) -> None:
    (tmp_path / "joined.js").write_text(join_modules(entry))
    assert set(load(node, tmp_path, "joined.js").split()) == exports(entry)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_uses_what_it_imports_and_has_short_lines(path: Path) -> None:
    source = path.read_text()
    body = IMPORT.sub("", source)
    imported = [name for names in IMPORT.findall(source) for name in names.split(", ")]
    assert [name for name in imported if not re.search(rf"\b{name}\b", body)] == []
    assert [line for line in source.splitlines() if len(line) > 120] == []


def test_modules_are_joined_after_those_that_they_import(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("const a = 1;\nexport { a };\n")
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\nconst b = a;\nexport { b };\n')
    (tmp_path / "c.js").write_text('import { a } from "./a.js";\nimport { b } from "./b.js";\nexport { a, b };\n')
    assert join_modules(tmp_path / "c.js") == "const a = 1;\n\nconst b = a;\n\nexport { a, b };\n"


def test_unsupported_form_of_import_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text('import * as b from "./b.js";\n')
    with pytest.raises(ValueError, match=r"a\.js: expected 'import \{ names \} from .*, got 'import \* as b"):
        join_modules(tmp_path / "a.js")
