"""Suggested fixes for errors in a configuration."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from importlib.metadata import entry_points

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from tritonnb.core.errors import Fix
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import similar_name
from tritonnb.model_config.backend_selection import BACKEND_GROUP, similar_backend
from tritonnb.model_config.fields import MESSAGES, Scalar, fields_of, similar_constant
from tritonnb.model_config.text_edit import edit_text, statement_text
from tritonnb.model_config.tokens import CLOSING, OPENING, ConfigSyntaxError, Token, TokenKind, tokens_of, tokens_until

#: The prefix of load API errors before the cause, for the first of several versions.
_LOAD_PREFIX = re.compile(r"^(?:load failed for model '[^']*': )?version \d+ is at UNAVAILABLE state: [A-Z][a-z ]*: ")
_ARROW = " → "

# --- syntax -------------------------------------------------------------------------------------------


def fix_for_syntax(text: str, error: ConfigSyntaxError) -> Fix | None:
    """Return a fix for a parser error; None if there is none."""
    tokens = tokens_until(text, error.line, error.column)
    if not tokens:
        return None
    return _fix_for_name(text, tokens, error.detail) or _fix_for_token(text, tokens, error.detail)


def _fix_for_name(text: str, tokens: list[Token], detail: str) -> Fix | None:
    """Return a fix for a wrong name, or for a field that is set twice."""
    if match := re.match(r'Message type "([^"]+)" has no field named "([^"]+)"', detail):
        return _renamed(text, tokens, match[2], similar_name(match[2], fields_of(match[1])))
    if match := re.match(r'Unknown enumeration value of "([^"]+)" for field "([^"]+)"', detail):
        return _renamed(text, tokens, match[1], similar_constant(match[1], _enum_values(match[2])))
    if match := re.match(r'Non-repeated field "([^"]+)" is specified multiple times', detail):
        return _removed(text, tokens[-2], f"the second {match[1]}")
    if match := re.match(r'Field "([^"]+)" is specified along with field "([^"]+)"', detail):
        return _removed(text, tokens[-2], match[1])
    return None


def _fix_for_token(text: str, tokens: list[Token], detail: str) -> Fix | None:
    """Return a fix for a wrong last token, or for a missing token before it."""
    token, before = tokens[-1], tokens[-2] if len(tokens) > 1 else None
    if detail.startswith("Expected integer, got") and token.kind is TokenKind.STRING and token.text[1:-1].isdigit():
        return _replaced(text, token, token.text[1:-1])
    if detail.startswith("Expected string, got") and token.kind is TokenKind.IDENTIFIER:
        return _replaced(text, token, f'"{token.text}"')
    if (
        detail.startswith(("Expected identifier, got", "Expected integer or identifier"))
        and token.kind is TokenKind.STRING
    ):
        return _replaced(text, token, token.text[1:-1])
    if detail == 'Expected "{", found "true".':
        return _replaced(text, token, "{ }")
    if (match := re.match(r'Expected "([:,])", found', detail)) and before is not None:
        return _inserted(text, before, match[1])
    if token.text == "]" and before is not None and before.text == ",":
        return _fix(text, before.start, before.end, "", "remove the comma before ]")
    if token.kind is TokenKind.END and detail.startswith(("Expected identifier, got", 'Expected "}"')):
        opened = sum({"{": 1, "}": -1}.get(other.text, 0) for other in tokens if other.kind is TokenKind.SYMBOL)
        closed = text.rstrip("\n") + "\n" + "}" * opened + "\n"
        label = f"add the missing {'}' * opened} at the end"
        return Fix(label, closed, label) if opened > 0 else None
    return None


def _renamed(text: str, tokens: list[Token], word: str, meant: str) -> Fix | None:
    mistaken = next((token for token in reversed(tokens[:-1]) if token.text == word), None)
    return _replaced(text, mistaken, meant) if meant and mistaken is not None else None


def _replaced(text: str, token: Token, replacement: str) -> Fix:
    return _fix(text, token.start, token.end, replacement, f"{token.text}{_ARROW}{replacement}")


def _inserted(text: str, after: Token, addition: str) -> Fix:
    return _fix(text, after.end, after.end, addition, f"insert {addition}", f"insert '{addition}' after '{after.text}'")


def _removed(text: str, name: Token, what: str) -> Fix:
    """Remove the field with this name, and its line if nothing else is on it."""
    raw, start, end = text.encode("utf-8", "surrogateescape"), name.start, _end_of_field(text, name)
    line_start = raw.rfind(b"\n", 0, start) + 1
    line_end = raw.find(b"\n", end) + 1 or len(raw)
    if not (raw[line_start:start] + raw[end:line_end]).strip():
        start, end = line_start, line_end
    return _fix(text, start, end, "", f"remove {what}")


def _end_of_field(text: str, name: Token) -> int:
    """Return the end of a field: after its value, or after the separator if there is one."""
    tokens = [token for token in tokens_of(text) if token.start >= name.start]
    depth = 0
    for token, following in itertools.pairwise(tokens[1:]):
        depth += (token.text in OPENING) - (token.text in CLOSING)
        is_continued = token.kind is TokenKind.STRING and following.kind is TokenKind.STRING
        if not depth and token.text not in (":", "-") and not is_continued:
            return following.end if following.text in (",", ";") else token.end
    return tokens[-1].end


def _fix(text: str, start: int, end: int, replacement: str, label: str, hint: str = "") -> Fix:
    """Replace the bytes from ``start`` to ``end``."""
    raw = text.encode("utf-8", "surrogateescape")
    changed = raw[:start] + replacement.encode("utf-8", "surrogateescape") + raw[end:]
    return Fix(label, changed.decode("utf-8", "surrogateescape"), hint or _hint_of(label))


def _hint_of(label: str) -> str:
    """Return the hint for a fix: its label as the end of an error message."""
    _, arrow, meant = label.partition(_ARROW)
    quoted = meant if meant.startswith('"') else f"'{meant}'"
    return f"did you mean {quoted}?" if arrow else label


def _enum_values(field: str) -> set[str]:
    enums: list[EnumDescriptor] = [
        message.fields_by_name[field].enum_type
        for message in MESSAGES.values()
        if field in message.fields_by_name and message.fields_by_name[field].enum_type is not None
    ]
    return {value.name for enum in enums for value in enum.values}


# --- rules --------------------------------------------------------------------------------------------


def fix_for(text: str, config: pb.ModelConfig, message: str) -> Fix | None:
    """Return a fix for an error of the validator or a backend; None if there is none."""
    cause = _LOAD_PREFIX.sub("", message)
    for pattern, fix in _FIXES:
        if match := re.search(pattern, cause):
            fixed = copy.deepcopy(config)
            label = fix(fixed, match)
            if fixed != config:
                return Fix(label, edit_text(text, fixed), _hint_of(label))
    return None


def _drop_large(config: pb.ModelConfig, match: re.Match[str]) -> str:
    batching = config.dynamic_batching if match[1] == "dynamic" else config.sequence_batching.oldest
    sizes = batching.preferred_batch_size
    sizes[:] = [size for size in sizes if 0 < size <= config.max_batch_size]
    return f"keep preferred sizes from 1 to {config.max_batch_size}"


def _default_level(config: pb.ModelConfig, match: re.Match[str]) -> str:
    batching = config.dynamic_batching
    return _set(batching, "default_priority_level", (batching.priority_levels + 1) // 2)


def _drop_levels(config: pb.ModelConfig, match: re.Match[str]) -> str:
    policies = config.dynamic_batching.priority_queue_policy
    for level in [number for number in policies if not 1 <= number <= int(match[1])]:
        del policies[level]
    return f"keep the policies of levels 1 to {match[1]}"


def _utilization(config: pb.ModelConfig, match: re.Match[str]) -> str:
    return _set(config.sequence_batching.direct, "minimum_slot_utilization", 1.0)


def _set(message: Message, name: str, value: Scalar) -> str:
    """Set a field of the configuration, and return the label of the fix."""
    setattr(message, name, value)
    return f"set {statement_text(message.DESCRIPTOR.fields_by_name[name], value)}"


def _no_gpus(config: pb.ModelConfig, match: re.Match[str]) -> str:
    for group in config.instance_group:
        group.ClearField("gpus")
        group.kind = pb.ModelInstanceGroup.KIND_CPU
    return "set kind: KIND_CPU, or KIND_AUTO to use GPUs where there are some"


def _backend(config: pb.ModelConfig, match: re.Match[str]) -> str:
    installed = [entry_point.name for entry_point in entry_points(group=BACKEND_GROUP)]
    similar = similar_backend(match[1], installed)
    if not similar:
        return ""
    if not config.backend:
        config.platform = ""
    config.backend = similar
    return f"{match[1]}{_ARROW}{similar}"


def _variable_dims(config: pb.ModelConfig, match: re.Match[str]) -> str:
    for tensor in _tensors(config, match):
        for dims in (tensor.dims, tensor.reshape.shape) if tensor.HasField("reshape") else (tensor.dims,):
            dims[:] = [dim if dim >= 1 else -1 for dim in dims]
        return f"set dims: {list(tensor.dims)}"
    return ""


def _any_dims(config: pb.ModelConfig, match: re.Match[str]) -> str:
    for tensor in _tensors(config, match):
        tensor.dims.append(-1)
    return "set dims, without the batch dimension, such as dims: [ -1 ] for one of any size"


def _tensors(config: pb.ModelConfig, match: re.Match[str]) -> list[pb.ModelInput | pb.ModelOutput]:
    """Return the input or output that an error names."""
    return [tensor for tensor in getattr(config, match[1]) if tensor.name == match[2]]


_FIXES: tuple[tuple[str, Callable[[pb.ModelConfig, re.Match[str]], str]], ...] = (
    (r"^(dynamic|sequence) batching preferred (?:batch )?size must", _drop_large),
    (r"^default priority level must", _default_level),
    (r"^priority queue policy must have priority level in range \[1, (\d+)\]", _drop_levels),
    (r"when 'preserve_ordering' is true", lambda config, _: _set(config.dynamic_batching, "preserve_ordering", False)),
    (r"^'max_batch_size' must be non-negative", lambda config, _: _set(config, "max_batch_size", 0)),
    (r"^unexpected directory name '([^']*)'", lambda config, match: _set(config, "name", match[1])),
    (r"minimum slot utilization must be in range", _utilization),
    (r"^unable to find backend library for backend '([^']*)'", _backend),
    (r"^unexpected platform type '([^']+)'", _backend),
    (r"^model (input|output) '([^']*)' (?:dimension|reshape dimensions) must be integer", _variable_dims),
    (r"^model (input|output) '([^']*)' must specify 'dims'", _any_dims),
    (r"^instance group .* (?:specifies one or more GPUs|specifies no GPUs|no GPUs are available|gpu id)", _no_gpus),
)

#: Hints for errors without a suggested text.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"^model (?:input|output) '[^']*' must specify 'data_type'",
        f"add data_type, one of {', '.join(sorted(_enum_values('data_type') - {'TYPE_INVALID'}))}",
    ),
    (
        r"^Invalid model name: Could not determine backend",
        'add backend, such as backend: "python", or put the model\'s file, such as model.py, into its '
        "version directory",
    ),
)


def hint_for_rule(message: str) -> str:
    """Return the hint for a validation error without a suggested change of the text; empty if there is none."""
    cause = _LOAD_PREFIX.sub("", message)
    return next((hint for pattern, hint in _HINTS if re.search(pattern, cause)), "")
