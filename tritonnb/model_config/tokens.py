"""Tokens of the protobuf text format, with the positions and complaints of protobuf's C++ tokenizer.

Triton logs what that tokenizer and parser say, and people look for those words; Python's own text
parser words and counts differently, and does not tell where a field stood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from tritonnb.core.errors import InvalidArgumentError

_TAB = 8
_NUMBER = re.compile(rb"0[xX][0-9a-fA-F]*|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d*)?[fF]?")
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", "'": "'", '"': '"',
}  # fmt: skip
_ESCAPE = re.compile(
    rb"\\(?:([abfnrtv\\?'\"])|([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))"
)


class Kind(Enum):
    """What a token is."""

    IDENTIFIER = "identifier"
    INTEGER = "integer"
    FLOAT = "float"
    STRING = "string"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One token; ``line`` and ``column`` count from 1."""

    kind: Kind
    text: str
    line: int
    column: int


class ConfigSyntaxError(InvalidArgumentError):
    """*config.pbtxt* is not text format of ``inference.ModelConfig``.

    Attributes
    ----------
    line, column : int
        From 1.
    detail : str
        The parser's complaint, as Triton logs it.
    """

    def __init__(self, line: int, column: int, detail: str) -> None:
        super().__init__(f"{line}:{column}: {detail}")
        self.line = line
        self.column = column
        self.detail = detail


class Tokenizer:
    """Cuts a text into tokens, one at a time."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._column = 1

    def next(self) -> Token:
        """The next token; an END token when there is none.

        Raises
        ------
        ConfigSyntaxError
        """
        self._skip_blanks()
        text, at = self._text, self._at
        if at >= len(text):
            return Token(Kind.END, "", self._line, self._column)
        byte = text[at : at + 1]
        if byte in b"\"'":
            return self._token(Kind.STRING, self._string_end())
        if found := _IDENTIFIER.match(text, at):
            return self._token(Kind.IDENTIFIER, found.end())
        if byte.isdigit() or (byte == b"." and text[at + 1 : at + 2].isdigit()):
            return self._number()
        if text[at] >= 0x80:
            self._complain(f"Interpreting non ascii codepoint {text[at]}.")
        if text[at] < 0x20:
            self._complain("Invalid control characters encountered in text.")
        return self._token(Kind.SYMBOL, at + 1)

    def _number(self) -> Token:
        found = _NUMBER.match(self._text, self._at)
        assert found is not None
        number = found.group()
        is_hex = number[:2] in (b"0x", b"0X")
        is_float = not is_hex and bool(set(number) & set(b".eEfF"))
        end = found.end()
        if not is_hex and not is_float and len(number) > 1 and number[:1] == b"0":
            for offset, digit in enumerate(number):
                if digit in b"89":
                    self._advance(self._at + offset)
                    self._complain("Numbers starting with leading zero must be in octal.")
        if is_hex and len(number) == 2:
            self._advance(end)
            self._complain('"0x" must be followed by hex digits.')
        if _IDENTIFIER.match(self._text, end):
            self._advance(end)
            self._complain("Need space between number and identifier.")
        return self._token(Kind.FLOAT if is_float else Kind.INTEGER, end)

    def _string_end(self) -> int:
        text, at = self._text, self._at
        quote = text[at]
        position = at + 1
        while position < len(text):
            byte = text[position]
            if byte == quote:
                return position + 1
            if byte == 0x0A:
                self._advance(position)
                self._complain("String literals cannot cross line boundaries.")
            if byte == 0x5C:
                escape = _ESCAPE.match(text, position)
                if escape is None:
                    self._advance(position + 1)
                    self._complain("Invalid escape sequence in string literal.")
                position = escape.end()
            else:
                position += 1
        self._advance(position)
        self._complain("Unexpected end of string.")

    def _token(self, kind: Kind, end: int) -> Token:
        token = Token(
            kind, self._text[self._at : end].decode("utf-8", "surrogateescape"), self._line, self._column
        )
        self._advance(end)
        return token

    def _skip_blanks(self) -> None:
        text = self._text
        while self._at < len(text):
            byte = text[self._at]
            if byte == 0x23:  # '#'
                end = text.find(b"\n", self._at)
                self._advance(len(text) if end < 0 else end)
            elif byte in b" \t\r\n\v\f":
                self._advance(self._at + 1)
            else:
                return

    def _advance(self, end: int) -> None:
        for byte in self._text[self._at : end]:
            if byte == 0x0A:
                self._line += 1
                self._column = 1
            elif byte == 0x09:
                self._column += _TAB - (self._column - 1) % _TAB
            else:
                self._column += 1
        self._at = end

    def _complain(self, detail: str) -> NoReturn:
        raise ConfigSyntaxError(self._line, self._column, detail)


def string_value(literal: str) -> bytes:
    """What a string token says, its quotes and escapes resolved."""
    raw = literal[1:-1].encode("utf-8", "surrogateescape")

    def resolve(match: re.Match[bytes]) -> bytes:
        simple, octal, hexadecimal, short, long = match.groups()
        if simple is not None:
            return _ESCAPES[simple.decode()].encode()
        if octal is not None:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal is not None:
            return bytes([int(hexadecimal, 16)])
        return chr(int(short or long, 16)).encode("utf-8", "surrogatepass")

    return _ESCAPE.sub(resolve, raw)
