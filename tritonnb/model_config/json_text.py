"""A JSON parser that accepts what protobuf's C++ parser accepts, with its error messages.

It is more lenient than the standard (single quotes, names without quotes, a comma after the last member). Triton logs
its error messages. The parser of HTTP request bodies, which imitates RapidJSON, is in `tritonnb.endpoints.http`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

T = TypeVar("T")

_BLANK = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_WHOLE = re.compile(r"-?[0-9]{1,20}")  # longer numbers are beyond 64 bits
_NUMBER = re.compile(r"-?[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?")
_NOT_DECIMAL = re.compile(r"-?0[0-9xX]")
_CODE = re.compile(r"\\u([0-9a-fA-F]{4})")
_TOKEN = re.compile(r"[-0-9\"'{}\[\]:,A-Za-z_$]")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_WORDS = {"true": True, "false": False, "null": None}
_CONTEXT = 20
_MAX_DEPTH = 100


class JsonSyntaxError(ValueError):
    """The message, the surrounding text, and a caret below the position."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The members of an object in order, including members with the same name."""

    members: list[tuple[str, ParsedJson]]


#: A JSON value as `read_json` returns it.
ParsedJson: TypeAlias = JsonObject | list["ParsedJson"] | str | int | float | bool | None


def read_json(text: str) -> ParsedJson:
    """Parse JSON.

    Raises
    ------
    JsonSyntaxError
        If the text is not valid JSON.
    """
    reader = _JsonReader(text)
    value = reader.value("Expected a value.")
    if reader.peek():
        raise reader.error("Parsing terminated before end of input.")
    return value


def json_value(value: object, path: str = "") -> ParsedJson:
    """Convert a Python value to what `read_json` returns: dicts, iterables, messages, NumPy scalars and arrays.

    Raises
    ------
    ValueError
        If the value has no JSON equivalent; the message contains its path.
    """
    if value is None or isinstance(value, str | int | float | JsonObject):
        return value
    if isinstance(value, Mapping):
        return JsonObject([(str(name), json_value(member, f"{path}.{name}")) for name, member in value.items()])
    if isinstance(value, Message):
        return json_value(MessageToDict(value, preserving_proto_field_name=True), path)
    if isinstance(value, Iterable) and not hasattr(value, "tolist"):  # such as a repeated field of a message
        return [json_value(element, f"{path}[{index}]") for index, element in enumerate(value)]
    if hasattr(value, "tolist"):  # a scalar or an array of NumPy
        return json_value(value.tolist(), path)
    raise ValueError(f"got {value!r} in '{path.lstrip('.')}'")


class _JsonReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._shown_from = 0  # the C++ parser shows no text from before the point where it resumed

    def peek(self) -> str:
        """Return the next non-blank character; empty at the end."""
        blank = _BLANK.match(self._text, self._at)
        assert blank is not None
        self._at = blank.end()
        return self._text[self._at : self._at + 1]

    def error(self, complaint: str) -> JsonSyntaxError:
        begin = max(self._at - _CONTEXT, self._shown_from)
        segment = self._text[begin : self._at + _CONTEXT]
        return JsonSyntaxError(f"{complaint}\n{segment}\n{' ' * (self._at - begin)}^")

    def value(self, expected: str) -> ParsedJson:
        character = self.peek()
        if character and character in "{[":
            return self._nested(character)
        if character and character in "\"'":
            return self._string()
        if character.isdigit() or character == "-":
            return self._number()
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                return self._step(len(word), value)
        if not _TOKEN.match(self._text, self._at):
            raise self._unexpected(expected)
        if len(self._text) - self._at < len("false"):
            self._shown_from = self._at
        raise self.error("Unexpected token.")

    def _nested(self, opening: str) -> ParsedJson:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error("Message too deep. Max recursion depth reached.")
        value: ParsedJson
        if opening == "{":
            value = JsonObject(self._items("}", self._member, "key:value pair"))
        else:
            value = self._items("]", lambda: self.value("Expected a value or ] within an array."), "array value")
        self._depth -= 1
        return value

    def _items(self, closing: str, read_item: Callable[[], T], what: str) -> list[T]:
        items: list[T] = []
        self._at += 1
        while self.peek() != closing:
            items.append(read_item())
            if self.peek() == ",":
                self._at += 1
            elif self.peek() != closing:
                raise self._unexpected(f"Expected , or {closing} after {what}.")
        self._at += 1
        return items

    def _member(self) -> tuple[str, ParsedJson]:
        name = self._name()
        if self.peek() != ":":
            raise self._unexpected("Expected : between key:value pair.")
        self._at += 1
        return name, self.value("Expected a value.")

    def _name(self) -> str:
        character = self.peek()
        if character and character in "\"'":
            return self._string()
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise self._unexpected("Expected an object key or }.")
        self._at = name.end()
        if name.group() in _WORDS:
            raise self.error("Expected an object key or }.")
        return name.group()

    def _string(self) -> str:
        text = self._text
        quote = text[self._at]
        self._at += 1
        parts: list[str] = []
        while self._at < len(text) and text[self._at] != quote:
            if text[self._at] != "\\":
                parts.append(self._step(1, text[self._at]))
                continue
            following = text[self._at + 1 : self._at + 2]
            if following != "u":
                parts.append(self._step(2, _ESCAPES.get(following, following)))
                continue
            parts.append(self._character())
        if self._at >= len(text):
            self._shown_from = self._at = len(text)
            raise self.error("Closing quote expected in string.")
        self._at += 1
        return "".join(parts)

    def _character(self) -> str:
        """Return a character from its escape sequence, or from two surrogates."""
        code = self._code(self._at)
        if 0xD800 <= code < 0xDC00:
            if len(self._text) - self._at < 12:
                self._shown_from = self._at
            if len(self._text) - self._at < 12 or self._text[self._at + 6 : self._at + 8] != "\\u":
                raise self.error("Missing low surrogate.")
            low = self._code(self._at + 6)
            if not 0xDC00 <= low < 0xE000:
                raise self.error("Invalid low surrogate.")
            return self._step(12, chr(0x10000 + ((code - 0xD800) << 10) + low - 0xDC00))
        if 0xDC00 <= code < 0xE000:
            raise self.error("Invalid unicode code point.")
        return self._step(6, chr(code))

    def _code(self, at: int) -> int:
        if len(self._text) - at < 6:
            self._shown_from = self._at
            raise self.error("Illegal hex string.")
        digits = _CODE.match(self._text, at)
        if digits is None:
            raise self.error("Invalid escape sequence.")
        return int(digits[1], 16)

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        assert match is not None
        digits = match.group()
        if _NOT_DECIMAL.match(self._text, self._at):
            raise self.error("Octal/hex numbers are not valid JSON values.")
        try:
            number: int | float = int(digits) if _WHOLE.fullmatch(digits) else float(digits)
        except ValueError:
            raise self.error("Unable to parse number.") from None
        if isinstance(number, float) and math.isinf(number):
            raise self.error("Number exceeds the range of double.")
        if match.end() == len(self._text):
            self._shown_from = self._at
        self._at = match.end()
        if isinstance(number, int) and not -(2**63) <= number < 2**64:
            return float(number)
        return number

    def _unexpected(self, complaint: str) -> JsonSyntaxError:
        if self._at >= len(self._text):
            complaint = f"Unexpected end of string. {complaint}"
        if not self._shown_from and not _TOKEN.match(self._text, self._at):
            self._shown_from = self._at
        return self.error(complaint)

    def _step(self, length: int, value: T) -> T:
        self._at += length
        return value
