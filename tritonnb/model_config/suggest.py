"""Suggested fixes: what somebody who made this mistake most likely meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.model_config.edit import edit_text
from tritonnb.model_config.fields import MESSAGES, fields_of
from tritonnb.model_config.tokens import ConfigSyntaxError, Kind, Token, tokens_before


@dataclass(frozen=True, slots=True)
class Fix:
    """A text that lacks the mistake, and what was done about it."""

    label: str
    text: str


# --- syntax -------------------------------------------------------------------------------------------


def fix_for_syntax(text: str, error: ConfigSyntaxError) -> Fix | None:
    """A fix for what the parser complains about, if there is one to suggest."""
    tokens = list(tokens_before(text, error.line, error.column, including=True))
    if found := re.match(r'Message type "([^"]+)" has no field named "([^"]+)"', error.detail):
        return _similar(text, tokens[:-1], found[2], fields_of(found[1]))
    if found := re.match(r'Unknown enumeration value of "([^"]+)" for field "([^"]+)"', error.detail):
        return _similar(text, tokens[:-1], found[1], _enum_values(found[2]), prefixed=True)
    if not tokens:
        return None
    token = tokens[-1]
    if error.detail.startswith("Expected integer, got") and token.kind is Kind.STRING and token.text[1:-1].isdigit():
        return _replaced(text, token, token.text[1:-1])
    if error.detail.startswith("Expected string, got") and token.kind is Kind.IDENTIFIER:
        return _replaced(text, token, f'"{token.text}"')
    if error.detail.startswith("Expected identifier, got") and token.kind is Kind.STRING:
        return _replaced(text, token, token.text[1:-1])
    if error.detail.startswith('Expected ":", found') and tokens[-2:-1]:
        return _inserted(text, tokens[-2].end, ":")
    if token.kind is Kind.END and error.detail.startswith(("Expected identifier, got", 'Expected "}"')):
        opened = sum({"{": 1, "}": -1}.get(each.text, 0) for each in tokens if each.kind is Kind.SYMBOL)
        return Fix("close what is open with }", text.rstrip("\n") + "\n" + "}" * opened + "\n") if opened > 0 else None
    return None


def _similar(text: str, tokens: list[Token], word: str, known: Iterable[str], prefixed: bool = False) -> Fix | None:
    candidates = list(known)
    matches = [each for each in candidates if prefixed and each.endswith(f"_{word.upper()}")]
    matches += difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    mistaken = next((each for each in reversed(tokens) if each.text == word), None)
    return _replaced(text, mistaken, matches[0]) if matches and mistaken is not None else None


def _replaced(text: str, token: Token, replacement: str) -> Fix:
    raw = text.encode("utf-8", "surrogateescape")
    changed = raw[: token.start] + replacement.encode() + raw[token.end :]
    return Fix(f"{token.text} → {replacement}", changed.decode("utf-8", "surrogateescape"))


def _inserted(text: str, at: int, addition: str) -> Fix:
    raw = text.encode("utf-8", "surrogateescape")
    return Fix(f"insert {addition}", (raw[:at] + addition.encode() + raw[at:]).decode("utf-8", "surrogateescape"))


def _enum_values(field: str) -> set[str]:
    enums: list[EnumDescriptor] = [
        each.fields_by_name[field].enum_type
        for each in MESSAGES.values()
        if field in each.fields_by_name and each.fields_by_name[field].enum_type is not None
    ]
    return {value.name for enum in enums for value in enum.values}


# --- rules --------------------------------------------------------------------------------------------


def fix_for(text: str, config: Any, message: str) -> Fix | None:
    """A fix for what the validator complains about, if there is one to suggest."""
    for pattern, mend in _MENDERS:
        if found := re.search(pattern, message):
            mended = pb.ModelConfig()
            mended.CopyFrom(config)
            label = mend(mended, found)
            return Fix(label, edit_text(text, mended))
    return None


def _drop_large(config: Any, found: re.Match[str]) -> str:
    batching = config.dynamic_batching if found[1] == "dynamic" else config.sequence_batching.oldest
    sizes = batching.preferred_batch_size
    sizes[:] = [each for each in sizes if 0 < each <= config.max_batch_size]
    return f"keep preferred sizes from 1 to {config.max_batch_size}"


def _default_level(config: Any, found: re.Match[str]) -> str:
    level = (config.dynamic_batching.priority_levels + 1) // 2
    config.dynamic_batching.default_priority_level = level
    return f"default_priority_level: {level}"


def _drop_levels(config: Any, found: re.Match[str]) -> str:
    policies = config.dynamic_batching.priority_queue_policy
    for level in [each for each in policies if not 1 <= each <= int(found[1])]:
        del policies[level]
    return f"keep the policies of levels 1 to {found[1]}"


def _ordering_off(config: Any, found: re.Match[str]) -> str:
    config.dynamic_batching.preserve_ordering = False
    return "preserve_ordering: false"


def _not_negative(config: Any, found: re.Match[str]) -> str:
    config.max_batch_size = 0
    return "max_batch_size: 0"


def _directory_name(config: Any, found: re.Match[str]) -> str:
    config.name = found[1]
    return f'name: "{found[1]}"'


def _utilization(config: Any, found: re.Match[str]) -> str:
    config.sequence_batching.direct.minimum_slot_utilization = 1.0
    return "minimum_slot_utilization: 1.0"


def _no_gpus(config: Any, found: re.Match[str]) -> str:
    for group in config.instance_group:
        group.ClearField("gpus")
        group.kind = pb.ModelInstanceGroup.KIND_CPU
    return "run on the CPU: kind: KIND_CPU"


_MENDERS: tuple[tuple[str, Callable[[Any, re.Match[str]], str]], ...] = (
    (r"^(dynamic|sequence) batching preferred (?:batch )?size must", _drop_large),
    (r"^default priority level must", _default_level),
    (r"^priority queue policy must have priority level in range \[1, (\d+)\]", _drop_levels),
    (r"when 'preserve_ordering' is true", _ordering_off),
    (r"^'max_batch_size' must be non-negative", _not_negative),
    (r"^unexpected directory name '([^']*)'", _directory_name),
    (r"minimum slot utilization must be in range", _utilization),
    (r"^instance group .* (?:specifies one or more GPUs|specifies no GPUs|no GPUs are available|gpu id)", _no_gpus),
)
