"""JSON documents, read with the rules and the error texts of Triton's JSON library, RapidJSON.

Python's `json` reads the documents that it accepts, which is the common case. Any other is checked by RapidJSON
itself (the package ``python-rapidjson``), which reports the reason and the offset, or accepts what only RapidJSON
accepts (``Inf``, a byte order mark, a NUL as the end).

The values always come from Python's reader, because RapidJSON's binding refuses bytes that are not UTF-8.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import string
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import rapidjson

from tritonnb.core.errors import InternalError, InvalidArgumentError

_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")

# Python reads a number beyond the range of a double as infinity; RapidJSON refuses it. Such a number has three
# digits in its exponent, or with an exponent of two digits at least 210 digits before the point. Both are searched for
# with all digits replaced by zeros.
_ZEROED = bytes(ord("0") if chr(byte).isdecimal() else ord("e") if byte == ord("E") else byte for byte in range(256))
_LARGE_EXPONENT = b"0e000"
_LONG = b"0" * 210

# RapidJSON accepts any byte above 127 in a string, and none elsewhere. Replacing them keeps offsets.
_ASCII_ONLY = bytes(byte if byte < 128 else ord("?") for byte in range(256))
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NUMBER_MODE = rapidjson.NM_NATIVE | rapidjson.NM_NAN
_ERROR = re.compile(r"Parse error at offset (\d+): (.*)")
#: What newer versions of RapidJSON than Triton's report for a control character in a string.
_NEWER_REASONS = {"Invalid encoding in string.": "Invalid escape character in string."}
#: Both readers are recursive. No member of a request is nested this deep, so what is deeper need not be read.
_MAX_DEPTH = 256
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
#: How each byte changes the depth.
_DEPTH_CHANGES = np.array([(byte in b"[{") - (byte in b"]}") for byte in range(256)], np.int8)
#: Bytes of a document that are looked at together: their depths fit into a processor's cache.
_SLICE = 1 << 18
# A string that begins is taken to its end and never again: a search that starts anew within it would be quadratic.
_STRING_OR_SPECIAL = re.compile(r'"(?:[^"\\]++|\\.)*+"|Inf(?!inity)|-NaN')
#: Numbers that only RapidJSON reads, as Python spells them.
_PYTHON_SPELLING = {"Inf": "Infinity", "-NaN": "NaN"}


def parse(raw: bytes | bytearray) -> object:
    """Parse a JSON document.

    If an object has several members with the same name, the first counts: see `RepeatedMembers`.

    Parameters
    ----------
    raw : bytes
        Bytes that are not UTF-8 become surrogate escapes.

    Returns
    -------
    object
        None, bool, int, float, str, list or dict.

    Raises
    ------
    InternalError
        ``failed to parse the request JSON buffer: <reason> at <offset>``, with the offset in bytes.

    Examples
    --------
    >>> parse(b'{"id": "7", "limits": [-Inf, 0.5]}')
    {'id': '7', 'limits': [-inf, 0.5]}
    """
    try:
        return _read_in_pieces(raw, _read_ordinary)
    except (ValueError, RecursionError):
        return _parse_as_rapidjson(bytes(raw))


def _read_ordinary(raw: bytes | bytearray) -> object:
    # At Python's recursion limit, destructors would fail: the garbage collector may run in the reader.
    if not is_ordinary(raw):
        raise ValueError("not an ordinary document")
    return _python_reader.decode(raw.decode("utf-8", "surrogateescape"))


def _read_lenient(raw: bytes | bytearray) -> object:
    """Read what RapidJSON accepts."""
    text = raw.decode("utf-8", "surrogateescape")
    return _python_reader.decode(_STRING_OR_SPECIAL.sub(lambda match: _PYTHON_SPELLING.get(match[0], match[0]), text))


def parse_request(raw: bytes | bytearray, max_size: int) -> object:
    """Parse the JSON of a request, which must not exceed ``--http-max-input-size``.

    Parameters
    ----------
    raw : bytes
    max_size : int
        In bytes.

    Raises
    ------
    InvalidArgumentError
        If the JSON is larger; with Triton's text.
    InternalError
        As `parse`.
    """
    if len(raw) > max_size:
        raise InvalidArgumentError(
            f"request JSON size of {len(raw)} bytes exceeds the maximum allowed input size of {max_size} bytes. Use "
            "--http-max-input-size to increase the limit."
        )
    return parse(raw)


def is_ordinary(raw: bytes | bytearray) -> bool:
    """Return whether any reader may read a document: its numbers are doubles, and it is not deep."""
    return not (_may_differ(raw) or _may_be_deep(raw))


def _may_differ(raw: bytes | bytearray) -> bool:
    """Return whether Python might accept a document that RapidJSON refuses."""
    # One pass and two searches, all in C: a regular expression would look at each digit of a body of up to 64 MiB.
    # `find`, since `in` takes bytes for a number first, and handles the exception.
    zeroed = raw.translate(_ZEROED, b"+")
    if zeroed.rfind(_LARGE_EXPONENT) >= 0:  # half the time of `find` among digits
        return True
    # One byte of five shows nearly always that no number is long, much faster than a search for all of it.
    if zeroed[::5].find(_LONG[::5]) >= 0 and zeroed.find(_LONG) >= 0:
        return True
    if ord("\\") not in raw:
        return False
    # Python's reader accepts an unpaired surrogate escape, RapidJSON refuses it.
    unpaired = _PAIR.sub(b"", raw)
    return b"\\ud" in unpaired or b"\\uD" in unpaired


def _has_few_brackets(raw: bytes | bytearray) -> bool:
    """Return whether no value can be nested deeper than `_MAX_DEPTH`, which most documents show quickly."""
    return raw.count(b"[") + raw.count(b"{") <= _MAX_DEPTH


def _may_be_deep(raw: bytes | bytearray) -> bool:
    """Return whether values may be nested deeper than `_MAX_DEPTH`; brackets in strings also count."""
    if _has_few_brackets(raw):
        return False
    brackets = np.frombuffer(raw.translate(None, _NOT_BRACKETS), np.uint8)
    depth = 0
    for start in range(0, len(brackets), _SLICE):
        depths = depth + np.cumsum(_DEPTH_CHANGES[brackets[start : start + _SLICE]], dtype=np.int64)
        if depths.max() > _MAX_DEPTH:
            return True
        depth = int(depths[-1])
    return False


class RepeatedMembers(dict[str, object]):
    """An object with several members of the same name: the first of each, and every name in order."""

    names: list[str]


class _Open:
    """The members of an object that is cut: one of its pieces."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs = pairs


