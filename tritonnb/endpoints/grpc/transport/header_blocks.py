"""Header blocks of HTTP/2 (HPACK, RFC 7541): reading those of clients, and fields for our own.

A client's requests nearly always have the same headers, so a block that was read before is not read again while
the table that it refers to is the same.
"""

from __future__ import annotations

import re

from hpack import Decoder

Headers = dict[str, str]

_MOST_KNOWN = 64
_NAME = re.compile(r":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_NO_VALUE = re.compile(r"[\0\r\n]")
_OF_REQUESTS = {":method", ":scheme", ":path", ":authority", ":protocol"}
_OF_CONNECTIONS = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}


class MalformedHeadersError(Exception):
    """A header block can be read, but does not make a message (RFC 9113, 8.2 and 8.3)."""


class HeaderBlocks:
    """Reads the header blocks of one connection, which must all be shown to it, in order."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._known: dict[bytes, Headers] = {}

    def read(self, block: bytes) -> Headers:
        """The fields of a block; not to be changed.

        Raises
        ------
        hpack.HPACKError
            If the block cannot be decoded.
        MalformedHeadersError
            If a field is none that a request may have.
        """
        found = self._known.get(block)
        if found is not None:
            return found
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = len(entries), table.maxsize, entries[0] if entries else None
        headers: Headers = {}
        well_formed = True
        for raw_name, raw_value in self._decoder.decode(block, raw=True):
            name, value = bytes(raw_name).decode("latin-1"), bytes(raw_value).decode("latin-1")
            well_formed = well_formed and _belongs(name, value, headers)
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        if ":method" in headers and not (":scheme" in headers and ":path" in headers):
            well_formed = False
        if before != (len(entries), table.maxsize, entries[0] if entries else None):
            self._known.clear()
        elif len(self._known) < _MOST_KNOWN and well_formed:
            self._known[block] = headers
        if not well_formed:
            raise MalformedHeadersError
        return headers


def _belongs(name: str, value: str, before: Headers) -> bool:
    """Whether a field may follow others."""
    if not _NAME.fullmatch(name) or _NO_VALUE.search(value):
        return False
    if name[0] == ":":
        return name in _OF_REQUESTS and name not in before and all(each[0] == ":" for each in before)
    return name not in _OF_CONNECTIONS and (name != "te" or value == "trailers")


def literal(name: str, value: bytes) -> bytes:
    """A header field that no table remembers (RFC 7541, 6.2.2)."""
    return b"\x00" + _string(name.encode()) + _string(value)


def _string(value: bytes) -> bytes:
    length = len(value)
    if length < 127:
        return bytes([length]) + value
    encoded, length = bytearray([127]), length - 127
    while length >= 128:
        encoded.append(length % 128 + 128)
        length //= 128
    encoded.append(length)
    return bytes(encoded) + value
