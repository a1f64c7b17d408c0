"""Signs of translated English that a machine finds: the rest of `docs/style.md` is for reviewers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonnb.backends.python import pb_utils

ROOT = Path(__file__).parents[2]
FOLDERS = ["tritonnb", "tools", "benchmarks", "docs", "notebooks", "model_repository", "tests"]
SUFFIXES = {".py", ".md", ".ipynb", ".js", ".cc", ".h", ".css"}
#: Recorded, generated, or downloaded.
EXCLUDED = ("tests/models/", "docs/generated/", "docs/figures/", "docs/style.md", "tests/project/test_style.py")
CLAUSE = re.compile(r"(What|Which|Where|Who|Whom|Whose|How|Whether|When|Why)\b")


def files(suffixes: set[str]) -> list[Path]:
    """The files of the repository with one of the suffixes, generated ones excluded."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    found += [path for path in ROOT.iterdir() if path.suffix in suffixes]
    return sorted(path for path in found if not path.relative_to(ROOT).as_posix().startswith(EXCLUDED))


def clauses(path: Path) -> Iterator[str]:
    """The summaries of a file's docstrings that are clauses."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            if CLAUSE.match(summary):
                yield summary


def test_summaries_are_noun_phrases_or_verb_phrases() -> None:
    found = {str(path.relative_to(ROOT)): list(clauses(path)) for path in files({".py"})}
    assert {name: summaries for name, summaries in found.items() if summaries} == {}


@pytest.mark.parametrize(
    "sign",
    [
        # "a thread of its own" is "its own thread" or "a dedicated thread".
        pytest.param(r"\bof (its|their) own\b", id="of its own"),
        # "also if" is "even if". In English, "also" stands before a verb, an adjective or a noun, not before these.
        pytest.param(
            r"\balso (if|when|while|during|after|across|without|with|those|then|by|from|for|to|on|where)\b",
            id="also as even",
        ),
    ],
)
def test_no_text_has_a_sign_of_translation(sign: str) -> None:
    pattern = re.compile(sign.replace(" ", r"\s+"), re.IGNORECASE)
    found = {str(path.relative_to(ROOT)): pattern.search(path.read_text("utf-8")) for path in files(SUFFIXES)}
    assert {name: match[0] for name, match in found.items() if match} == {}


@pytest.mark.parametrize(
    ("summary", "is_clause"),
    [
        ("What a view shows.", True),
        ("Whether the model is ready.", True),
        ("Return whether the model is ready.", False),
        ("The time at which a request arrived.", False),
    ],
)
def test_summary_that_begins_with_a_question_word_is_a_clause(tmp_path: Path, summary: str, is_clause: bool) -> None:
    (tmp_path / "module.py").write_text(f'def function():\n    """{summary}"""\n')
    assert bool(list(clauses(tmp_path / "module.py"))) == is_clause


def test_class_name_is_unique_in_the_package() -> None:
    """HTTP and gRPC mirror each other, and the interface of a Python model has Triton's names."""
    modules: dict[str, set[str]] = {}
    for path in (ROOT / "tritonnb").rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not hasattr(pb_utils, node.name):
                mirrored = path.relative_to(ROOT).as_posix().replace("/grpc/", "/http/")
                modules.setdefault(node.name, set()).add(mirrored)
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}
