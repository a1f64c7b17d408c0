"""The number of fields of long messages, which protobuf parses in one call.

The call holds Python's lock, and thus the event loop, even on another thread: for a tenth of a second if 8 MB consist
of short fields.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import Descriptor

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import service_pb2 as pb

#: The most fields of a long message, not counting the elements of tensors.
MOST_FIELDS: Final = 1 << 16
_ELEMENTS = pb.InferTensorContents.DESCRIPTOR
#: The types of fields on the wire: the size of a fixed one in bytes.
_VARINT, _DELIMITED = 0, 2
_FIXED: Final = {1: 8, 5: 4}


def check_fields(message: memoryview, descriptor: Descriptor) -> None:
    """Check the number of fields of a message and of the messages in it.

    A message that is not valid has a valid number, unless it is found before the error.

    Raises
    ------
    InvalidArgumentError
        If there are too many.
    """
    count = 0
    messages = [(message, descriptor)]
    while messages:
        view, descriptor = messages.pop()
        at = 0
        try:
            while at < len(view):
                tag, at = _varint(view, at)
                count += 1
                if tag & 7 == _DELIMITED:
                    size, at = _varint(view, at)
                    field = descriptor.fields_by_number.get(tag >> 3)
                    inner = None if field is None else field.message_type
                    if inner is not None and inner is not _ELEMENTS:
                        messages.append((view[at : at + size], inner))
                    at += size
                elif tag & 7 == _VARINT:
                    _, at = _varint(view, at)
                else:
                    at += _FIXED.get(tag & 7, 0)
                if count > MOST_FIELDS:
                    raise InvalidArgumentError(
                        f"expected a message of at most {MOST_FIELDS} fields besides the elements of tensors, got more"
                    )
        except IndexError:  # protobuf has the error
            return


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
