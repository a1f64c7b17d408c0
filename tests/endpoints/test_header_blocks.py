"""Header blocks of HTTP/2 are read the same with the cache as without it."""

from __future__ import annotations

from hpack import Decoder, HPACKError
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.endpoints.grpc.transport.framing import HeaderBlocks, Headers

#: The size of a table that holds two entries with one byte each as name and value.
TWO_ENTRIES = b"\x3f" + bytes([2 * 34 - 31])


def added(name: bytes, value: bytes) -> bytes:
    """Encode a field and add it to the table (RFC 7541, 6.2.1)."""
    return b"\x40" + bytes([len(name)]) + name + bytes([len(value)]) + value


def indexed(index: int) -> bytes:
    """Encode a field of the table; 62 is the newest (RFC 7541, 6.1)."""
    return bytes([0x80 | index])


BLOCKS = st.sampled_from(
    (
        added(b"a", b"1"),
        added(b"b", b"1"),
        indexed(62),
        indexed(63),
        added(b"a", b"1") + indexed(63),
        b"\x20" + TWO_ENTRIES,  # empties the table
    )
)


def read_without_cache(decoder: Decoder, block: bytes) -> Headers | None:
    headers: Headers = {}
    try:
        fields = decoder.decode(block, raw=True)
    except HPACKError:
        return None
    for raw_name, raw_value in fields:
        name, value = bytes(raw_name).decode(), bytes(raw_value).decode()
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def read(blocks: HeaderBlocks, block: bytes) -> Headers | None:
    try:
        return blocks.read(block)
    except HPACKError:
        return None


@given(st.lists(BLOCKS, max_size=40))
def test_cached_and_uncached_header_decoders_agree(stream: list[bytes]) -> None:
    blocks, decoder = HeaderBlocks(), Decoder()
    for block in (TWO_ENTRIES, added(b"b", b"1"), added(b"a", b"1"), *stream):
        expected = read_without_cache(decoder, block)
        assert read(blocks, block) == expected
        if expected is None:
            return  # the connection is closed


def test_inserting_an_equal_field_evicts_the_oldest_entry_of_the_table() -> None:
    blocks = HeaderBlocks()
    for block in (TWO_ENTRIES, added(b"b", b"1"), added(b"a", b"1")):
        blocks.read(block)
    for _ in range(3):
        assert blocks.read(indexed(63)) == {"b": "1"}
    blocks.read(added(b"a", b"1"))
    assert blocks.read(indexed(63)) == {"a": "1"}