def _members(pairs: list[tuple[str, object]]) -> object:
    if pairs and (pairs[0][0] == _CUT or pairs[-1][0] == _CUT):
        return _Open(pairs)
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    # Reversed, because a dict keeps the last value of a name and RapidJSON finds the first.
    repeated = RepeatedMembers(reversed(pairs))
    repeated.names = [name for name, _ in pairs]
    return repeated


_python_reader = json.JSONDecoder(object_pairs_hook=_members)


# --- pieces -------------------------------------------------------------------------------------

# A reader written in C holds Python's lock for its whole call, and with it the event loop, even on another thread. A
# long document is therefore cut at commas, and read in calls of about a millisecond.

#: Bytes of a piece.
PIECE = 1 << 16
#: The name of a member that stands for the rest of an object; no client can know it. Without digits, since they
#: could look like a large exponent.
_CUT = "".join(secrets.choice(string.ascii_letters) for _ in range(24))
_OPENING = {ord("["): b"[", ord("{"): b'{"%s":' % _CUT.encode()}
_CLOSING = {ord("["): b"]", ord("{"): b',"%s":null}' % _CUT.encode()}
_IS_BRACKET = np.array([chr(byte) in "[]{}" for byte in range(256)])


class _Stream(io.BytesIO):
    """A file in memory that runs Python code for each part that is read, where another thread may take over."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size)


def _read_in_pieces(raw: bytes | bytearray, read: Callable[[bytes | bytearray], object]) -> object:
    """Read a document, piece by piece if it is long.

    Raises
    ------
    ValueError
        If the document, or a piece of it, cannot be read.
    """
    if len(raw) <= 2 * PIECE:
        return read(raw)
    document: object = None
    depth = 0
    for piece, depth_after in _pieces(raw):
        value = read(piece)
        document = _joined(document, value, depth) if depth else value
        depth = depth_after
    return document


def _pieces(raw: bytes | bytearray) -> Iterator[tuple[bytes, int]]:
    """Cut a document at commas; yield documents, and how many arrays and objects the cut after each one is in.

    On both sides of a cut, the comma stays, with null in place of the element or member on its other side. An invalid
    document thus has an invalid piece.
    """
    stack = bytearray()  # the brackets that are open
    opening = b""
    start, size = 0, PIECE
    while len(raw) - start > size:
        part = raw[start : start + size]
        # Without escaped quotes, every second quote ends a string.
        text = np.frombuffer(part.replace(b"\\\\", b"  ").replace(b'\\"', b"  "), np.uint8)
        outside = ~np.logical_xor.accumulate(text == ord('"'))
        commas = np.flatnonzero(outside & (text == ord(",")))
        if not commas.size:  # within a long string
            size *= 2
            continue
        cut = int(commas[-1])
        for bracket in text[:cut][outside[:cut] & _IS_BRACKET[text[:cut]]].tolist():
            if bracket in _OPENING:
                stack.append(bracket)
            elif stack:
                stack.pop()
        if not stack:
            raise ValueError("a comma between documents")
        outer, inner = stack[:-1], stack[-1]
        closing = b"".join([_CLOSING[bracket] for bracket in reversed(outer)])
        yield b"".join((opening, part[:cut], b",null]" if inner == ord("[") else _CLOSING[inner], closing)), len(stack)
        opening = b"".join([*(_OPENING[bracket] for bracket in outer), _OPENING[inner], b"null,"])
        start, size = start + cut + 1, PIECE
    yield opening + raw[start:], 0


def _joined(before: Any, after: Any, depth: int) -> object:
    """Join two pieces of an array or object, in which ``depth - 1`` others are also cut."""
    if type(before) is list:
        last = before.pop()
        if depth > 1:
            before.append(_joined(last, after[0], depth - 1))
        before += after[1:]
        return before
    pairs = before.pairs
    pairs.pop()
    if depth > 1:
        name, last = pairs.pop()
        pairs.append((name, _joined(last, after.pairs[0][1], depth - 1)))
    pairs += after.pairs[1:]
    return before if pairs[-1][0] == _CUT else _members(pairs)


def _parse_as_rapidjson(raw: bytes) -> object:
    raw = _without_deep_values(raw)
    start = len(_BYTE_ORDER_MARK) if raw.startswith(_BYTE_ORDER_MARK) else 0
    try:
        # As a stream: between two parts of it other threads may run.
        rapidjson.load(_Stream(raw[start:].translate(_ASCII_ONLY)), number_mode=_NUMBER_MODE)
    except rapidjson.JSONDecodeError as error:
        parts = _ERROR.fullmatch(str(error))
        # A text of another form is a change of the binding, and not an error of the client.
        if parts is None:
            raise
        reason, offset = _NEWER_REASONS.get(parts[2], parts[2]), start + int(parts[1])
        raise InternalError(f"failed to parse the request JSON buffer: {reason} at {offset}") from None
    # A NUL ends the document for RapidJSON, which reads C strings.
    return _read_in_pieces(raw[start:].partition(b"\0")[0], _read_lenient)


def _without_deep_values(raw: bytes) -> bytes:
    """Replace the contents of arrays and objects at the depth `_MAX_DEPTH` by spaces, which keeps all offsets."""
    if _has_few_brackets(raw):
        return raw
    # Without escaped quotes, every second quote ends a string.
    unescaped = raw.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    text = np.frombuffer(unescaped, np.uint8)
    shallow = bytearray(raw)
    is_in_string = False
    depth = 0
    for start in range(0, len(text), _SLICE):
        part = text[start : start + _SLICE]
        in_string = np.logical_xor.accumulate(part == ord('"')) ^ is_in_string
        # NumPy, since a loop in Python over 64 MiB would stop the event loop for seconds.
        depths = depth + np.cumsum(np.where(in_string, 0, _DEPTH_CHANGES[part]), dtype=np.int64)
        before = np.concatenate(([depth], depths[:-1]))
        deep = (before >= _MAX_DEPTH) & (depths >= _MAX_DEPTH)
        if deep.any():
            np.frombuffer(shallow, np.uint8)[start : start + len(part)][deep] = ord(" ")
        is_in_string, depth = bool(in_string[-1]), int(depths[-1])
    if is_in_string:
        shallow[unescaped.rindex(b'"')] = ord('"')  # which is what RapidJSON reports
    return bytes(shallow)
