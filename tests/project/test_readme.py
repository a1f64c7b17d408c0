"""The README promises what a clone has today: links lead to files, and nothing comes from an index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tritonnb.core.version import TRITON_CONTAINER, TRITON_VERSION

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
README = PAGES[0].read_text("utf-8")
LINK = re.compile(r'\]\(([^)\s]+)\)|\bsrc="([^"]+)"')
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
TODAY, _ = README.split("## After the first release", maxsplit=1)


def links(page: Path) -> set[str]:
    text = CODE.sub("", page.read_text("utf-8"))
    return {first or second for first, second in LINK.findall(text)}


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_relative_links_have_a_target(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link:
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_readme_links_stay_within_the_tree() -> None:
    assert [link for link in links(PAGES[0]) if "://" in link] == []


def test_nothing_is_installed_from_an_index_before_the_first_release() -> None:
    assert re.findall(r"pip install \"?tritonnb.*", TODAY) == []
    assert "its name is not registered in any package index" in TODAY
    pages = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs").glob("[!d]*/*.md"),
        *(ROOT / "notebooks").glob("*.ipynb"),
        *(ROOT / "binder").iterdir(),
    ]
    installs = {
        page.name: re.findall(r"pip\d? install [^`\n]*\btritonnb\b.*", page.read_text("utf-8")) for page in pages
    }
    assert {name: lines for name, lines in installs.items() if lines} == {}
    guides = " ".join((ROOT / "docs" / "how-to" / "index.md").read_text("utf-8").split())
    assert "the name is not registered in any package index yet" in guides


def test_pages_name_the_release_of_triton_that_the_server_follows() -> None:
    version = TRITON_VERSION.rpartition(".")[0]
    for page in ("docs/how-to/move-to-triton.md", "docs/deviations.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text("utf-8")
        assert set(re.findall(r"(?:tritonserver:|release )(\d\d\.\d\d)", text)) == {TRITON_CONTAINER}
        assert set(re.findall(r"(\d\.\d+)\)? ?\(?,? ?(?:release|which this server)", text)) <= {version}


def test_first_example_runs_and_does_not_wait_for_the_import_of_matplotlib() -> None:
    example = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)[0]
    program = f"{example}\nimport sys\nassert 'matplotlib' not in sys.modules"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("1 request, 1 row: the oldest had waited ")


def test_every_lesson_is_listed() -> None:
    assert [link for link in re.findall(r"notebooks/(\w+)\.ipynb", TODAY) if "_" in link] == [
        path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    ]


def test_every_extra_is_explained() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    rows = [line for line in README.partition("\n## Extras")[2].partition("\n## ")[0].splitlines() if "|" in line]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == extras.keys()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([\w-]+)`", README))))
def test_documented_commands_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)


def test_rows_of_tables_are_short() -> None:
    rows = [re.sub(r"\]\([^)]+\)", "]", line) for line in README.splitlines() if line.startswith("|")]
    assert [row for row in rows if len(row) > 120] == []
