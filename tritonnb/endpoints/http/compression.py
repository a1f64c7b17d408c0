"""Content encodings of inference requests and answers: gzip and deflate."""

from __future__ import annotations

import gzip
import re
import zlib

from tritonnb.core.errors import InvalidArgumentError, UnsupportedError

_LEADING_NUMBER = re.compile(r"\s*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf)")
#: Let zlib see from the data whether it has a zlib or a gzip header.
_EITHER_HEADER = 32 + zlib.MAX_WBITS


def decompress(body: bytes | bytearray, encoding: str | None, limit: int) -> bytes | bytearray:
    """A request body without its content encoding.

    Data that is broken decompresses to what could be read, which may be nothing, as Triton does it.

    Parameters
    ----------
    body : bytes
    encoding : str or None
        ``Content-Encoding``; exactly ``gzip`` or ``deflate``, or none.
    limit : int
        Bytes that it may decompress to.

    Raises
    ------
    UnsupportedError, InvalidArgumentError
        If the encoding is unknown, or the body is not encoded so.
    """
    if encoding is None or encoding == "identity":
        return body
    if encoding not in ("gzip", "deflate"):
        raise UnsupportedError("Unsupported compression type")
    if not body:
        raise InvalidArgumentError("nothing to be decompressed")
    stream = zlib.decompressobj(_EITHER_HEADER)
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error:
        return _what_can_be_read(body)
    if len(plain) > limit:
        raise InvalidArgumentError(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. Use "
            "--http-max-input-size to increase the limit."
        )
    return plain


def _what_can_be_read(body: bytes | bytearray) -> bytes:
    """What broken data decompresses to before the byte at which it breaks."""
    stream = zlib.decompressobj(_EITHER_HEADER)
    plain = bytearray()
    at, step = 0, 1 << 16
    while step:
        before = stream.copy()
        try:
            plain += stream.decompress(body[at : at + step])
            at += step
        except zlib.error:
            stream, step = before, step // 2
    return bytes(plain)


def choose_encoding(accepted: str | None) -> str:
    """What ``Accept-Encoding`` asks for: ``gzip``, ``deflate``, or ``identity``.

    The highest weight wins, among equal ones the first. Names that are not known do not count, and
    Triton knows none that is followed by a blank.

    Examples
    --------
    >>> choose_encoding("gzip;q=0.5, deflate")
    'deflate'
    """
    best, best_weight = "identity", 0.0
    for entry in (accepted or "").split(","):
        name, has_weight, given = entry.lstrip(" ").partition(";q=")
        weight = _weight(given) if has_weight else 1.0
        if name in ("identity", "deflate", "gzip") and weight > best_weight:
            best, best_weight = name, weight
    return best


def compress(body: bytes, encoding: str) -> bytes:
    """A body in a content encoding."""
    return gzip.compress(body, mtime=0) if encoding == "gzip" else zlib.compress(body)


def _weight(given: str) -> float:
    found = _LEADING_NUMBER.match(given)
    return float(found.group()) if found else 0.0
