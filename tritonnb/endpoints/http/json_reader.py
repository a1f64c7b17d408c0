"""JSON documents, read with the rules and the error texts of Triton's JSON library, RapidJSON.

Python's `json` reads the documents that it accepts, which is the common case. Any other is checked by RapidJSON
itself (the package ``python-rapidjson``), which reports the reason and the offset, or accepts what only RapidJSON
accepts (``Inf``, a byte order mark, a NUL as the end).

The values always come from Python's reader, because RapidJSON's binding refuses bytes that are not UTF-8.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import rapidjson

from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.endpoints.http.json_arrays import MOST_VALUES, LongArray, too_many_values

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
#: Bytes of a document that are looked at together: their depths take 128 KiB, which fit into a processor's cache and
#: which the allocator reuses. The depth of 256 KiB of brackets took 4.3 ms in one slice, and 0.5 ms in these.
_SLICE = 1 << 14
# A string that begins is taken to its end and never again: a search that starts anew within it would be quadratic.
_STRING_OR_SPECIAL = re.compile(r'"(?:[^"\\]++|\\.)*+"|Inf(?!inity)|-NaN')
#: Numbers that only RapidJSON reads, as Python spells them.
_PYTHON_SPELLING = {"Inf": "Infinity", "-NaN": "NaN"}


def parse(raw: bytes | bytearray | memoryview, tensors: bool = False) -> object:
    """Parse a JSON document.

    If an object has several members with the same name, the first counts: see `RepeatedMembers`.

    Parameters
    ----------
    raw : bytes
        Bytes that are not UTF-8 become surrogate escapes.
    tensors : bool
        Long arrays, and arrays of arrays in long documents, become a `LongArray`.

    Returns
    -------
    object
        None, bool, int, float, str, list or dict; or a `LongArray`.

    Raises
    ------
    InternalError
        ``failed to parse the request JSON buffer: <reason> at <offset>``, with the offset in bytes.
    InvalidArgumentError
        If it has more than `MOST_VALUES` values; the elements of tensors do not count.

    Examples
    --------
    >>> parse(b'{"id": "7", "limits": [-Inf, 0.5]}')
    {'id': '7', 'limits': [-inf, 0.5]}
    """
    if len(raw) <= 2 * PIECE:
        return _read(bytes(raw), _PYTHON_READER, 0)
    return _LongReader(tensors).read(memoryview(raw))


def _read(raw: bytes, reader: json.JSONDecoder, start: int) -> object:
    """Read a document, or a piece of a document that begins at an offset."""
    try:
        return _read_ordinary(raw, reader)
    except (ValueError, RecursionError):
        return _read_as_rapidjson(raw, reader, start)


def _read_ordinary(raw: bytes, reader: json.JSONDecoder) -> object:
    # At Python's recursion limit, destructors would fail: the garbage collector may run in the reader.
    if not is_ordinary(raw):
        raise ValueError("not an ordinary document")
    return reader.decode(raw.decode("utf-8", "surrogateescape"))


def parse_request(raw: bytes | bytearray | memoryview, max_size: int, tensors: bool = False) -> object:
    """Parse the JSON of a request, which must not exceed ``--http-max-input-size``.

    Parameters
    ----------
    raw : bytes
    max_size : int
        In bytes.
    tensors : bool
        As for `parse`.

    Raises
    ------
    InvalidArgumentError
        If the JSON is larger, with Triton's text; or as `parse`.
    InternalError
        As `parse`.
    """
    if len(raw) > max_size:
        raise InvalidArgumentError(
            f"request JSON size of {len(raw)} bytes exceeds the maximum allowed input size of {max_size} bytes. Use "
            "--http-max-input-size to increase the limit."
        )
    return parse(raw, tensors)


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


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    # Reversed, because a dict keeps the last value of a name and RapidJSON finds the first.
    repeated = RepeatedMembers(reversed(pairs))
    repeated.names = [name for name, _ in pairs]
    return repeated


_PYTHON_READER = json.JSONDecoder(object_pairs_hook=_members)


def _read_as_rapidjson(raw: bytes, reader: json.JSONDecoder, start: int) -> object:
    """Read what RapidJSON accepts, or raise its error; ``start`` is the offset of the bytes in the document."""
    raw = _without_deep_values(raw)
    mark = len(_BYTE_ORDER_MARK) if raw.startswith(_BYTE_ORDER_MARK) else 0
    try:
        rapidjson.loads(raw[mark:].translate(_ASCII_ONLY), number_mode=_NUMBER_MODE)
    except rapidjson.JSONDecodeError as error:
        parts = _ERROR.fullmatch(str(error))
        # A text of another form is a change of the binding, and not an error of the client.
        if parts is None:
            raise
        reason, offset = _NEWER_REASONS.get(parts[2], parts[2]), start + mark + int(parts[1])
        raise InternalError(f"failed to parse the request JSON buffer: {reason} at {offset}") from None
    # A NUL ends the document for RapidJSON, which reads C strings.
    text = raw[mark:].partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return reader.decode(_STRING_OR_SPECIAL.sub(lambda match: _PYTHON_SPELLING.get(match[0], match[0]), text))


def _unescaped(raw: bytes | bytearray) -> bytes | bytearray:
    """Replace escaped quotes by spaces: then every second quote ends a string."""
    return raw.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")


def _without_deep_values(raw: bytes) -> bytes:
    """Replace the contents of arrays and objects at the depth `_MAX_DEPTH` by spaces, which keeps all offsets."""
    if _has_few_brackets(raw):
        return raw
    unescaped = _unescaped(raw)
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


# --- pieces -------------------------------------------------------------------------------------

# A reader written in C holds Python's lock for its whole call, and with it the event loop, even on another thread. A
# long document is therefore cut at commas, and read in calls of about a millisecond. What they return is freed in one
# call each, and the garbage collector visits all of it in one: hence the limit of values, and compact arrays.

#: Bytes of a piece.
PIECE = 1 << 16
#: About as many brackets are in a piece at most.
_MOST_BRACKETS = 1 << 10
#: The name of a member that stands for the rest of an object; no client can know it. Without digits, since they
#: could look like a large exponent.
_CUT = "".join(secrets.choice(string.ascii_letters) for _ in range(24))
_OPENING = {ord("["): b"[", ord("{"): b'{"%s":' % _CUT.encode()}
_CLOSING = {ord("["): b"]", ord("{"): b',"%s":null}' % _CUT.encode()}
_IS_BRACKET = np.array([chr(byte) in "[]{}" for byte in range(256)])


class _LongReader:
    """A reader of one document in pieces.

    Parameters
    ----------
    tensors : bool
        As for `parse`.
    """

    def __init__(self, tensors: bool) -> None:
        self._tensors = tensors
        self._count = 0
        self._reader = json.JSONDecoder(object_pairs_hook=self._members)

    def read(self, raw: memoryview) -> object:
        """Read the document."""
        document: object = None
        open_before = b""
        for piece, start, open_after in self._pieces(raw):
            value = _read(piece, self._reader, start)
            if open_before:
                arrays = len(open_before) - len(open_before.rstrip(b"[")) if self._tensors else 0
                value = self._joined(document, value, len(open_before), arrays)
            document, open_before = value, open_after
        return document

    def _counted(self, count: int) -> None:
        self._count += count
        if self._count > MOST_VALUES:
            raise too_many_values()

    # --- cutting ------------------------------------------------------------------------------

    def _pieces(self, raw: memoryview) -> Iterator[tuple[bytes, int, bytes]]:
        """Cut a document at commas; yield documents, their offsets, and the brackets that are open at their ends.

        On both sides of a cut, the comma stays, with null in place of the element or member on its other side. An
        invalid document thus has an invalid piece, with the same error at the same place.
        """
        stack = bytearray()
        opening = b""
        start = at = 0
        size = PIECE
        is_in_string = False
        while len(raw) - at > size:
            part = bytes(raw[at : at + size])
            if b"\0" in part:  # which ends the document for RapidJSON
                raw = raw[: at + part.index(b"\0")]
                continue
            if (len(part) - len(part.rstrip(b"\\"))) % 2:  # not between a backslash and what it escapes
                part = bytes(raw[at : at + size + 1])
            text = np.frombuffer(_unescaped(part), np.uint8)
            outside = ~(np.logical_xor.accumulate(text == ord('"')) ^ is_in_string)
            commas = np.flatnonzero(outside & (text == ord(",")))
            # After a long string the first comma, since the piece is long enough.
            cut = int(commas[-1 if at == start else 0]) if commas.size else len(text)
            special = outside & _IS_BRACKET[text]
            # All arrays of a piece are alive at the same time; if they are many, the garbage collector also visits all
            # other objects of the process.
            size = min(PIECE, _MOST_BRACKETS * len(text) // (1 + int(np.count_nonzero(special))) + 1)
            _follow(stack, text[:cut][special[:cut]])
            # What is deeper than this is not read.
            if not commas.size or len(stack) > _MAX_DEPTH:
                _follow(stack, text[cut:][special[cut:]])
                at, is_in_string = at + len(text), not outside[-1]
                continue
            end = at + cut
            if not stack:
                yield opening + bytes(raw[start : end + 1]), start - len(opening), b""  # a comma after the document
                return
            if not self._tensors:
                self._counted(int(np.count_nonzero(commas <= cut)))
            outer, inner = stack[:-1], stack[-1]
            closing = b"".join([_CLOSING[bracket] for bracket in reversed(outer)])
            closing = (b",null]" if inner == ord("[") else _CLOSING[inner]) + closing
            yield b"".join((opening, raw[start:end], closing)), start - len(opening), bytes(stack)
            opening = b"".join([*(_OPENING[bracket] for bracket in outer), _OPENING[inner], b"null,"])
            start = at = end + 1
            is_in_string = False
        yield opening + bytes(raw[start:]).partition(b"\0")[0], start - len(opening), b""

    # --- joining ------------------------------------------------------------------------------

    def _members(self, pairs: list[tuple[str, object]]) -> object:
        if self._tensors:
            self._counted(1 + len(pairs))
            # Not what is cut, which is beside the mark of a cut.
            first = 1 if pairs and pairs[0][0] == _CUT else 0
            last = len(pairs) - (2 if pairs and pairs[-1][0] == _CUT else 0)
            pairs[first:last] = [(name, self._compact(value)) for name, value in pairs[first:last]]
        if pairs and (pairs[0][0] == _CUT or pairs[-1][0] == _CUT):
            return _Open(pairs)
        return _members(pairs)

    def _compact(self, value: object) -> object:
        """Return an array of arrays as a compact one, and any other value as it is."""
        if type(value) is list:
            types = set(map(type, value))
            if list in types and _OBJECTS.isdisjoint(types):
                return LongArray(value).close()
            if list in types:
                self._counted(len(value))
        return value.close() if type(value) is LongArray else value

    def _joined(self, before: Any, after: Any, depth: int, arrays: int) -> object:
        """Join two pieces of a value, in which ``depth - 1`` others are cut; the innermost ``arrays`` are arrays."""
        if isinstance(before, LongArray | list):
            elements = before.tail if isinstance(before, LongArray) else before
            if depth <= arrays and not any(type(element) in _OBJECTS for element in elements):
                return (before if isinstance(before, LongArray) else LongArray(before)).join(after, depth)
            last = elements.pop()
            if depth > 1:
                elements.append(self._joined(last, after[0], depth - 1, arrays))
            elements += after[1:]
            if self._tensors:
                self._counted(sum(type(element) is list for element in after))
            return before
        pairs = before.pairs
        pairs.pop()
        name, last = pairs.pop()
        if depth > 1:
            pairs.append((name, self._joined(last, after.pairs[0][1], depth - 1, arrays)))
        else:
            pairs.append((name, self._compact(last) if self._tensors else last))
        pairs += after.pairs[1:]
        if pairs[-1][0] == _CUT:
            return before
        return _members([(name, self._compact(value)) for name, value in pairs] if self._tensors else pairs)


#: The types of objects, complete or cut.
_OBJECTS = frozenset((dict, RepeatedMembers, _Open))


def _follow(stack: bytearray, brackets: npt.NDArray[np.uint8]) -> None:
    """Update the brackets that are open."""
    rest, length = brackets.tobytes(), -1
    # In C, since most arrays have no others in them. While half of the brackets go, all passes together are linear.
    while length < 0 or 2 * len(rest) < length:
        length = len(rest)
        rest = rest.replace(b"[]", b"").replace(b"{}", b"")
    opening = rest.lstrip(b"]}")
    if not opening.strip(b"[{"):
        del stack[max(0, len(stack) - len(rest) + len(opening)) :]
        stack += opening
        return
    for bracket in rest:
        if bracket in _OPENING:
            stack.append(bracket)
        elif stack:
            stack.pop()
