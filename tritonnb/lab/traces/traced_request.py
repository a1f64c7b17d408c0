"""One request of a trace in any format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import explain


def is_time(value: object) -> bool:
    """Return whether a value is an integer that fits into 62 bits, as times, identifiers and versions do.

    Differences of two of them fit into the 64 bits of a recording's numbers.
    """
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


@dataclass(frozen=True, slots=True)
class ReportedBatch:
    """The batch of a request as the server reported it; this project's server does, in its spans.

    Attributes
    ----------
    id : int
        Number of the batch on its server.
    size : int
        Rows.
    instance : str
    sent_ns : int
        When the scheduler sent it.
    reason : Reason
    index, request_size : int
        Position of the request in the batch, and its rows.
    """

    id: int
    size: int
    instance: str
    sent_ns: int
    reason: Reason
    index: int
    request_size: int

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Self | None:
        """Read the attributes of a span; None if it has none of a batch, or any of them cannot be read.

        Examples
        --------
        >>> ReportedBatch.from_attributes({"triton.model_name": "m"}) is None
        True
        """
        if "tritonnb.batch.id" not in attributes:
            return None
        values = {name.removeprefix("tritonnb.batch."): value for name, value in attributes.items()}
        try:
            facts = json.loads(values["facts"])
            facts |= {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
            reason = Reason(str(values["rule"]), facts)
            explain(reason)  # fails if the rule is not known, or lacks a value
            int(facts["requests"])
            numbers = {name: int(values[name]) for name in ("id", "size", "sent_ns", "index", "request_size")}
            if not all(map(is_time, numbers.values())):
                return None
            return cls(instance=str(values["instance"]), reason=reason, **numbers)
        except (LookupError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError):
            return None


@dataclass(slots=True)
class TracedRequest:
    """One request of a trace.

    Attributes
    ----------
    key, parent : int or str
        Identifies the request in its trace; ``parent`` is the key of the request that caused it, 0 for none.
    model, version : str, int
    id : str
        The request id given by the client, or empty.
    stamps : dict of str to int
        The first time of each activity in ns, such as ``QUEUE_START``.
    shapes : dict of str to tuple of int
        Shapes of the inputs; empty below level ``TENSORS``.
    batch : ReportedBatch or None
        None if the server does not report batches, as Triton.
    is_span : bool
        Whether it comes from spans, which have no shapes.
    """

    key: int | str
    parent: int | str = 0
    model: str = ""
    version: int = -1
    id: str = ""
    stamps: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    batch: ReportedBatch | None = None
    is_span: bool = False

    @property
    def received_ns(self) -> int:
        """The time when the request was handed to the server's core."""
        return self.stamps.get("REQUEST_START", self.queued_ns)

    @property
    def queued_ns(self) -> int:
        """The time when the request was handed to the scheduler."""
        return self.stamps["QUEUE_START"]

    @property
    def compute(self) -> tuple[int, int, int, int]:
        """Start, end of the inputs, start of the outputs, and end of the execution."""
        start, end = self.stamps["COMPUTE_START"], self.stamps["COMPUTE_END"]
        inputs_ns = min(max(start, self.stamps.get("COMPUTE_INPUT_END", start)), end)
        outputs_ns = min(max(inputs_ns, self.stamps.get("COMPUTE_OUTPUT_START", end)), end)
        return start, inputs_ns, outputs_ns, end

    @property
    def ended_ns(self) -> int:
        """The time when the request was released."""
        return self.stamps.get("REQUEST_END", max(self.stamps.values()))

    @property
    def executed(self) -> bool:
        """True if an instance ran the request."""
        return "COMPUTE_START" in self.stamps

    @property
    def complete(self) -> bool:
        """True if the trace contains the whole request."""
        end = "COMPUTE_END" if self.executed else "REQUEST_END"
        return bool(self.model) and {"QUEUE_START", end} <= self.stamps.keys()

    def add_stamp(self, name: str, time_ns: int) -> None:
        """Record the time of an activity; of repeated activities, such as responses, the first."""
        self.stamps.setdefault(name, time_ns)

    def rows(self, batching: bool) -> int | None:
        """Return the batch size of the request; None if the trace contains neither shapes nor sizes."""
        if not batching:
            return 1
        if self.batch is not None:
            return self.batch.request_size
        return next((shape[0] for shape in self.shapes.values() if shape), None)

    def shape_key(self, batching: bool) -> int:
        """Return a hash of the input shapes without the batch dimension; 0 if the trace does not contain shapes."""
        shapes: Mapping[str, tuple[int, ...]] = self.shapes
        return hash(tuple(sorted((name, shape[batching:]) for name, shape in shapes.items()))) if shapes else 0
