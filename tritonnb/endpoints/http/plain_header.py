"""The JSON of an inference request, decoded straight into typed values.

Most requests are plain: ASCII without escapes, with the members that the protocol defines, each once and of its type.
`decode` reads these in a tenth of the time of `tritonnb.endpoints.http.json_reader`, which reads all others, and knows
the errors.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

# msgspec checks the bounds while it decodes; a dimension beyond them is not plain, and the strict reader has the error.
_Dim = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


# `gc=False`: these objects live for one request and refer to nothing that could refer back, so the collector need not
# visit them.
class PlainInput(Struct, forbid_unknown_fields=True, gc=False):
    """An input; its contents are in ``data``, or where a parameter says."""

    name: str
    datatype: str
    shape: list[_Dim]
    parameters: dict[str, _Int64 | str | bool] | UnsetType = UNSET
    data: list[Any] | UnsetType = UNSET


class PlainOutput(Struct, forbid_unknown_fields=True, gc=False):
    """A requested output."""

    name: str
    parameters: dict[str, _Int64 | str | bool] | UnsetType = UNSET


class PlainHeader(Struct, forbid_unknown_fields=True, gc=False):
    """A whole request."""

    inputs: list[PlainInput]
    id: str | UnsetType = UNSET
    parameters: dict[str, _Int64 | float | str | bool] | UnsetType = UNSET
    outputs: list[PlainOutput] | UnsetType = UNSET


# A bound method of one decoder, which is prepared once; `msgspec.json.decode` would look the type up each time.
decode = msgspec.json.Decoder(PlainHeader).decode
#: What `decode` raises if a request is not plain.
NOT_PLAIN = (msgspec.MsgspecError, ValueError, RecursionError)
