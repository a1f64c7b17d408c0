"""Edits of *config.pbtxt* change the edited fields and nothing else."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from tests.model_config.test_laws import messages
from tritonnb.model_config.diff import changed_fields
from tritonnb.model_config.parse import ParsedConfig, parse_text
from tritonnb.model_config.text_edit import edit_text
from tritonnb.model_config.tokens import Tokenizer, TokenKind

CORPUS = [
    case["config_pbtxt"]
    for case in json.loads((Path(__file__).parent / "corpus.json").read_text())
    if case["verdict"] == "loads" and case.get("config_pbtxt")
]


def tokens(text: str) -> list[Any]:
    tokenizer, result = Tokenizer(text.encode()), []
    while (token := tokenizer.next()).kind is not TokenKind.END:
        result.append(token)
    return result


def comments(text: str) -> Counter[str]:
    raw, at, result = text.encode(), 0, []
    for start, end in [*((token.start, token.end) for token in tokens(text)), (len(raw), 0)]:
        result += re.findall(r"#[^\n]*", raw[at:start].decode())
        at = end
    return Counter(result)


@st.composite
def commented(draw: st.DrawFn) -> str:
    """A configuration of the corpus with comments between some of its tokens."""
    text = draw(st.sampled_from(CORPUS))
    for number, token in reversed(list(enumerate(tokens(text)))):
        if draw(st.integers(0, 9)) == 0:
            raw = text.encode()
            text = (raw[: token.start] + f"# why {number}\n".encode() + raw[token.start :]).decode()
    return text


def edit_delay(config: Any, number: int) -> None:
    config.dynamic_batching.max_queue_delay_microseconds = number


def edit_preferred(config: Any, number: int) -> None:
    config.dynamic_batching.preferred_batch_size[:] = range(1, 1 + number % 5)


def edit_batch_size(config: Any, number: int) -> None:
    config.max_batch_size = number


def edit_instances(config: Any, number: int) -> None:
    if not config.instance_group:
        config.instance_group.add()
    config.instance_group[0].count = number


def edit_policy(config: Any, number: int) -> None:
    config.dynamic_batching.priority_queue_policy[number % 3].max_queue_size = number


def edit_versions(config: Any, number: int) -> None:
    config.version_policy.specific.versions[:] = [number, number + 1]


def edit_strategy(config: Any, number: int) -> None:
    config.sequence_batching.oldest.max_candidate_sequences = number


def edit_away(config: Any, number: int) -> None:
    config.ClearField(("dynamic_batching", "sequence_batching", "version_policy", "instance_group")[number % 4])


FORM_EDITS = st.sampled_from(
    [edit_delay, edit_preferred, edit_batch_size, edit_instances, edit_policy, edit_versions, edit_strategy, edit_away]
)


def copy_of(config: Any) -> Any:
    copy = pb.ModelConfig()
    copy.CopyFrom(config)
    return copy


def without(parsed: ParsedConfig, text: str, fields: set[str]) -> list[str]:
    """The top-level statements of a configuration, but for some fields."""
    raw = text.encode()
    return [
        raw[statement.start : statement.end].decode()
        for statement in parsed.written.statements
        if statement.name not in fields
    ]


@pytest.mark.slow
@given(commented(), st.lists(st.tuples(FORM_EDITS, st.integers(1, 999)), min_size=1, max_size=3))
def test_form_edit_changes_its_field_and_keeps_comments_and_order(
    text: str, edits: list[tuple[Callable[[pb.ModelConfig, int], object], int]]
) -> None:
    for edit, number in edits:
        before = parse_text(text)
        target = copy_of(before.config)
        edit(target, number)
        edited = edit_text(text, target)
        after = parse_text(edited)
        assert after.config == target
        assert comments(edited) == comments(text)
        fields = changed_fields(before.config, target)
        assert without(after, edited, fields) == without(before, text, fields)
        text = edited


@pytest.mark.slow
@given(commented(), messages())
def test_every_text_can_be_edited_to_every_configuration(text: str, config: pb.ModelConfig) -> None:
    edited = edit_text(text, config)
    assert parse_text(edited).config == config
    assert comments(edited) == comments(text)


@pytest.mark.slow
@given(commented())
def test_up_to_date_text_is_unchanged(text: str) -> None:
    assert edit_text(text, parse_text(text).config) == text


TEXT = """\
# Digits.
max_batch_size: 64   # rows
instance_group [
  { kind: KIND_CPU count: 1 },  # first
  { kind: KIND_CPU count: 2 }
]
dynamic_batching {
  # Powers of two.
  preferred_batch_size: [ 4, 8 ]

  default_priority_level: 2 priority_levels: 2
}
parameters { key: "threads" value { string_value: "1" } }
"""


def changed(change: Any) -> str:
    """The lines of TEXT that an edit changes, before and after."""
    config = parse_text(TEXT).config
    change(config)
    before, after = TEXT.splitlines(), edit_text(TEXT, config).splitlines()
    return "\n".join(
        [*(f"-{line}" for line in before if line not in after), *(f"+{line}" for line in after if line not in before)]
    )


def set_to(path: str, value: Any) -> Any:
    def change(config: Any) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            config = getattr(config, parent)
        setattr(config, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (set_to("max_batch_size", 8), "-max_batch_size: 64   # rows\n+max_batch_size: 8   # rows"),
        (set_to("dynamic_batching.max_queue_delay_microseconds", 100), "+  max_queue_delay_microseconds: 100"),
        (
            lambda config: config.dynamic_batching.preferred_batch_size.append(16),
            "-  preferred_batch_size: [ 4, 8 ]\n+  preferred_batch_size: [ 4, 8, 16 ]",
        ),
        (
            lambda config: config.dynamic_batching.preferred_batch_size.remove(4),
            "-  preferred_batch_size: [ 4, 8 ]\n+  preferred_batch_size: [ 8 ]",
        ),
        (
            lambda config: config.dynamic_batching.ClearField("preferred_batch_size"),
            "-  preferred_batch_size: [ 4, 8 ]",
        ),
        (
            lambda config: config.instance_group.add(count=3),
            "-  { kind: KIND_CPU count: 2 }\n+  { kind: KIND_CPU count: 2 },\n+  { count: 3 }",
        ),
        (set_to("version_policy.latest.num_versions", 2), "+version_policy { latest { num_versions: 2 } }"),
        (
            lambda config: config.parameters["threads"].MergeFrom(pb.ModelParameter(string_value="4")),
            '-parameters { key: "threads" value { string_value: "1" } }\n'
            '+parameters { key: "threads" value { string_value: "4" } }',
        ),
    ],
)
def test_only_the_lines_concerned_change(change: Callable[[pb.ModelConfig], object], lines: str) -> None:
    assert changed(change) == lines


def test_removing_a_block_keeps_its_comments() -> None:
    config = parse_text(TEXT).config
    config.ClearField("dynamic_batching")
    assert "# Powers of two." in edit_text(TEXT, config)
