"""The search of the site finds pages for users: `make docs` checks the whole site in the same way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.sitegen import error_messages, search

ROOT = Path(__file__).parents[2]
CONF = """
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
html_theme = "basic"
html_search_scorer = {scorer!r}
"""
TEXTS = [text for messages in error_messages.MESSAGES.values() for text in messages]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The glossary and the error messages, and pages of other kinds with all of their words in their titles."""
    source: Path = tmp_path_factory.mktemp("docs")
    glossary = (ROOT / "docs/glossary.md").read_text("utf-8")
    rivals = "\n".join(f"## {text}\n" for text in (*TEXTS, *search.TERMS))
    pages = {
        "index": "# Start\n",
        "glossary": glossary,
        "generated/error-messages": error_messages.error_messages_page(),
        **{page: f"# {page}\n\n{rivals}" for page in ("decisions/0001-first", "decisions/0002-second", "changelog")},
    }
    for page, text in pages.items():
        (source / page).parent.mkdir(exist_ok=True)
        (source / f"{page}.md").write_text(text, "utf-8")
    (source / "conf.py").write_text(CONF.format(scorer=str(ROOT / "docs/search_scorer.js")))
    subprocess.run([sys.executable, "-m", "sphinx", "-qQ", source, source / "site"], check=True)
    return source / "site"


def test_error_message_and_term_find_a_page_for_users_first(node: str, site: Path) -> None:
    queries = search.queries()
    found = dict(zip(queries, search.find_pages(node, site, queries), strict=True))
    expected = queries | dict.fromkeys(search.TERMS, "glossary")
    assert {text: pages[0] for text, pages in found.items()} == expected
    assert found["Exceeds maximum queue size"][-2:] == ["decisions/0001-first", "decisions/0002-second"]


@pytest.mark.parametrize(
    "query",
    [
        "[request id: 7] inference request batch-size must be <= 8 for 'dense'",
        "unexpected shape for input 'IN' for model 'dense'. Expected [-1,2048], got [1,2047].",
        "expected number of inputs",
        "Request for unknown model",
        "Exceeds maximum queue size",
    ],
)
def test_message_as_users_copy_it_finds_its_page_first(node: str, site: Path, query: str) -> None:
    ((first, *_),) = search.find_pages(node, site, [query])
    assert first == "generated/error-messages"


def test_quoted_words_alone_are_searched(node: str, site: Path) -> None:
    ((first, *_),) = search.find_pages(node, site, ["'instance group'"])
    assert first == "glossary"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Request for unknown model: '…' is not found", 404),
        ("Exceeds maximum queue size", 503),
        ("unexpected inference input '…' for model '…'", 400),
        ("This protocol is restricted, expecting header '…'", 503),  # the status is an argument of the exception
    ],
)
def test_status_of_a_message_is_that_of_the_code(text: str, status: int) -> None:
    found = error_messages.status_of(text)
    assert found is not None
    assert found.http == status


def test_message_that_the_code_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a text of the code"):
        error_messages.status_of("Request for an unknown text")
