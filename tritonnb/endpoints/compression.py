"""Content encodings of inference requests and responses, gzip and deflate, and the compression of gRPC messages."""

from __future__ import annotations

import functools
import re
import zlib

from tritonnb.core.errors import InvalidArgumentError, UnsupportedError

_LEADING_NUMBER = re.compile(r"\s*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf)")
#: Makes zlib detect from the data whether it has a zlib or a gzip header.
_EITHER_HEADER = 32 + zlib.MAX_WBITS
#: Makes zlib write a gzip header.
_GZIP_HEADER = 16
#: The smallest window of zlib, as a power of two, and the bytes of a window that matches do not reach.
_MIN_WBITS, _LOOKAHEAD = 9, 262
#: Decompressed bytes, which take a few milliseconds, up to which data is decompressed on the event loop. More of them
#: are decompressed on another thread, for which zlib releases Python's lock.
_ON_LOOP = 1 << 20


def decompress(
    body: bytes | bytearray | memoryview, encoding: str | None, limit: int
) -> bytes | bytearray | memoryview:
    """Remove the content encoding of a request body.

    Corrupt data decompresses to the bytes before the error, possibly none, as on Triton.

    Parameters
    ----------
    body : bytes
    encoding : str or None
        ``Content-Encoding``: ``gzip``, ``deflate``, ``identity`` or None.
    limit : int
        The limit of the decompressed body, in bytes.

    Raises
    ------
    UnsupportedError, InvalidArgumentError
        If the encoding is unknown, or the body is empty or too large.
    """
    if encoding is None or encoding == "identity":
        return body
    if encoding not in ("gzip", "deflate"):
        raise UnsupportedError("Unsupported compression type")
    if not body:
        raise InvalidArgumentError("nothing to be decompressed")
    stream = zlib.decompressobj(_EITHER_HEADER)
    try:
        # One byte more than the limit shows that it is exceeded, and a bomb of 1 GiB is not decompressed any further.
        plain = stream.decompress(body, limit + 1)
    except zlib.error:
        plain = _decompress_corrupt(body, limit + 1)
    if len(plain) > limit:
        raise InvalidArgumentError(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. Use "
            "--http-max-input-size to increase the limit."
        )
    return plain


def is_long(body: bytes | bytearray | memoryview) -> bool:
    """Return whether a compressed body takes long to decompress."""
    if len(body) > _ON_LOOP:
        return True
    stream = zlib.decompressobj(_EITHER_HEADER)
    try:
        stream.decompress(body, _ON_LOOP)
    except zlib.error:
        return len(body) > _ON_LOOP // 16  # corrupt data is decompressed in small steps
    return bool(stream.unconsumed_tail)


def _decompress_corrupt(body: bytes | bytearray | memoryview, limit: int) -> bytes:
    """Decompress as much corrupt data as possible, but not more than ``limit`` bytes."""
    stream = zlib.decompressobj(_EITHER_HEADER)
    plain = bytearray()
    offset, step = 0, 1 << 16
    while step and len(plain) < limit:
        # zlib loses the output of the call in which it meets an error, so the state before it is kept, and the step is
        # halved until the error is isolated.
        before = stream.copy()
        try:
            plain += stream.decompress(body[offset : offset + step], limit - len(plain))
            offset += step
        except zlib.error:
            stream, step = before, step // 2
    return bytes(plain)


@functools.lru_cache(maxsize=64)  # clients send a few values only
def choose_encoding(accepted: str | None) -> str:
    """Choose a content encoding from ``Accept-Encoding``: ``gzip``, ``deflate``, or ``identity``.

    The highest weight wins; among equal weights, the first. Unknown names are ignored; on Triton these include names
    followed by a blank.

    Examples
    --------
    >>> choose_encoding("gzip;q=0.5, deflate")
    'deflate'
    """
    best, best_weight = "identity", 0.0
    # Names are compared as Triton does: exactly, in lower case, and `*` means nothing. RFC 9110 would have it
    # otherwise.
    for entry in (accepted or "").split(","):
        name, has_weight, quality = entry.lstrip(" ").partition(";q=")
        weight = _weight(quality) if has_weight else 1.0
        # Strictly greater: a weight of 0 never wins, and the first of equal weights stays.
        if name in ("identity", "deflate", "gzip") and weight > best_weight:
            best, best_weight = name, weight
    return best


def compress(body: bytes, encoding: str, level: int = zlib.Z_DEFAULT_COMPRESSION) -> bytes:
    """Encode a body with ``gzip`` or ``deflate``.

    The window is as large as the body needs: zlib clears the whole window, which takes longer than a short body.

    Parameters
    ----------
    body : bytes
    encoding : str
    level : int, optional
        From 1 (fast) to 9 (small); by default zlib's level, as on Triton.
    """
    bits = min(zlib.MAX_WBITS, max(_MIN_WBITS, (len(body) + _LOOKAHEAD).bit_length()))
    memory = min(zlib.DEF_MEM_LEVEL, bits - 7)  # zlib's ``memLevel``: the size of the tables that belong to the window
    stream = zlib.compressobj(level, wbits=bits + _GZIP_HEADER * (encoding == "gzip"), memLevel=memory)
    return stream.compress(body) + stream.flush()


def _weight(quality: str) -> float:
    number = _LEADING_NUMBER.match(quality)
    return float(number.group()) if number else 0.0
