"""JSON as RapidJSON reads it, which is what Triton's clients see when their JSON is wrong.

Python's `json` does the work for documents it accepts. When it refuses one, this reader says what
RapidJSON would say, reason and offset, or accepts what RapidJSON accepts (``Inf``).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from tritonnb.core.errors import InternalError

#: Deeper documents are refused: Python's reader recurses.
MAX_DEPTH = 200

_BLANKS = " \n\r\t"
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_DIGITS = re.compile(r"[0-9]+")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = set("0123456789abcdefABCDEF")

# To Python a number beyond all doubles is an infinity; RapidJSON refuses it. Such a number has three
# digits in its exponent, or more than 308 digits: looked for with all digits made zeros.
_ZEROED = bytes(ord("0") if chr(each).isdecimal() else ord("e") if each == ord("E") else each for each in range(256))
_LARGE_EXPONENT = b"0e000"
_LONG = b"0" * 309
_MAX_EXPONENT = 308


def parse(raw: bytes | bytearray) -> Any:
    """The value of a JSON document.

    Of members with the same name the first counts: `RepeatedMembers`.

    Parameters
    ----------
    raw : bytes
        Bytes that are no UTF-8 pass through, as surrogate escapes.

    Raises
    ------
    InternalError
        ``failed to parse the request JSON buffer: <reason> at <offset>``.
    """
    text = raw.decode("utf-8", "surrogateescape")
    if not _is_doubtful(raw):
        try:
            return _python_reader.decode(text)
        except (ValueError, RecursionError):
            pass
    return _Reader(text).document()


def _is_doubtful(raw: bytes | bytearray) -> bool:
    """Whether Python might accept what RapidJSON refuses."""
    zeroed = raw.translate(_ZEROED, b"+")
    if _LARGE_EXPONENT in zeroed or (len(raw) > len(_LONG) and _LONG in zeroed):
        return True
    if b"\\" not in raw:
        return False
    unpaired = _PAIR.sub(b"", raw)
    return b"\\ud" in unpaired or b"\\uD" in unpaired


class RepeatedMembers(dict[str, Any]):
    """An object of whose members some have the same name: the first of them, and every name in order."""

    names: list[str]


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated = RepeatedMembers(reversed(pairs))
    repeated.names = [name for name, _ in pairs]
    return repeated


_python_reader = json.JSONDecoder(object_pairs_hook=_members)


class _Reader:
    def __init__(self, text: str) -> None:
        # A NUL stands for the end, as in RapidJSON's memory stream; a byte order mark is skipped.
        self._text = text + "\0"
        self._at = 1 if text.startswith("\ufeff") else 0
        self._depth = 0

    def document(self) -> Any:
        self._skip()
        if self._peek() == "\0":
            self._fail("The document is empty.")
        value = self._value()
        self._skip()
        if self._peek() != "\0":
            self._fail("The document root must not be followed by other values.")
        return value

    def _value(self) -> Any:
        first = self._peek()
        if first == "{":
            return self._nested(self._object)
        if first == "[":
            return self._nested(self._array)
        if first == '"':
            return self._string()
        for word, value in (("null", None), ("true", True), ("false", False)):
            if first == word[0]:
                self._word(word)
                return value
        return self._number()

    def _nested(self, read: Any) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail("Terminate parsing due to Handler error.")
        value = read()
        self._depth -= 1
        return value

    def _object(self) -> dict[str, Any]:
        pairs: list[tuple[str, Any]] = []
        self._at += 1
        self._skip()
        if self._take("}"):
            return {}
        while True:
            if self._peek() != '"':
                self._fail("Missing a name for object member.")
            name = self._string()
            self._skip()
            if not self._take(":"):
                self._fail("Missing a colon after a name of object member.")
            self._skip()
            pairs.append((name, self._value()))
            self._skip()
            if self._take("}"):
                return _members(pairs)
            if not self._take(","):
                self._fail("Missing a comma or '}' after an object member.")
            self._skip()

    def _array(self) -> list[Any]:
        elements: list[Any] = []
        self._at += 1
        self._skip()
        if self._take("]"):
            return elements
        while True:
            elements.append(self._value())
            self._skip()
            if self._take("]"):
                return elements
            if not self._take(","):
                self._fail("Missing a comma or ']' after an array element.")
            self._skip()

    def _word(self, word: str) -> None:
        for letter in word:
            if not self._take(letter):
                self._fail("Invalid value.")

    def _string(self) -> str:
        parts: list[str] = []
        self._at += 1
        while True:
            character = self._peek()
            if character == '"':
                self._at += 1
                return "".join(parts)
            if character == "\\":
                parts.append(self._escape())
            elif character == "\0":
                self._fail("Missing a closing quotation mark in string.")
            elif character < " ":
                self._fail("Invalid escape character in string.")
            else:
                parts.append(self._matched(_PLAIN))

    def _escape(self) -> str:
        start = self._at
        self._at += 1
        kind = self._peek()
        self._at += 1
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        if kind != "u":
            self._fail("Invalid escape character in string.", start)
        unit = self._hex(start)
        if 0xD800 <= unit <= 0xDFFF:
            if unit > 0xDBFF or not (self._take("\\") and self._take("u")):
                self._fail("The surrogate pair in string is invalid.", start)
            low = self._hex(start)
            if not 0xDC00 <= low <= 0xDFFF:
                self._fail("The surrogate pair in string is invalid.", start)
            unit = (((unit - 0xD800) << 10) | (low - 0xDC00)) + 0x10000
        return chr(unit)

    def _hex(self, start: int) -> int:
        digits = self._text[self._at : self._at + 4]
        if len(digits) < 4 or not set(digits) <= _HEX:
            self._fail("Incorrect hex digit after \\u escape in string.", start)
        self._at += 4
        return int(digits, 16)

    def _number(self) -> int | float:
        start = self._at
        if not self._matched(_INTEGER):
            return self._not_finite()
        whole = True
        fraction = ""
        if self._take("."):
            whole = False
            fraction = self._matched(_DIGITS) or self._fail("Miss fraction part in number.")
        if self._take("e") or self._take("E"):
            whole = False
            negative = self._take("-") or (self._take("+") and False)
            exponent = self._matched(_DIGITS) or self._fail("Miss exponent in number.")
            # Triton's reader looks at the exponent alone: 0e309 is too big for it.
            if not negative and _beyond(exponent, _MAX_EXPONENT + len(fraction)):
                self._fail("Number too big to be stored in double.", start)
        literal = self._text[start : self._at]
        value = float(literal)
        if math.isinf(value):
            self._fail("Number too big to be stored in double.", start)
        return int(literal) if whole else value

    def _not_finite(self) -> float:
        sign = -1.0 if self._take("-") else 1.0
        if self._take("N"):
            if self._take("a") and self._take("N"):
                return math.nan
        elif self._take("I") and self._take("n") and self._take("f"):
            if self._peek() == "i":
                self._word("inity")
            return sign * math.inf
        self._fail("Invalid value.")

    def _matched(self, pattern: re.Pattern[str]) -> str:
        """What a pattern takes here, which may be nothing."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def _skip(self) -> None:
        while self._peek() in _BLANKS:
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        # RapidJSON counts bytes.
        characters = self._text[: self._at if at is None else at]
        offset = len(characters.encode("utf-8", "surrogateescape"))
        raise InternalError(f"failed to parse the request JSON buffer: {reason} at {offset}")


def _beyond(digits: str, limit: int) -> bool:
    digits = digits.lstrip("0")
    return len(digits) > len(str(limit)) or int(digits or "0") > limit
