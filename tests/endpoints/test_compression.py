"""Content encodings, chosen and undone as Triton does it."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.endpoints.compression import choose_encoding, compress, decompress, is_long

DATA = b"a body " * 1000


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        (None, "identity"),
        ("", "identity"),
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip;q=0.5, deflate", "deflate"),
        ("gzip;q=0.5,deflate;q=0.6", "deflate"),
        ("identity, gzip", "identity"),
        ("identity;q=0.5, gzip", "gzip"),
        ("gzip;q=0", "identity"),
        ("*", "identity"),
        ("br, gzip", "gzip"),
        ("GZIP, deflate;q=0.1", "deflate"),
        ("gzip;q=abc", "identity"),
        ("gzip;q=0.5;x=1", "gzip"),
        ("gzip; q=0.5", "identity"),
        ("gzip , deflate;q=0.1", "deflate"),
    ],
)
def test_encoding_with_the_highest_weight_is_chosen_then_the_first(accepted: str | None, encoding: str) -> None:
    assert choose_encoding(accepted) == encoding


@pytest.mark.parametrize("name", ["gzip", "deflate"])
@pytest.mark.parametrize("packed", [gzip.compress(DATA), zlib.compress(DATA)], ids=["gzip", "zlib"])
def test_model_format_is_detected_from_the_data(name: str, packed: bytes) -> None:
    assert decompress(packed, name, 10_000) == DATA


@pytest.mark.parametrize("name", [None, "identity"])
def test_unencoded_body_is_not_changed(name: str | None) -> None:
    assert decompress(DATA, name, 1) is DATA


@pytest.mark.parametrize("name", ["br", "GZIP", "", "gzip, deflate"])
def test_unknown_compression_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"^Unsupported compression type$"):
        decompress(DATA, name, 10_000)


def test_empty_body_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^nothing to be decompressed$"):
        decompress(b"", "gzip", 10_000)


def test_malformed_compressed_data_yields_the_readable_part() -> None:
    assert decompress(b"garbage", "gzip", 10_000) == b""
    assert DATA.startswith(decompress(gzip.compress(DATA)[:-10], "gzip", 10_000))
    broken = bytearray(zlib.compress(bytes(range(256)) * 500, 0))  # stored in blocks, with their lengths
    second = 7 + int.from_bytes(broken[3:5], "little")
    broken[second + 1] ^= 1
    assert decompress(broken, "deflate", 1_000_000) == (bytes(range(256)) * 500)[: second - 7]


def test_decompressed_body_beyond_the_limit_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"exceeds the maximum allowed value of 6999 bytes\."):
        decompress(gzip.compress(DATA), "gzip", 6999)
    assert decompress(gzip.compress(DATA), "gzip", 7000) == DATA


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_malformed_compressed_data_does_not_exceed_the_limit(name: str) -> None:
    broken = compress(bytes(10_000_000), name)[:-12] + b"?" * 12
    with pytest.raises(InvalidArgumentError, match=r"exceeds the maximum allowed value of 70000 bytes\."):
        decompress(broken, name, 70_000)


def test_compression_round_trips() -> None:
    assert gzip.decompress(compress(DATA, "gzip")) == DATA
    assert zlib.decompress(compress(DATA, "deflate")) == DATA


@given(st.binary(max_size=64), st.integers(0, 3000))
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_body_of_any_size_is_restored(encoding: str, part: bytes, repetitions: int) -> None:
    body = part * repetitions
    compressed = compress(body, encoding)
    assert (gzip.decompress if encoding == "gzip" else zlib.decompress)(compressed) == body
    assert len(compressed) <= len(zlib.compress(body)) + 12 + len(body) // 100  # of a gzip header, and a small window


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (gzip.compress(bytes(1000), mtime=0), False),
        (gzip.compress(bytes(1 << 20), mtime=0), False),
        (gzip.compress(bytes((1 << 20) + 1), mtime=0), True),
        (zlib.compress(bytes(1 << 26)), True),
        (b"x" * 1000, False),
        (b"x" * (1 << 17), True),
        (b"", False),
    ],
)
def test_long_bodies_are_recognized(body: bytes, expected: bool) -> None:
    assert is_long(body) is expected
