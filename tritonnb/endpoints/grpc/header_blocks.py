"""Header blocks of HTTP/2 (HPACK, RFC 7541): reading those of clients, and fields for our own.

A client's requests nearly always have the same headers, so a block that was read before is not read again while
the table that it refers to is the same.
"""

from __future__ import annotations

from hpack import Decoder

Headers = dict[str, str]

_MOST_KNOWN = 64


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
        """
        found = self._known.get(block)
        if found is not None:
            return found
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = len(entries), table.maxsize, entries[0] if entries else None
        headers: Headers = {}
        for raw_name, raw_value in self._decoder.decode(block, raw=True):
            name, value = bytes(raw_name).decode("latin-1"), bytes(raw_value).decode("latin-1")
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        if before != (len(entries), table.maxsize, entries[0] if entries else None):
            self._known.clear()
        elif len(self._known) < _MOST_KNOWN:
            self._known[block] = headers
        return headers


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
