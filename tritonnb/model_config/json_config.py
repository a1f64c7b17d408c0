"""A configuration as JSON: the ``config`` parameter of the load API, dicts and keyword arguments.

This is protobuf's JSON mapping as the C++ library in Triton implements it: names in snake_case or camelCase, integers
or as strings, enum names in any case, a single value for a list with one element, ``null`` for an unset field.
Python's implementation is stricter and has other error messages.

The load API reports the messages of the C++ library. Python code gets the path of the field, what was expected, and the
actual value.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from tritonnb.core.errors import InvalidArgumentError, Problem
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import similar_name_hint
from tritonnb.model_config.fields import INTEGER_BITS, Scalar, expected_value, hint_for, is_map, shown_value
from tritonnb.model_config.json_text import JsonObject, JsonSyntaxError, ParsedJson, json_value, read_json

#: The names of scalar types in messages, such as ``TYPE_INT32``.
_TYPE_NAMES = {number: name for name, number in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
_BOOLEANS = dict.fromkeys(("true", "t", "yes", "y", "1"), True) | dict.fromkeys(("false", "f", "no", "n", "0"), False)
_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
#: The beginning of every message.
COMPLAINT = "Invalid config override: "
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,20})")  # longer numbers are beyond 64 bits
# Digits that are taken are kept: to divide them between the two repetitions in every way would be quadratic.
_DECIMAL = re.compile(r"[+-]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+(\.[0-9a-fA-F]*)?([pP][+-]?[0-9]+)?")
_LARGEST_FLOAT = 3.4028235677973362e38  # what is larger rounds to infinity


def parse_json(text: str) -> pb.ModelConfig:
    """Parse a configuration given as JSON.

    Raises
    ------
    InvalidArgumentError
        ``Invalid config override: …``, with the message of protobuf's C++ library and a hint.
    """
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8, as surrogate escapes
        raise InvalidArgumentError(f"{COMPLAINT}Encountered non UTF-8 code points.") from None
    try:
        value = read_json(text)
    except JsonSyntaxError as error:
        raise InvalidArgumentError(COMPLAINT + str(error)) from error
    config = pb.ModelConfig()
    writer = _MessageWriter()
    if isinstance(value, JsonObject):
        writer.message(config, value, "")
    else:
        writer.complaint = ": Root element must be a message."
        writer.problem = Problem(writer.complaint, hint="give a JSON object, {...}")
    if writer.complaint:
        raise InvalidArgumentError(COMPLAINT + writer.complaint, problems=[writer.problem])
    return config


def set_fields(message: Message, fields: Mapping[str, object], path: str = "") -> None:
    """Set fields of a message from Python values with the rules of JSON; other fields are unchanged.

    Parameters
    ----------
    message : Message
        `inference.ModelConfig` or a part of it.
    fields : mapping of str to object
        Numbers, strings, lists and dicts, even NumPy scalars and arrays.
    path : str, optional
        Path of the message in the configuration, for error messages.

    Raises
    ------
    InvalidArgumentError
        If a field does not exist, or a value has the wrong type.

    Examples
    --------
    >>> config = pb.ModelConfig()
    >>> set_fields(config, {"dynamic_batching": {"max_queue_delay_microseconds": "500"}})
    >>> config.dynamic_batching.max_queue_delay_microseconds
    500
    """
    writer = _MessageWriter()
    try:
        value = json_value(fields)
    except ValueError as error:
        raise InvalidArgumentError(f"configuration expected strings, numbers, lists and dicts, {error}") from None
    assert isinstance(value, JsonObject)
    writer.message(message, value, path)
    if writer.complaint:
        raise InvalidArgumentError(writer.problem.message, problems=[writer.problem])


class _MessageWriter:
    """A writer that puts JSON into a message; as in C++, the last error is reported.

    Attributes
    ----------
    complaint : str
        The message of the C++ library; empty without an error.
    problem : Problem
        The error as Python code gets it.
    """

    def __init__(self) -> None:
        self.complaint = ""
        self.problem = Problem("")

    def message(self, message: Message, value: JsonObject, path: str) -> None:
        fields = {name: field for field in message.DESCRIPTOR.fields for name in (field.json_name, field.name)}
        members_set: dict[str, str] = {}  # oneof: its member that was set, even if to null
        for name, member in value.members:
            field = fields.get(name)
            if not name:
                self._nameless(message, member, path)
            elif field is None:
                known = [descriptor.name for descriptor in message.DESCRIPTOR.fields]
                self._complain(
                    f"{_at(path)}{name}: Cannot find field.",
                    f"the configuration has no field '{_below(path, name)}'",
                    similar_name_hint(name, known),
                )
            elif member is not None and self._fits(field, name, member, path, members_set):
                if field.containing_oneof is not None:
                    members_set[field.containing_oneof.name] = name
                self._field(message, field, member, _below(path, field.name))

    def _nameless(self, message: Message, member: ParsedJson, path: str) -> None:
        if not path:
            self._complain(": Proto fields must have a name.", "the configuration has no field ''")
        elif member is not None and not isinstance(member, (JsonObject, list)):
            self._reject(member, f"type.googleapis.com/{message.DESCRIPTOR.full_name}", path, "a dict of fields")

    def _fits(
        self, field: FieldDescriptor, name: str, member: ParsedJson, path: str, members_set: dict[str, str]
    ) -> bool:
        """Check the kind of a value, and that no other member of the oneof is set; False after an error."""
        where = f"({path})" if path else ""
        oneof = field.containing_oneof
        mistake = _type_error(_below(path, name), expected_value(field), member)
        if oneof is not None and oneof.name in members_set:
            self._complain(
                f"{where}: invalid value oneof field '{oneof.name}' is already set. Cannot set '{name}' for type oneof",
                f"field '{_below(path, name)}' cannot be set together with '{_below(path, members_set[oneof.name])}'",
            )
        elif isinstance(member, list) and is_map(field):
            self._complain(
                f"{where}: invalid value Cannot bind a list to map for field '{name}'. for type Map", mistake
            )
        elif isinstance(member, list) and not field.is_repeated:
            self._complain(f"{_at(path)}{name}: Proto field is not repeating, cannot start list.", mistake)
        elif isinstance(member, JsonObject) and field.message_type is None:
            self._reject_object(field, path, mistake)
        else:
            return True
        return False

    def _field(self, message: Message, field: FieldDescriptor, member: ParsedJson, path: str) -> None:
        if is_map(field):
            self._map(message, field, member, path)
        elif field.is_repeated:
            elements = _flat(member) if isinstance(member, list) else [member]
            for index, element in enumerate(elements):
                here = f"{path}[{index}]" if isinstance(member, list) else path
                self._element(message, field, element, here)
        elif field.message_type is not None:
            child = getattr(message, field.name)
            child.SetInParent()
            self._child(child, field, member, path)
        else:
            scalar = self._scalar(field, member, path)
            if scalar is not None:
                setattr(message, field.name, scalar)

    def _element(self, message: Message, field: FieldDescriptor, value: ParsedJson, path: str) -> None:
        container = getattr(message, field.name)
        if value is None:
            return
        if field.message_type is not None:
            self._child(container.add(), field, value, path)
        elif isinstance(value, JsonObject):
            mistake = _type_error(path, expected_value(field), value)
            self._reject_object(field, path.rpartition("[")[0], mistake)
        elif (scalar := self._scalar(field, value, path)) is not None:
            container.append(scalar)

    def _child(self, child: Message, field: FieldDescriptor, value: ParsedJson, path: str) -> None:
        if isinstance(value, JsonObject):
            self.message(child, value, path)
        else:
            type_name = f"type.googleapis.com/{field.message_type.full_name}"
            self._reject(value, type_name, path, expected_value(field), hint_for(field, value))

    def _map(self, message: Message, field: FieldDescriptor, member: ParsedJson, path: str) -> None:
        container, entry = getattr(message, field.name), field.message_type
        key_field, value_field = entry.fields_by_name["key"], entry.fields_by_name["value"]
        if not isinstance(member, JsonObject):
            self._reject(member, f"type.googleapis.com/{entry.full_name}", path, expected_value(field))
            return
        seen: set[str] = set()
        for name, value in member.members:
            here = f"{path}[{len(seen)}]"
            if name in seen:
                self._complain(
                    f"({path}[{len(seen) - 1}]) {name}: Repeated map key: '{name}' is already set.",
                    f"field '{path}' expected every key once, got '{name}' twice",
                )
                continue
            seen.add(name)
            key = self._scalar(key_field, name, f"{here}.key")
            if key is None:
                continue
            mistake = _type_error(f"{path}[{name!r}]", expected_value(value_field), value)
            if isinstance(value, list) and value:
                self._complain(f"({here}.value) : Proto fields must have a name.", mistake)
            elif isinstance(value, list):
                complaint = f"invalid value Cannot have repeated items ('{name}') within a map. for type Map"
                self._complain(f"({here}.value): {complaint}", mistake)
            elif value_field.message_type is not None:
                container[key].SetInParent()
                if value is not None:
                    self._child(container[key], value_field, value, f"{here}.value")
            elif isinstance(value, JsonObject):
                self._complain("JSON transcoder produced invalid protobuf output.", mistake)
            else:
                scalar = (
                    value_field.default_value if value is None else self._scalar(value_field, value, f"{here}.value")
                )
                if scalar is not None:
                    container[key] = scalar

    def _scalar(self, field: FieldDescriptor, value: ParsedJson, path: str) -> Scalar | None:
        scalar = _scalar(field, value)
        if scalar is None:
            enum = field.enum_type
            type_name = _TYPE_NAMES[field.type] if enum is None else f"type.googleapis.com/{enum.full_name}"
            self._reject(value, type_name, path, expected_value(field), hint_for(field, value))
        return scalar

    def _reject_object(self, field: FieldDescriptor, path: str, mistake: str) -> None:
        where = f"({path})" if path else ""
        self._complain(f"{where}: invalid value Starting an object on a scalar field for type {field.name}", mistake)

    def _reject(self, value: ParsedJson, type_name: str, path: str, expected: str, hint: str = "") -> None:
        complaint = f"({path}): invalid value {_shown(value)} for type {type_name}"
        self._complain(complaint, _type_error(path, expected, value), hint)

    def _complain(self, complaint: str, mistake: str, hint: str = "") -> None:
        self.complaint, self.problem = complaint, Problem(mistake, hint=hint)


def _scalar(field: FieldDescriptor, value: ParsedJson) -> Scalar | None:
    """Return the value of a field; None if the JSON value does not have its type."""
    if field.cpp_type in INTEGER_BITS:
        return _integer(value, *INTEGER_BITS[field.cpp_type])
    if field.enum_type is not None:
        return _enum(value, field.enum_type)
    if field.type == FieldDescriptor.TYPE_BOOL:
        boolean = _BOOLEANS.get(value.lower()) if isinstance(value, str) else value
        return boolean if isinstance(boolean, bool) else None
    if field.type == FieldDescriptor.TYPE_STRING:
        return value if isinstance(value, str) else None
    return _float(value, _LARGEST_FLOAT if field.type == FieldDescriptor.TYPE_FLOAT else sys.float_info.max)


def _integer(value: ParsedJson, bits: int, signed: bool) -> int | None:
    if isinstance(value, str):
        value = _quoted_integer(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    end = 1 << (bits - signed)
    if isinstance(value, int) and not isinstance(value, bool) and (-end if signed else 0) <= value < end:
        return value
    return None


def _quoted_integer(text: str) -> int | str:
    """Return the integer that a string holds; the string itself, which is then rejected, if it holds none."""
    match = _INTEGER.fullmatch(text)
    return text if match is None else int("".join(match.groups()))


def _float(value: ParsedJson, largest: float) -> float | None:
    if isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = float(value)
    elif isinstance(value, str) and _HEXADECIMAL.fullmatch(value):
        value = float.fromhex(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= largest:
        return float(value)
    return None


def _enum(value: ParsedJson, enum: EnumDescriptor) -> int | None:
    if not isinstance(value, str):
        return _integer(value, 32, signed=True)
    name = value if value in enum.values_by_name else value.upper().replace("-", "_")
    if name in enum.values_by_name:
        return int(enum.values_by_name[name].number)
    number = _quoted_integer(value)
    return int(number) if number in enum.values_by_number else None


def _flat(elements: list[ParsedJson]) -> list[ParsedJson]:
    return [leaf for element in elements for leaf in (_flat(element) if isinstance(element, list) else [element])]


def _type_error(path: str, expected: str, value: ParsedJson) -> str:
    return f"field '{path}' expected {expected}, got {shown_value(value)}"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f"({path}) " if path else ""


def _shown(value: ParsedJson) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        short = f"{value:.15g}"
        return short if float(short) == value else f"{value:.17g}"
    return f'"{value}"' if isinstance(value, str) else str(value)
