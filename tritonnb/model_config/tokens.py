"""A tokenizer for the protobuf text format with the positions and error messages of protobuf's C++ tokenizer.

Triton logs the messages of that tokenizer and parser, and users search for them; Python's text parser has other
messages and positions, and does not report where a field is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tritonnb.core.errors import InvalidArgumentError

OPENING, CLOSING = ("{", "<", "["), ("}", ">", "]")
_TAB = 8
_HEX = re.compile(rb"0[xX]([0-9a-fA-F]*)")
_OCTAL = re.compile(rb"0(?=[0-9])[0-7]*")
_DECIMAL = re.compile(rb"[0-9]*(\.[0-9]*)?([eE][+-]?([0-9]*))?([fF])?")
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", "'": "'", '"': '"',
}  # fmt: skip
_ESCAPE = re.compile(
    rb"\\(?:([abfnrtv\\?'\"])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})"
    rb"|u([dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(00[01][0-9a-fA-F]{5}))"
)
#: The beginnings of invalid escapes, each with its error message.
_BAD_ESCAPES = (
    (re.compile(rb"\\x"), "Expected hex digits for escape sequence."),
    (re.compile(rb"\\u[0-9a-fA-F]{0,3}"), "Expected four hex digits for \\u escape sequence."),
    (
        re.compile(rb"\\U(?:00[01][0-9a-fA-F]{0,4}|00|0)?"),
        "Expected eight hex digits up to 10ffff for \\U escape sequence",
    ),
    (re.compile(rb"\\"), "Invalid escape sequence in string literal."),
)


class TokenKind(Enum):
    """The kinds of tokens."""

    IDENTIFIER = "identifier"
    INTEGER = "integer"
    FLOAT = "float"
    STRING = "string"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One token; ``line`` and ``column`` count from 1, ``start`` and ``end`` bytes from 0."""

    kind: TokenKind
    text: str
    line: int
    column: int
    start: int
    end: int


class ConfigSyntaxError(InvalidArgumentError):
    """A *config.pbtxt* is not valid text format of ``inference.ModelConfig``.

    Attributes
    ----------
    line, column : int
        From 1.
    detail : str
        The parser's message, as Triton logs it.
    statement : int
        Offset in bytes of the innermost statement that was being parsed.

    Examples
    --------
    >>> ConfigSyntaxError(3, 7, "Expected identifier.").line
    3
    """

    def __init__(self, line: int, column: int, detail: str) -> None:
        super().__init__(f"{line}:{column}: {detail}")
        self.statement = 0
        self.line = line
        self.column = column
        self.detail = detail


class Tokenizer:
    """A tokenizer for the text of a configuration."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._column = 1

    def __iter__(self) -> Iterator[Token]:
        """Yield all tokens, END included; raises as `next` does."""
        while (token := self.next()).kind is not TokenKind.END:
            yield token
        yield token

    def next(self) -> Token:
        """Return the next token; an END token at the end.

        Raises
        ------
        ConfigSyntaxError
            If the next characters are not a token.
        """
        self._skip_blanks()
        text, at = self._text, self._at
        if at >= len(text):
            return Token(TokenKind.END, "", self._line, self._column, at, at)
        byte = text[at : at + 1]
        if byte in b"\"'":
            return self._token(TokenKind.STRING, self._string_end())
        if match := _IDENTIFIER.match(text, at):
            return self._token(TokenKind.IDENTIFIER, match.end())
        if byte.isdigit():
            return self._number()
        if byte == b"." and text[at + 1 : at + 2].isdigit():
            # Other tokens that end in such a byte have raised an error already, or are strings.
            if at and (text[at - 1 : at].isalnum() or text[at - 1] == 0x5F):
                raise self._error("Need space between identifier and decimal point.")
            return self._number()
        if text[at] >= 0x80:
            raise self._error(f"Interpreting non ascii codepoint {text[at]}.")
        if text[at] < 0x20:
            raise self._error("Invalid control characters encountered in text.")
        return self._token(TokenKind.SYMBOL, at + 1)

    def _number(self) -> Token:
        text, at = self._text, self._at
        is_float = False
        if match := _HEX.match(text, at):
            self._check(bool(match[1]), match.end(), '"0x" must be followed by hex digits.')
        elif match := _OCTAL.match(text, at):
            octal = not text[match.end() : match.end() + 1].isdigit()
            self._check(octal, match.end(), "Numbers starting with leading zero must be in octal.")
        else:
            match = _DECIMAL.match(text, at)
            assert match is not None
            _, exponent, exponent_digits, _ = match.groups()
            is_float = any(part is not None for part in match.groups())
            if exponent is not None:
                self._check(bool(exponent_digits), match.end(2), '"e" must be followed by exponent.')
        end = match.end()
        self._check(not _IDENTIFIER.match(text, end), end, "Need space between number and identifier.")
        if text[end : end + 1] == b".":
            self._check(not is_float, end, "Already saw decimal point or exponent; can't have another one.")
            self._check(False, end, "Hex and octal numbers must be integers.")
        return self._token(TokenKind.FLOAT if is_float else TokenKind.INTEGER, end)

    def _check(self, ok: bool, end: int, complaint: str) -> None:
        if not ok:
            self._advance(end)
            raise self._error(complaint)

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
                raise self._error("String literals cannot cross line boundaries.")
            if byte == 0x5C:
                position = self._escape_end(position)
            else:
                position += 1
        self._advance(position)
        raise self._error("Unexpected end of string.")

    def _escape_end(self, position: int) -> int:
        escape = _ESCAPE.match(self._text, position)
        if escape is not None:
            return escape.end()
        match, complaint = next(
            (match, message) for pattern, message in _BAD_ESCAPES if (match := pattern.match(self._text, position))
        )
        self._advance(match.end())
        raise self._error(complaint)

    def _token(self, kind: TokenKind, end: int) -> Token:
        text = self._text[self._at : end].decode("utf-8", "surrogateescape")
        token = Token(kind, text, self._line, self._column, self._at, end)
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

    def _error(self, detail: str) -> ConfigSyntaxError:
        return ConfigSyntaxError(self._line, self._column, detail)


def tokens_of(text: str) -> Iterator[Token]:
    """Yield the tokens of the text of a configuration, up to the first position where no token begins."""
    with contextlib.suppress(ConfigSyntaxError):
        yield from Tokenizer(text.encode("utf-8", "surrogateescape"))


def tokens_until(text: str, line: int, column: int) -> list[Token]:
    """Return the tokens up to the one at a position; empty if no token begins at an earlier position."""
    tokens: list[Token] = []
    for token in tokens_of(text):
        tokens.append(token)
        if (token.line, token.column) >= (line, column):
            return tokens
    return []


def string_value(literal: str) -> bytes:
    """Return the value of a string token, its quotes and escapes resolved."""
    raw = literal[1:-1].encode("utf-8", "surrogateescape")

    def resolve(match: re.Match[bytes]) -> bytes:
        simple, octal, hexadecimal, pair, short, long = match.groups()
        if simple is not None:
            return _ESCAPES[simple.decode()].encode()
        if octal is not None:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal is not None:
            return bytes([int(hexadecimal, 16)])
        if pair is not None:
            return bytes.fromhex((pair[:4] + pair[6:]).decode()).decode("utf-16-be").encode()
        codepoint = int(short or long, 16)
        # An escape that is not a code point is left as it was written.
        return chr(codepoint).encode("utf-8", "surrogatepass") if codepoint <= 0x10FFFF else b"\\U%08x" % codepoint

    return _ESCAPE.sub(resolve, raw)
