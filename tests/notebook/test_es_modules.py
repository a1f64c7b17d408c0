"""The JavaScript of the widgets: real ES modules, and the one module that a widget gets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tritonnb.notebook import batch_view
from tritonnb.notebook.widget_files import join_modules

STATIC = Path(batch_view.__file__).parent / "static"
MODULES = sorted(STATIC.rglob("*.js"))
ENTRIES = sorted(STATIC.glob("*/view.js"))
#: Each in its own worker, which has loaded no other module.
IMPORT_EACH = """
import { resolve } from "node:path";
import { Worker } from "node:worker_threads";
const source = `const { parentPort, workerData } = require("node:worker_threads");
import(workerData).then(Object.keys, (error) => [String(error.stack)]).then((names) => parentPort.postMessage(names))`;
const exported = {};
for (const file of process.argv.slice(1)) {
  const worker = new Worker(source, { eval: true, execArgv: [], workerData: resolve(file) });
  exported[file] = await new Promise((done, fail) => worker.once("message", done).once("error", fail));
  await worker.terminate();
}
console.log(JSON.stringify(exported));
"""
IMPORT = re.compile(r'^import \{ ([^}]*) \} from "\.\.?/[\w./]+";\n', re.MULTILINE)


def name_of(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


def joined(entry: Path) -> str:
    return f"joined-{entry.parent.name}.js"


@pytest.fixture(scope="module")
def exported(node: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The names that each module exports, and each joined module, or the error of its import."""
    directory = tmp_path_factory.mktemp("modules")
    shutil.copytree(STATIC, directory, dirs_exist_ok=True)
    (directory / "package.json").write_text('{"type": "module"}')
    for entry in ENTRIES:
        (directory / joined(entry)).write_text(join_modules(entry))
    files = [*map(name_of, MODULES), *map(joined, ENTRIES)]
    command = [node, "--input-type=module", "-e", IMPORT_EACH, *files]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    names: dict[str, list[str]] = json.loads(result.stdout)
    return names


@pytest.mark.parametrize("path", MODULES, ids=name_of)
@pytest.mark.slow
def test_module_can_be_imported_by_itself(exported: dict[str, list[str]], path: Path) -> None:
    assert set(exported[name_of(path)]) == exports(path)


def exports(path: Path) -> set[str]:
    source = path.read_text()
    names = {
        name.strip() for match in re.findall(r"^export \{([^}]*)\};", source, re.MULTILINE) for name in match.split(",")
    }
    return names | ({"default"} if re.search(r"^export default ", source, re.MULTILINE) else set())


@pytest.mark.parametrize("entry", ENTRIES, ids=name_of)
def test_joined_module_has_the_exports_of_its_entry(exported: dict[str, list[str]], entry: Path) -> None:
    assert set(exported[joined(entry)]) == exports(entry)


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
