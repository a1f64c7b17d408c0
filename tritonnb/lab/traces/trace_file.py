"""Trace files of Triton's mode ``triton``: JSON lists of small objects, each with the id of its request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.traces.traced_request import TracedRequest, is_time
from tritonnb.recording.files import is_recording
from tritonnb.telemetry.trace_entry import TraceEntry

#: How an entry begins, in files of Triton and of this server.
_BEGINNING = '{"id":'


def series_of(path: Path) -> list[Path]:
    """Return the files of a series, ``path.0`` and so on, in their order."""
    numbered = [file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdigit()]
    return sorted(numbered, key=lambda file: int(file.suffix[1:]))


def content_of(file: Path) -> bytes:
    """Read a file with traces.

    Raises
    ------
    InvalidArgumentError
        If it cannot be read, is empty, or is a recording.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"cannot be read: {error.strerror}") from None
    if not content.strip():
        raise InvalidArgumentError("expected traces, got an empty file")
    if is_recording(content):
        raise InvalidArgumentError("expected traces, got a recording: open it with Recording.load")
    return content


def read_entries(text: str) -> tuple[list[TraceEntry], str]:
    """Read the entries of a trace file, which may be cut off.

    Parameters
    ----------
    text : str
        Content of the file.

    Returns
    -------
    list of TraceEntry
        The entries that can be read.
    str
        What is missing; empty if the file is whole.

    Raises
    ------
    InvalidArgumentError
        If it is not a list of objects with an ``id``.

    Examples
    --------
    >>> read_entries('[{"id":1,"model_name":"m","model_version":1},{"id":1,"timest')
    ([{'id': 1, 'model_name': 'm', 'model_version': 1}], 'cut off after 1 entry')
    """
    try:
        entries, missing = json.loads(text), ""
    except RecursionError:
        raise InvalidArgumentError("expected a list of objects with an 'id', got deeply nested values") from None
    except ValueError:
        entries, missing = _salvage(text)
    if not (isinstance(entries, list) and all(isinstance(entry, dict) and "id" in entry for entry in entries)):
        raise InvalidArgumentError("expected a list of objects with an 'id'")
    for number, entry in enumerate(entries, 1):
        _check(number, entry)
    return entries, missing


def _check(number: int, entry: Mapping[str, Any]) -> None:
    """Check the types of an entry's values: a trace may come from a stranger.

    Raises
    ------
    InvalidArgumentError
        If one is wrong.
    """
    tensor = entry.get("tensor", {})
    stamps = entry.get("timestamps", [])
    checks = {
        "id": is_time(entry["id"]),
        "model_name": isinstance(entry.get("model_name", ""), str),
        "model_version": "model_name" not in entry or is_time(_number(entry.get("model_version"))),
        "request_id": isinstance(entry.get("request_id", ""), str),
        "parent_id": is_time(entry.get("parent_id", 0)),
        "timestamps": isinstance(stamps, list) and all(map(_is_stamp, stamps)),
        "tensor": entry.get("activity") != "TENSOR_QUEUE_INPUT" or _is_tensor(tensor),
    }
    for field, is_valid in checks.items():
        if not is_valid:
            raise InvalidArgumentError(f"entry {number}: '{field}' has a value of the wrong type, or none")


def _is_stamp(stamp: object) -> bool:
    return isinstance(stamp, dict) and isinstance(stamp.get("name"), str) and is_time(stamp.get("ns"))


def _is_tensor(tensor: object) -> bool:
    if not (isinstance(tensor, dict) and isinstance(tensor.get("name"), str) and isinstance(tensor.get("shape"), str)):
        return False
    return all(map(_is_dim, filter(None, tensor["shape"].split(","))))


def _is_dim(text: str) -> bool:
    """Return whether it is a dimension with which a batch has a size of 32 bits, as on Triton."""
    dim = _number(text)
    return isinstance(dim, int) and 0 <= dim < 2**31


def _number(value: object) -> object:
    """Return the integer of a string of digits; any other value as it is."""
    return int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,19}", value) else value


def _salvage(text: str) -> tuple[list[TraceEntry], str]:
    """Return the entries before the point where the file was cut off; entries that cannot be read are skipped."""
    begin = text.find("[")
    if begin < 0 or text[:begin].strip():
        raise InvalidArgumentError("expected a list of objects with an 'id'")
    decoder = json.JSONDecoder()
    entries: list[TraceEntry] = []
    unreadable, at = 0, text.find(_BEGINNING, begin)
    while at >= 0:
        # An entry ends where the next entry begins. The error for a part of a text would take as long as the text is.
        end = text.find(_BEGINNING, at + 1)
        try:
            entries.append(decoder.raw_decode(text[at : end if end >= 0 else None])[0])
        except (ValueError, RecursionError):  # cut off here, or a string tensor that Triton writes without escapes
            unreadable += 1
        at = end
    if not entries:
        raise InvalidArgumentError("expected a list of objects with an 'id'")
    is_closed = text.rstrip().endswith("]")
    skipped = f"{unreadable} entries cannot be read" if is_closed else ""
    return entries, skipped or f"cut off after {len(entries)} {'entry' if len(entries) == 1 else 'entries'}"


def requests_of(entries: Iterable[TraceEntry]) -> Iterator[TracedRequest]:
    """Combine entries into requests, in order of appearance.

    Parameters
    ----------
    entries : iterable of TraceEntry
        The entries of all files of a series: the entries of a request may be in several files.

    Examples
    --------
    >>> model = {"id": 1, "model_name": "m", "model_version": 1}
    >>> queued = {"id": 1, "timestamps": [{"name": "QUEUE_START", "ns": 5}]}
    >>> [request.queued_ns for request in requests_of([model, queued])]
    [5]
    """
    requests: dict[int, TracedRequest] = {}
    for entry in entries:
        request = requests.setdefault(entry["id"], TracedRequest(entry["id"]))
        if "model_name" in entry:
            request.model, request.version = entry["model_name"], int(entry["model_version"])
            request.id, request.parent = entry.get("request_id", ""), entry.get("parent_id", 0)
        for stamp in entry.get("timestamps", ()):
            request.add_stamp(stamp["name"], stamp["ns"])
        if entry.get("activity") == "TENSOR_QUEUE_INPUT":
            tensor = entry["tensor"]
            request.shapes[tensor["name"]] = tuple(int(dim) for dim in tensor["shape"].split(",") if dim)
    yield from requests.values()
