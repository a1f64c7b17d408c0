"""The replica of each live sequence, and the sequence of each request.

A sequence is on one replica from its START request until it ends: by its END request, by being idle for too long, or
because its replica was lost. It never moves when other replicas are added or removed. The replicas decide
whether a sequence is live, and report it; the table only remembers where.

The sequence of a request is read without reading its tensors. Invalid requests have no sequence here: a replica refuses
them with Triton's text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.errors import TritonError
from tritonnb.endpoints.compression import decompress
from tritonnb.endpoints.http import json_reader
from tritonnb.endpoints.http.request_reader import header_length

#: Seconds after its START during which a sequence is kept although its replica does not report it yet.
GRACE_S = 10.0

_ID, _START, _END = "sequence_id", "sequence_start", "sequence_end"
_MARK = b'"sequence_id"'


class SequenceKey(NamedTuple):
    """A sequence: correlation IDs of different models are independent; 1 and ``"1"`` are different IDs."""

    model: str
    id: int | str

    @property
    def text(self) -> str:
        """The key on the hash ring."""
        return f"{self.model}/{self.id!r}"


class SequenceRequest(NamedTuple):
    """The sequence of a request."""

    key: SequenceKey
    start: bool
    end: bool


@dataclass(slots=True)
class _Placement:
    replica: str
    since: float  # of the last START


class SequenceTable:
    """The replicas of all live sequences of a deployment.

    Every method takes the time in seconds where it needs it; the table uses no clock.

    Examples
    --------
    >>> table = SequenceTable()
    >>> key = SequenceKey("accumulator", 42)
    >>> table.start(key, "r1", 0.0), table.start(key, "r2", 1.0)  # a live sequence does not move
    ('r1', 'r1')
    >>> table.end_sequence(key, "r1")
    >>> table.start(key, "r2", 2.0)
    'r2'
    """

    def __init__(self) -> None:
        self._entries: dict[SequenceKey, _Placement] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[SequenceKey, str]]:
        return ((key, entry.replica) for key, entry in self._entries.items())

    def find(self, key: SequenceKey) -> str | None:
        """Return the replica of a live sequence; None for an unknown one."""
        entry = self._entries.get(key)
        return None if entry is None else entry.replica

    def start(self, key: SequenceKey, proposed: str, now: float) -> str:
        """Return the replica for a START request: the current one if the sequence is live."""
        entry = self._entries.setdefault(key, _Placement(proposed, now))
        entry.since = now
        return entry.replica

    def end_sequence(self, key: SequenceKey, replica: str) -> None:
        """Remove a sequence that ended on a replica, unless it is on another one now."""
        if self.find(key) == replica:
            del self._entries[key]

    def report(self, replica: str, live: Collection[SequenceKey], now: float) -> None:
        """Remove the sequences that a replica no longer reports as live."""
        for key in live:
            self._entries.setdefault(key, _Placement(replica, now))
        reported = frozenset(live)
        ended = [
            key
            for key, entry in self._entries.items()
            if entry.replica == replica and key not in reported and now - entry.since > GRACE_S
        ]
        for key in ended:
            del self._entries[key]

    def forget(self, replica: str) -> list[SequenceKey]:
        """Remove a lost replica; return its sequences, which have ended."""
        lost = [key for key, entry in self._entries.items() if entry.replica == replica]
        for key in lost:
            del self._entries[key]
        return lost

    def counts(self) -> Counter[str]:
        """Return the number of live sequences by replica."""
        return Counter(entry.replica for entry in self._entries.values())


def http_sequence(
    model: str, body: bytes, json_length: str | None, encoding: str | None, limit: int
) -> SequenceRequest | None:
    """Return the sequence of a request to ``infer``; None if it has none.

    Only a body that names a ``sequence_id`` is parsed, and of that only the JSON part.

    Parameters
    ----------
    model : str
    body : bytes
    json_length : str or None
        ``Inference-Header-Content-Length``.
    encoding : str or None
        ``Content-Encoding``.
    limit : int
        Bytes of a decompressed body that are read.

    Examples
    --------
    >>> body = b'{"parameters":{"sequence_id":7,"sequence_start":true},"inputs":[]}'
    >>> http_sequence("m", body, None, None, 1000)
    SequenceRequest(key=SequenceKey(model='m', id=7), start=True, end=False)
    """
    try:
        plain = decompress(body, encoding, limit)
        plain = bytes(plain[: header_length(json_length, plain)])
        document = json_reader.parse(plain) if _MARK in plain else None
    except TritonError:
        return None
    parameters = document.get("parameters") if isinstance(document, dict) else None
    if not isinstance(parameters, dict):
        return None
    return _request(model, parameters.get(_ID), parameters.get(_START), parameters.get(_END))


def grpc_sequence(message: pb.ModelInferRequest) -> SequenceRequest | None:
    """Return the sequence of a ``ModelInferRequest``; None if it has none.

    Examples
    --------
    >>> message = pb.ModelInferRequest(model_name="m")
    >>> message.parameters["sequence_id"].string_param = "a"
    >>> grpc_sequence(message)
    SequenceRequest(key=SequenceKey(model='m', id='a'), start=False, end=False)
    """
    parameters = message.parameters
    if _ID not in parameters:
        return None
    choice = parameters[_ID].WhichOneof("parameter_choice")
    value = getattr(parameters[_ID], choice) if choice in ("int64_param", "string_param") else None
    start, end = (parameters[name].bool_param if name in parameters else False for name in (_START, _END))
    return _request(message.model_name, value, start, end)


def _request(model: str, value: object, start: object, end: object) -> SequenceRequest | None:
    if type(value) not in (int, str) or not value:  # 0 and "" mean: without a sequence
        return None
    assert isinstance(value, (int, str))
    id = value % 2**64 if isinstance(value, int) else value  # gRPC has no unsigned parameter
    return SequenceRequest(SequenceKey(model, id), start is True, end is True)
