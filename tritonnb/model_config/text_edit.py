"""Minimal edits of the text of a *config.pbtxt*.

The text is compared with the new configuration field by field, at the positions that the parser recorded. Comments,
order, layout and unchanged values are kept; new fields are added at the end of their message. A comment inside a
removed part is kept, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.fields import Element, Scalar, is_map
from tritonnb.model_config.parse import Statement, Value, parse_text
from tritonnb.model_config.tokens import Tokenizer

_COMMENT = re.compile(rb"#[^\n]*")
_BLANKS = b" \t"
_QUOTED = {ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}


def edit_text(text: str, config: pb.ModelConfig) -> str:
    """Change the text of a configuration as little as possible so that it parses as ``config``.

    Parameters
    ----------
    text : str
        The text of a *config.pbtxt* without syntax errors.
    config : inference.ModelConfig

    Raises
    ------
    ConfigSyntaxError
        If ``text`` has a syntax error.

    Examples
    --------
    >>> text = "max_batch_size: 8  # rows" + chr(10) + "dynamic_batching { }  # on" + chr(10)
    >>> config = parse_text(text).config
    >>> config.dynamic_batching.max_queue_delay_microseconds = 500
    >>> print(edit_text(text, config), end="")
    max_batch_size: 8  # rows
    dynamic_batching { max_queue_delay_microseconds: 500 }  # on
    """
    raw = text.encode("utf-8", "surrogateescape")
    parsed = parse_text(raw)
    edits = _Edits(raw)
    edits.message(parsed.written, parsed.config, config)
    return edits.applied().decode("utf-8", "surrogateescape")


class _Edits:
    """Replacements in the text that do not overlap."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._comments = _comments(text)
        self._edits: list[tuple[int, int, bytes]] = []

    def applied(self) -> bytes:
        """Return the text after all replacements."""
        pieces, at = [], 0
        # An insertion precedes a removal at the same position.
        for start, end, replacement in sorted(self._edits, key=lambda edit: edit[:2]):
            pieces += [self._text[at:start], replacement]
            at = end
        return b"".join([*pieces, self._text[at:]])

    # --- what differs -----------------------------------------------------------------------------

    def message(self, written: Value, old: Message, new: Message) -> None:
        """Change the text of a message from ``old`` to ``new``."""
        for field in old.DESCRIPTOR.fields:
            if is_map(field):
                self._map(written, field, getattr(old, field.name), getattr(new, field.name))
            elif field.is_repeated:
                self._repeated(written, field, getattr(old, field.name), getattr(new, field.name))
            else:
                self._single(written, field, old, new)

    def _single(self, written: Value, field: FieldDescriptor, old: Message, new: Message) -> None:
        name, statements = field.name, written.statements_of(field.name)
        was_set, is_set = (not field.has_presence or message.HasField(name) for message in (old, new))
        if was_set and is_set and getattr(old, name) == getattr(new, name):
            return
        if was_set and not is_set:
            for statement in statements:
                self._remove_statement(statement)
        elif is_set and not statements:
            self._insert(written, statement_text(field, getattr(new, name)))
        elif is_set:
            self._change(statements[-1].values[0], field, getattr(old, name), getattr(new, name))

    def _change(self, value: Value, field: FieldDescriptor, old: Element, new: Element) -> None:
        """Change the text of a field's value, or of an element of it."""
        if field.message_type:
            self.message(value, old, new)
        else:
            self._put(value.start, value.end, _literal(field, new))

    def _repeated(self, written: Value, field: FieldDescriptor, old: Sequence[Element], new: Sequence[Element]) -> None:
        if list(old) == list(new):
            return
        surplus = max(0, len(old) - len(new))
        first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        kept = [i for i in range(len(old)) if not first <= i < first + surplus]
        values = [value for statement in written.statements_of(field.name) for value in statement.values]
        for index, wanted in zip(kept, new, strict=False):
            if old[index] != wanted:
                self._change(values[index], field, old[index], wanted)
        added = [_literal(field, element) for element in new[len(old) :]]
        self._replace(written, field, values[first : first + surplus], added)

    def _map(
        self, written: Value, field: FieldDescriptor, old: Mapping[Scalar, Element], new: Mapping[Scalar, Element]
    ) -> None:
        entries = [entry for statement in written.statements_of(field.name) for entry in statement.values]
        key_field, value_field = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        last = {entry.key: entry for entry in entries}
        for key in sorted(set(old) & set(new)):
            values = [statement.values[0] for statement in last[key].statements_of("value")]
            if old[key] != new[key] and values:
                self._change(values[0], value_field, old[key], new[key])
            elif old[key] != new[key]:
                self._insert(last[key], statement_text(value_field, new[key]))
        added = [
            f"{{ {statement_text(key_field, key)} {statement_text(value_field, new[key])} }}"
            for key in sorted(set(new) - set(old))
        ]
        self._replace(written, field, [entry for entry in entries if entry.key not in new], added)

    # --- removing ---------------------------------------------------------------------------------

    def _remove_values(self, statements: list[Statement], removed: list[Value]) -> None:
        for statement in statements:
            values = statement.values
            gone = [any(value is other for other in removed) for value in values]
            if values and all(gone):
                self._remove_statement(statement)
                continue
            for i, value in enumerate(values):
                if gone[i] and any(not is_gone for is_gone in gone[:i]):  # with the preceding comma
                    self._put(values[i - 1].end, value.end, "")
                elif gone[i]:
                    self._put(value.start, values[i + 1].start, "")

    def _remove_statement(self, statement: Statement) -> None:
        """Remove a statement, with its lines if nothing else is on them."""
        text, start, end = self._text, statement.start, statement.end
        while end < len(text) and text[end] in _BLANKS:
            end += 1
        line = self._line_start(start)
        alone = not text[line:start].strip() and (end == len(text) or text[end] == 0x0A)
        if alone and not self._comments_in(start, end):
            start, end = line, min(end + 1, len(text))
        self._put(start, end, "")

    # --- adding -----------------------------------------------------------------------------------

    def _replace(self, written: Value, field: FieldDescriptor, removed: list[Value], added: list[str]) -> None:
        """Remove some values of a repeated field, and append others."""
        statements = written.statements_of(field.name)
        self._remove_values(statements, removed)
        if not added:
            return
        last = statements[-1] if statements else None
        if last is None or not last.in_list:
            for literal in added if last else [_in_list(added)]:
                self._insert(written, f"{_introduction(field)}{literal}")
            return
        kept = [value for value in last.values if not any(value is other for other in removed)]
        if kept:
            line = self._line_start(kept[-1].start)
            indent = self._text[line : kept[-1].start]
            comma = ", " if indent.strip() else f",\n{indent.decode()}"
            self._put(kept[-1].end, kept[-1].end, "".join(f"{comma}{literal}" for literal in added))
        elif last.values:  # the whole list is removed
            self._insert(written, f"{_introduction(field)}{_in_list(added)}")
        else:
            self._put(last.list_end - 1, last.list_end - 1, ", ".join(added))

    def _insert(self, written: Value, statement: str) -> None:
        """Insert a statement at the end of a message."""
        text = self._text
        if written.start == 0 and written.end == len(text):  # the whole text, which has no braces
            last = text[-1:] in (b"", b"\n")
            self._put(len(text), len(text), f"{statement}\n" if last else f"\n{statement}")
            return
        brace = written.end - 1
        line = self._line_start(brace)
        if line > written.start and not text[line:brace].strip():
            indent = text[line:brace] + b"  "
            if written.statements:
                first = written.statements[-1].start
                before = text[self._line_start(first) : first]
                indent = indent if before.strip() else before
            self._put(line, line, f"{indent.decode()}{statement}\n")
        else:
            gap = "" if text[brace - 1] in _BLANKS else " "
            self._put(brace, brace, f"{gap}{statement} ")

    # --- the text ---------------------------------------------------------------------------------

    def _put(self, start: int, end: int, replacement: str) -> None:
        kept = b"".join(b" " + comment + b"\n" for comment in self._comments_in(start, end))
        self._edits.append((start, end, replacement.encode("utf-8", "surrogateescape") + kept))

    def _comments_in(self, start: int, end: int) -> list[bytes]:
        return [self._text[a:b] for a, b in self._comments if start <= a and b <= end]

    def _line_start(self, at: int) -> int:
        return self._text.rfind(b"\n", 0, at) + 1


def _comments(text: bytes) -> list[tuple[int, int]]:
    """Return the start and end of each comment: a ``#`` between two tokens, up to the end of the line."""
    spans: list[tuple[int, int]] = []
    at = 0
    for token in Tokenizer(text):
        spans += [match.span() for match in _COMMENT.finditer(text, at, token.start)]
        at = token.end
    return spans


def statement_text(field: FieldDescriptor, value: Element) -> str:
    """Return the text of a field: ``name: value``, or ``name { ... }`` for a message."""
    return f"{_introduction(field)}{_literal(field, value)}"


def _introduction(field: FieldDescriptor) -> str:
    return f"{field.name} " if field.message_type else f"{field.name}: "


def _in_list(literals: Sequence[str]) -> str:
    return literals[0] if len(literals) == 1 and literals[0].startswith("{") else f"[{', '.join(literals)}]"


def _literal(field: FieldDescriptor, value: Element) -> str:
    if field.message_type:
        inner = text_format.MessageToString(value, as_one_line=True, use_short_repeated_primitives=True, as_utf8=True)
        return f"{{ {inner} }}" if inner else "{ }"
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if isinstance(value, str):
        return f'"{value.translate(_QUOTED)}"'
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return "true" if value else "false"
    return repr(value)
