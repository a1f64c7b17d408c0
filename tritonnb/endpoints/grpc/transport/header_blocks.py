"""Header blocks of HTTP/2 (HPACK, RFC 7541): reading those of clients, and writing fields.

A client's requests nearly always have the same headers, so the fields of a block are cached until the table that blocks
refer to changes.
"""

from __future__ import annotations

import re

from hpack import Decoder

from tritonnb.endpoints.bounded_cache import BoundedCache

Headers = dict[str, str]

_MAX_BLOCKS = 64
_NAME = re.compile(r":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_NO_VALUE = re.compile(r"[\0\r\n]")
_REQUEST_PSEUDO_HEADERS = {":method", ":scheme", ":path", ":authority", ":protocol"}
_CONNECTION_HEADERS = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}


class MalformedHeadersError(Exception):
    """A header block can be decoded, but is malformed (RFC 9113, 8.2 and 8.3)."""


class HeaderBlocks:
    """Decodes all header blocks of one connection, in order.

    Parameters
    ----------
    limit : int, optional
        The number of blocks that are cached.
    """

    def __init__(self, limit: int = _MAX_BLOCKS) -> None:
        self._decoder = Decoder()
        self._cache: BoundedCache[bytes, Headers] = BoundedCache(limit)

    def read(self, block: bytes) -> Headers:
        """Decode a block; the result must not be changed.

        Raises
        ------
        hpack.HPACKError
            If the block cannot be decoded.
        MalformedHeadersError
            If a field is not valid in a request.
        """
        cached = self._cache.get(block)
        if cached is not None:
            return cached
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = len(entries), table.maxsize
        newest = entries[0] if entries else None
        headers: Headers = {}
        well_formed = True
        for raw_name, raw_value in self._decoder.decode(block, raw=True):
            name, value = bytes(raw_name).decode("latin-1"), bytes(raw_value).decode("latin-1")
            well_formed = well_formed and _is_valid_field(name, value, headers)
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        if ":method" in headers and not (":scheme" in headers and ":path" in headers):
            well_formed = False
        # Compared by identity: a new entry that equals the newest one may have dropped another.
        if before != (len(entries), table.maxsize) or newest is not (entries[0] if entries else None):
            self._cache.clear()
        elif well_formed and self._cache.admits(block):
            self._cache.store(block, headers)
        if not well_formed:
            raise MalformedHeadersError
        return headers


def _is_valid_field(name: str, value: str, before: Headers) -> bool:
    """Whether a field is valid after the fields before it."""
    if not _NAME.fullmatch(name) or _NO_VALUE.search(value):
        return False
    if name[0] == ":":
        return name in _REQUEST_PSEUDO_HEADERS and name not in before and all(earlier[0] == ":" for earlier in before)
    return name not in _CONNECTION_HEADERS and (name != "te" or value == "trailers")


def literal(name: str, value: bytes) -> bytes:
    """Encode a header field without adding it to the table (RFC 7541, 6.2.2)."""
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
