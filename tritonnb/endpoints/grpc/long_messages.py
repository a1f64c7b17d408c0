"""Long messages, which protobuf would parse in one call.

The call holds Python's lock, and thus the event loop, even on another thread: for a tenth of a second if 8 MB consist
of short fields. The number of fields is therefore limited, and the elements of tensors are parsed in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import service_pb2 as pb

M = TypeVar("M", bound=Message)

#: The most fields of a long message, and dimensions, not counting the elements of tensors.
MOST_FIELDS: Final = 1 << 16
#: Bytes of elements that are parsed in one call; a multiple of the size of a number.
PIECE: Final = 1 << 16
#: The types of fields on the wire, which are the last three bits of their tags: the size of a fixed one in bytes.
_VARINT, _DELIMITED, _FIXED = 0, 2, {1: 8, 5: 4}
#: The types of fields that are delimited; of another type, delimited values are an array of numbers.
_DELIMITED_TYPES: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)

_ELEMENTS: Final = pb.InferTensorContents.DESCRIPTOR
_INPUT: Final = pb.ModelInferRequest.INPUTS_FIELD_NUMBER << 3 | _DELIMITED
_CONTENTS: Final = pb.ModelInferRequest.InferInputTensor.CONTENTS_FIELD_NUMBER << 3 | _DELIMITED
_STRING: Final = pb.InferTensorContents.BYTES_CONTENTS_FIELD_NUMBER << 3 | _DELIMITED
_FLOATS: Final = tuple(_ELEMENTS.fields_by_name[name].number << 3 for name in ("fp32_contents", "fp64_contents"))


class _Field(NamedTuple):
    """A field of a message: its tag, and where the field begins, its value begins, and both end."""

    tag: int
    start: int
    value: int
    end: int


def read_long(message: memoryview, kind: type[M]) -> M:
    """Parse a message.

    Raises
    ------
    DecodeError
        If it cannot be parsed.
    InvalidArgumentError
        If it has too many fields.
    """
    pieces: list[tuple[int, memoryview | bytes]] = []
    try:
        _check_fields(message, kind.DESCRIPTOR)
        rest = _without_elements(message, pieces) if kind.DESCRIPTOR is pb.ModelInferRequest.DESCRIPTOR else message
    except IndexError:  # a field is cut off
        raise DecodeError from None
    read: Any = kind.FromString(bytes(rest))
    for index, piece in pieces:
        read.inputs[index].contents.MergeFromString(bytes(piece))
    return cast("M", read)


def _check_fields(message: memoryview, descriptor: Descriptor) -> None:
    count = 0
    messages = [(message, descriptor)]
    while messages:
        view, descriptor = messages.pop()
        for field in _fields(view):
            count += 1
            known = descriptor.fields_by_number.get(field.tag >> 3)
            if known is not None and field.tag & 7 == _DELIMITED:
                inner = known.message_type
                if inner is not None and inner is not _ELEMENTS:
                    messages.append((view[field.value : field.end], inner))
                elif known.type not in _DELIMITED_TYPES:
                    count += field.end - field.value  # at least as many as there are numbers
            if count > MOST_FIELDS:
                raise InvalidArgumentError(
                    f"expected a message of at most {MOST_FIELDS} fields besides the elements of tensors, got more"
                )


def _without_elements(message: memoryview, pieces: list[tuple[int, memoryview | bytes]]) -> bytes:
    """Return an inference request with empty contents; add the contents to the pieces, with the index of the input."""
    parts: list[memoryview | bytes] = []
    inputs = 0
    for field in _fields(message):
        if field.tag == _INPUT:
            tensor = message[field.value : field.end]
            emptied = []
            for member in _fields(tensor):
                if member.tag == _CONTENTS:
                    emptied.append(_delimited(_CONTENTS, b""))
                    pieces += [(inputs, piece) for piece in _pieces(tensor[member.value : member.end])]
                else:
                    emptied.append(bytes(tensor[member.start : member.end]))
            parts.append(_delimited(_INPUT, b"".join(emptied)))
            inputs += 1
        else:
            parts.append(message[field.start : field.end])
    return b"".join(parts)


def _pieces(contents: memoryview) -> Iterator[memoryview | bytes]:
    """Yield messages that have the elements of typed contents together."""
    start = at = 0
    size = len(contents)
    while at < size:
        if contents[at] == _STRING and contents[at + 1] < 128:  # most elements, a million of them in a second
            at += 2 + contents[at + 1]
        else:
            tag, _, value, end = next(_fields(contents[at:]))
            if tag & 7 == _DELIMITED and tag != _STRING and end > PIECE:
                yield contents[start:at]
                yield from _numbers(tag, contents[at + value : at + end])
                start = at + end
            at += end
        if at - start >= PIECE:
            yield contents[start:at]
            start = at
    if at > size:
        raise IndexError
    yield contents[start:]


def _numbers(tag: int, numbers: memoryview) -> Iterator[bytes]:
    """Yield the field of an array of numbers as several fields."""
    start = 0
    while start < len(numbers):
        end = min(start + PIECE, len(numbers))
        while tag & ~7 not in _FLOATS and end < len(numbers) and numbers[end - 1] >= 128:  # within a number
            end += 1
        yield _delimited(tag, bytes(numbers[start:end]))
        start = end


def _fields(message: memoryview) -> Iterator[_Field]:
    """Yield the fields of a message; raises IndexError if one is cut off. The end of a group counts as a field."""
    at = 0
    while at < len(message):
        start = at
        tag, value = _varint(message, at)
        kind = tag & 7
        if kind == _DELIMITED:
            size, value = _varint(message, value)
            at = value + size
        elif kind == _VARINT:
            _, at = _varint(message, value)
        else:
            at = value + _FIXED.get(kind, 0)
        if at > len(message):
            raise IndexError
        yield _Field(tag, start, value, at)


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a number, and the offset after it."""
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _delimited(tag: int, value: bytes) -> bytes:
    head = bytearray()
    for number in (tag, len(value)):
        while number > 127:
            head.append(number & 127 | 128)
            number >>= 7
        head.append(number)
    return bytes(head) + value
