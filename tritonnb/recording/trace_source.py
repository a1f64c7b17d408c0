"""Facts about a recording that was reconstructed from the traces of a server."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonnb.scheduling.reasons import pluralize


@dataclass(frozen=True, slots=True)
class Agreement:
    """The share of the batches of a trace that a replay of the scheduler reproduces.

    Attributes
    ----------
    batches, identical : int
        Batches in the trace, and those that the replay forms with the same requests in the same order.
    difference : str
        The first batch that differs, with both versions; why it was not replayed, if ``batches`` is 0; or empty.
    causes : dict of str to int
        Number of batches by kind of difference.

    Examples
    --------
    >>> print(Agreement(200, 190, "batch 7: …", {"other requests": 10}))
    190 of 200 batches are the same in a replay of the scheduler (95%); 10 other requests. First difference: batch 7: …
    """

    batches: int
    identical: int
    difference: str = ""
    causes: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share (0 to 1) of the identical batches; NaN without a replay."""
        return self.identical / self.batches if self.batches else float("nan")

    def __str__(self) -> str:
        if not self.batches:
            return f"not replayed: {self.difference}"
        causes = "".join(f"; {count} {cause}" for cause, count in self.causes.items())
        first = f". First difference: {self.difference}" if self.difference else ""
        batches = pluralize(self.batches, "batch", "batches")
        # Rounded down: 100% means all of them.
        percent = math.floor(1000 * self.identical / self.batches) / 10
        return f"{self.identical} of {batches} are the same in a replay of the scheduler ({percent:g}%){causes}{first}"

    def __add__(self, other: Agreement) -> Agreement:
        causes = dict(Counter(self.causes) + Counter(other.causes))
        batches = self.batches + other.batches
        has_first = bool(self.difference and (self.batches or not batches))
        difference = self.difference if has_first else other.difference
        return Agreement(batches, self.identical + other.identical, difference, causes)


#: The note on a model in a trace without instances: a batch may have run on any instance that was idle.
UNNAMED_INSTANCES = "the names of instances are made up, since a trace has none"


@dataclass(frozen=True, slots=True)
class TraceSource:
    """The origin of a reconstructed recording.

    Attributes
    ----------
    notes : tuple of str
        What the trace does not contain, and how the recording replaces it.
    sampled : str
        Why the trace does not contain every request; empty if it does.
    agreements : dict of str to Agreement
        By model.
    unknown_rows : dict of str to int
        By model whose batch sizes count requests, since the rows of each are not known: the rows that the server
        counted in all, or 0.
    """

    notes: tuple[str, ...] = ()
    sampled: str = ""
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    unknown_rows: Mapping[str, int] = field(default_factory=dict)

    def for_model(self, model: str) -> TraceSource:
        """Return the part that concerns one model."""
        agreements = {name: agreement for name, agreement in self.agreements.items() if name == model}
        notes = [note for note in self.notes if not note.startswith("model '") or note.startswith(f"model '{model}'")]
        unknown_rows = {name: rows for name, rows in self.unknown_rows.items() if name == model}
        return TraceSource(tuple(notes), self.sampled, agreements, unknown_rows)

    @property
    def names_instances(self) -> bool:
        """True if the instances are those that the server reported."""
        return not any(note.endswith(UNNAMED_INSTANCES) for note in self.notes)

    def remarks(self) -> list[str]:
        """State the limits of the recording, one sentence each without a period."""
        agreements = [
            f"model '{name}': {agreement}" for name, agreement in self.agreements.items() if agreement.batches
        ]
        return [*filter(None, [self.sampled]), *self.notes, *agreements]

    @property
    def agreement(self) -> Agreement:
        """The agreement over all models."""
        return sum(self.agreements.values(), Agreement(0, 0))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TraceSource:
        """Read the JSON form in recording files, which has the fields."""
        agreements = {name: Agreement(**values) for name, values in fields["agreements"].items()}
        unknown_rows = fields["unknown_rows"] if "unknown_rows" in fields else _noted_rows(fields["notes"])
        return cls(tuple(fields["notes"]), fields["sampled"], agreements, unknown_rows)


def _noted_rows(notes: Iterable[str]) -> dict[str, int]:
    """Return the unknown rows of a file that was written before they had a field: only a note tells."""
    found = (
        re.match(r"model '(.*?)': batch sizes count requests.*?(?:the server counted (\d+) |: )", note)
        for note in notes
    )
    return {match[1]: int(match[2] or 0) for match in found if match}
