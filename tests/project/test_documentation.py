"""The checks of the documentation build find what they look for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

import tritonnb
from docs.sitegen import links, public_names, reference
from tritonnb.cli.main import make_parser

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site of two pages without a mistake."""
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "style.css").write_text("body { color: black; }")
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="_static/style.css"><a href="other.html#end">other</a>'
        '<a href="https://example.org/elsewhere">a link to elsewhere is followed by the reader, not by the page</a>'
    )
    (tmp_path / "other.html").write_text('<h1 id="end">End</h1><a href="#end">end</a><a href="index.html">start</a>')
    return tmp_path


def test_site_without_mistakes_has_no_problems(site: Path) -> None:
    assert links.site_problems(site) == []


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="missing.html">x</a>', "expected a file for the link, got missing.html"),
        ('<a href="other.html#start">x</a>', "expected an anchor for the link, got other.html#start"),
        ('<a href="#top">x</a>', "expected an anchor for the link, got #top"),
        ('<img src="plot.svg">', "expected a file for the link, got plot.svg"),
        ('<script src="https://cdn.example.org/a.js"></script>',
         "expected every file to be part of the site, got https://cdn.example.org/a.js"),
        ('<link rel="stylesheet" href="//fonts.example.org/a.css">',
         "expected every file to be part of the site, got //fonts.example.org/a.css"),
    ],
)  # fmt: skip
def test_site_mistake_is_reported_as_problem(site: Path, html: str, problem: str) -> None:
    (site / "index.html").write_text(html)
    assert links.site_problems(site) == [f"index.html: {problem}"]


@pytest.mark.parametrize("rule", ["@import 'a.css';", "a { background: url( https://example.org/a.png) }"])
def test_style_sheet_that_loads_from_elsewhere_is_a_problem(site: Path, rule: str) -> None:
    (site / "_static" / "style.css").write_text(rule)
    assert links.site_problems(site) == ["_static/style.css: expected a style sheet without external references"]


def test_every_public_name_is_documented_and_on_the_page() -> None:
    assert public_names.undocumented() == []
    page = reference.api_page()
    assert [name for name in dir(tritonnb) if name != "__version__" and f"tritonnb.{name}" not in page] == []


def test_classes_that_public_methods_return_are_found() -> None:
    names = {item.__name__ for item in public_names.returned_classes()}
    assert {"ModelHandle", "ConfigHandle", "Trial"} <= names  # of a method, of a property of that class, in a list


def test_every_flag_is_in_the_command_line_reference() -> None:
    (commands,) = (action.choices for action in make_parser()._actions if action.dest == "command")
    flags = commands["serve"]._option_string_actions  # type: ignore[index]
    page = reference.command_line_page()
    assert "--model-repository" in flags
    assert [flag for flag in flags if flag.startswith("--") and flag != "--help" and f"`{flag}`" not in page] == []


def test_installation_page_names_every_optional_extra() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/install.md").read_text("utf-8").partition("## Optional")[2], re.M)
    named = {extra for row in rows for extra in re.findall(r"`(\w+)`", row)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert named == set(project["optional-dependencies"])


@pytest.mark.parametrize(
    "term", ["dynamic batcher", "queue delay", "correlation ID", "instance group", "`sequence_id`"]
)
def test_glossary_has_tritons_term_for_the_search_of_the_site(term: str) -> None:
    assert f"\n{term}\n" in (ROOT / "docs/glossary.md").read_text("utf-8")


def test_version_is_written_once() -> None:
    assert "version" not in (ROOT / "CITATION.cff").read_text().replace("cff-version", "")
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in pyproject
    assert f'"{tritonnb.__version__}"' not in pyproject


def test_changelog_has_a_section_for_each_release_and_none_for_a_version_in_development() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    released = [Version(heading.removeprefix("[").partition("] - ")[0]) for heading in headings[1:]]
    assert released == sorted(set(released), reverse=True)
    version = Version(tritonnb.__version__)
    assert all(earlier < version for earlier in released) if version.is_devrelease else released[0] == version
