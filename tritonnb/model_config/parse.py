"""Parsing *config.pbtxt* into ``inference.ModelConfig``, with the position of every field.

A parser for the protobuf text format, driven by the descriptors of NVIDIA's generated schema. It accepts and rejects
what protobuf's C++ parser does, which Triton uses, with the same messages, and it records the position and extent of
each field for the editor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.fields import INTEGER_BITS, Scalar, is_map
from tritonnb.model_config.tokens import ConfigSyntaxError, Token, Tokenizer, TokenKind, string_value

__all__ = ["ConfigSyntaxError", "ParsedConfig", "Statement", "Value", "parse_text"]

Position = tuple[int, int]
_MAX_DIGITS = 1000  # more than any 64-bit integer has, and below Python's conversion limit


@dataclass(slots=True)
class Value:
    """A value in the text: a scalar, or a message with its statements.

    ``start`` and ``end`` are offsets in bytes; those of a message include its braces. ``key`` is the
    key of a map entry.
    """

    start: int
    end: int = 0
    statements: list[Statement] = field(default_factory=list)
    key: Scalar | None = None

    def statements_of(self, name: str) -> list[Statement]:
        """Return the statements of a field."""
        return [statement for statement in self.statements if statement.name == name]


@dataclass(slots=True)
class Statement:
    """``name: value``, ``name { ... }`` or ``name: [ ... ]`` in the text.

    ``start`` and ``end`` are offsets in bytes; ``end`` is after the separator, if there is one. ``in_list`` is true if
    the values are in brackets; then ``list_end`` is after the closing one.
    """

    name: str
    start: int
    end: int = 0
    in_list: bool = False
    list_end: int = 0
    values: list[Value] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ParsedConfig:
    """A parsed configuration.

    Attributes
    ----------
    config : inference.ModelConfig
    positions : dict of str to (int, int)
        Line and column, from 1, of each field's name: ``"input[0].data_type"``.
    written : Value
        The text as a tree of statements.
    """

    config: pb.ModelConfig
    positions: dict[str, Position]
    written: Value


def parse_text(text: str | bytes) -> ParsedConfig:
    """Parse the text of a *config.pbtxt*.

    Raises
    ------
    ConfigSyntaxError
        With line, column, and the message that Triton logs.
    """
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    parser = _TextFormatParser(raw)
    try:
        return ParsedConfig(parser.config(), parser.positions, parser.written)
    except ConfigSyntaxError as error:
        error.statement = parser.statement
        raise


class _TextFormatParser:
    def __init__(self, text: bytes) -> None:
        self._tokenizer = Tokenizer(text)
        self._token: Token = self._tokenizer.next()
        self._end = 0  # of the last consumed token
        self.statement = 0  # start of the innermost statement
        self.positions: dict[str, Position] = {}
        self.written = Value(0, len(text))

    def config(self) -> pb.ModelConfig:
        config = pb.ModelConfig()
        while self._token.kind is not TokenKind.END:
            self._field(config, "", self.written)
        return config

    # --- fields ---------------------------------------------------------------------------------

    def _field(self, message: Message, path: str, into: Value) -> None:
        start = self._token
        self.statement = start.start
        if self._try("["):
            raise self._extension_error(message)
        name = self._identifier()
        descriptor = message.DESCRIPTOR.fields_by_name.get(name)
        if descriptor is None:
            raise self._error(f'Message type "{message.DESCRIPTOR.full_name}" has no field named "{name}".')
        self._check_not_set(message, descriptor, into)
        here = f"{path}.{name}" if path else name
        is_message = descriptor.type == FieldDescriptor.TYPE_MESSAGE
        if is_message:
            self._try(":")
        else:
            self._expect(":")
        statement = Statement(name, start.start)
        into.statements.append(statement)
        if descriptor.is_repeated and self._try("["):
            statement.in_list = True
            if not self._try("]"):
                statement.values.append(self._value(message, descriptor, here, start))
                while not self._try("]"):
                    self._expect(",")
                    statement.values.append(self._value(message, descriptor, here, start))
            statement.list_end = self._end
        else:
            statement.values.append(self._value(message, descriptor, here, start))
        self._separator()
        statement.end = self._end

    def _extension_error(self, message: Message) -> ConfigSyntaxError:
        """Return the error for an extension, ``[full.name]``: the schema has none."""
        name = self._identifier()
        while self._try("."):
            name += f".{self._identifier()}"
        self._expect("]")
        return self._error(
            f'Extension "{name}" is not defined or is not an extension of "{message.DESCRIPTOR.full_name}".'
        )

    def _check_not_set(self, message: Message, descriptor: FieldDescriptor, into: Value) -> None:
        if descriptor.is_repeated:
            return
        name = descriptor.name
        oneof = descriptor.containing_oneof
        if descriptor.has_presence or message.DESCRIPTOR.GetOptions().map_entry:
            is_set = bool(into.statements_of(name))
        else:
            is_set = getattr(message, name) != descriptor.default_value
        if is_set:
            raise self._error(f'Non-repeated field "{name}" is specified multiple times.')
        if oneof is not None and (other := message.WhichOneof(oneof.name)):
            raise self._error(
                f'Field "{name}" is specified along with field "{other}", another member of oneof "{oneof.name}".'
            )

    def _value(self, message: Message, descriptor: FieldDescriptor, path: str, start: Token) -> Value:
        name = descriptor.name
        if descriptor.is_repeated and not is_map(descriptor):
            path = f"{path}[{len(getattr(message, name))}]"
        self.positions.setdefault(path, (start.line, start.column))
        value = Value(self._token.start)
        if is_map(descriptor):
            self._map_entry(getattr(message, name), descriptor.message_type, path, value)
        elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            if descriptor.is_repeated:
                self._message(getattr(message, name).add(), path, value)
            else:
                child = getattr(message, name)
                child.SetInParent()
                self._message(child, path, value)
        elif descriptor.is_repeated:
            getattr(message, name).append(self._scalar(descriptor))
        else:
            setattr(message, name, self._scalar(descriptor))
        value.end = self._end
        return value

    def _message(self, message: Message, path: str, into: Value) -> None:
        end = self._open()
        while not self._looking_at("}", ">"):
            self._field(message, path, into)
        self._expect(end)

    def _map_entry(
        self, container: MutableMapping[Scalar, Any], entry_type: Descriptor, path: str, into: Value
    ) -> None:
        """Parse ``{ key: K value: V }``; both are optional, and the last entry with a key wins."""
        entry = entry_type._concrete_class()
        self._message(entry, path, into)
        into.key = entry.key
        if entry_type.fields_by_name["value"].message_type is not None:
            container[entry.key].CopyFrom(entry.value)
        else:
            container[entry.key] = entry.value

    # --- scalars --------------------------------------------------------------------------------

    def _scalar(self, descriptor: FieldDescriptor) -> Scalar:
        kind = descriptor.cpp_type
        if kind in INTEGER_BITS:
            return self._integer(*INTEGER_BITS[kind])
        return self._SCALARS[kind](self, descriptor)

    def _integer(self, bits: int, signed: bool) -> int:
        negative = signed and self._try("-")
        limit = (1 << (bits - signed)) - 1 + negative
        number = self._unsigned(limit)
        return -number if negative else number

    def _unsigned(self, limit: int) -> int:
        token = self._token
        if token.kind is not TokenKind.INTEGER:
            raise self._error(f"Expected integer, got: {token.text}")
        number = _integer_value(token.text) if len(token.text) < _MAX_DIGITS else limit + 1
        if number > limit:
            raise self._error(f"Integer out of range ({token.text})")
        self._next()
        return number

    def _float(self, descriptor: FieldDescriptor) -> float:
        sign = -1.0 if self._try("-") else 1.0
        token = self._token
        if token.kind is TokenKind.INTEGER:
            if token.text[0] == "0" and len(token.text) > 1:
                raise self._error(f"Expect a decimal number, got: {token.text}")
            value = float(token.text)
        elif token.kind is TokenKind.FLOAT:
            value = float(token.text.rstrip("fF"))
        elif token.kind is TokenKind.IDENTIFIER and token.text.lower() in ("inf", "infinity"):
            value = math.inf
        elif token.kind is TokenKind.IDENTIFIER and token.text.lower() == "nan":
            value = math.nan
        else:
            raise self._error(f"Expected double, got: {token.text}")
        self._next()
        return sign * value

    def _bool(self, descriptor: FieldDescriptor) -> bool:
        if self._token.kind is TokenKind.INTEGER:
            return bool(self._unsigned(1))
        word = self._identifier()
        if word in ("true", "True", "t"):
            return True
        if word in ("false", "False", "f"):
            return False
        raise self._error(f'Invalid value for boolean field "{descriptor.name}". Value: "{word}".')

    def _enum(self, descriptor: FieldDescriptor) -> int:
        if self._token.kind is TokenKind.IDENTIFIER:
            word = self._identifier()
            value = descriptor.enum_type.values_by_name.get(word)
            if value is None:
                raise self._error(f'Unknown enumeration value of "{word}" for field "{descriptor.name}".')
            return int(value.number)
        if self._token.kind is TokenKind.INTEGER or self._looking_at("-"):
            return self._integer(32, True)
        raise self._error(f"Expected integer or identifier, got: {self._token.text}")

    def _string(self, descriptor: FieldDescriptor) -> str:
        if self._token.kind is not TokenKind.STRING:
            raise self._error(f"Expected string, got: {self._token.text}")
        parts: list[bytes] = []
        while self._token.kind is TokenKind.STRING:
            parts.append(string_value(self._token.text))
            self._next()
        return b"".join(parts).decode("utf-8", "replace")

    _SCALARS: ClassVar[dict[int, Callable[[_TextFormatParser, FieldDescriptor], Scalar]]] = {
        FieldDescriptor.CPPTYPE_FLOAT: _float,
        FieldDescriptor.CPPTYPE_DOUBLE: _float,
        FieldDescriptor.CPPTYPE_BOOL: _bool,
        FieldDescriptor.CPPTYPE_ENUM: _enum,
        FieldDescriptor.CPPTYPE_STRING: _string,
    }

    # --- tokens ---------------------------------------------------------------------------------

    def _identifier(self) -> str:
        token = self._token
        if token.kind is not TokenKind.IDENTIFIER:
            raise self._error(f"Expected identifier, got: {token.text}")
        self._next()
        return token.text

    def _open(self) -> str:
        if self._try("<"):
            return ">"
        self._expect("{")
        return "}"

    def _looking_at(self, *symbols: str) -> bool:
        return self._token.kind is TokenKind.SYMBOL and self._token.text in symbols

    def _try(self, symbol: str) -> bool:
        if not self._looking_at(symbol):
            return False
        self._next()
        return True

    def _expect(self, symbol: str) -> None:
        if not self._try(symbol):
            raise self._error(f'Expected "{symbol}", found "{self._token.text}".')

    def _separator(self) -> None:
        if not self._try(";"):
            self._try(",")

    def _next(self) -> None:
        self._end = self._token.end
        self._token = self._tokenizer.next()

    def _error(self, detail: str) -> ConfigSyntaxError:
        return ConfigSyntaxError(self._token.line, self._token.column, detail)


def _integer_value(text: str) -> int:
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    return int(text, 8) if text[0] == "0" and len(text) > 1 else int(text)
