"""`compare` and its result: two recordings side by side, or the same arrivals before and after an edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.html_table import html_report
from tritonnb.lab.analysis.reproduction import is_near, verdict_of
from tritonnb.recording.batches import Batch

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

#: The keys of `Recording.summary` that are compared, and their formats.
_MEASURES = {
    "requests": "{:.0f}",
    "rate": "{:.1f}",
    "batches": "{:.0f}",
    "mean_batch_size": "{:.2f}",
    "rows_batched": "{:.0%}",
    "null_rows": "{:.0f}",
    "longest_queue_ms": "{:.2f}",
    "latency_p50_ms": "{:.2f}",
    "latency_p99_ms": "{:.2f}",
    "refused": "{:.0f}",
}

#: The same of generations, whose requests are executed once for each token, or once.
_TOKEN_MEASURES = {
    "tokens": "{:.0f}",
    "tokens_per_second": "{:.0f}",
    "time_to_first_token_p50_ms": "{:.0f}",
    "time_to_first_token_p99_ms": "{:.0f}",
    "time_per_output_token_p50_ms": "{:.2f}",
    "time_per_output_token_p99_ms": "{:.2f}",
    "idle_slots": "{:.0%}",
    "batches": "{:.0f}",
    "mean_batch_size": "{:.2f}",
    "refused": "{:.0f}",
}

_RECORDED = "recorded"
_REMARK = (
    "Before and after are simulated with the same arrivals and execution times and without other overhead; "
    "their times and rates are virtual, not measured."
)
_LIVE_REMARK = (
    "The recorded run also spent time between executions, in which more requests may have queued: "
    "the effect of the edit is the difference between before and after."
)


@extensible
@dataclass(frozen=True)
class Comparison:
    """Two recordings side by side, as returned by `compare` and `Recording.what_if`.

    Attributes
    ----------
    before, after : Recording
        For `what_if`, the same arrivals under the recorded and under the edited configuration. Both are simulated
        with the same service times, so that they differ only by the edit.
    edits : dict
        For `what_if`: the fields that were set.
    recorded : Recording or None
        For `what_if`: the source of the arrivals. It is shown where it differs from ``before``, because a live server
        also spends time between executions.
    names : tuple of str
        Labels of ``before`` and ``after``.
    causes : tuple of str
        For `what_if`: why the simulation of what was recorded may differ from the recording.
    notes : tuple of str
        What the simulation rests on.

    Examples
    --------
    >>> from tritonnb import constant, fixed, simulate
    >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", constant(200, 1), fixed(8))
    >>> comparison = recording.what_if(count=2)
    >>> comparison.edits
    {'count': 2}
    >>> comparison.verdict().split(";")[0]
    'With count: 2: rate (requests/s) 198.4 → 199.4'
    >>> comparison.difference().split(":")[0]
    'batch 2 differs. Before'
    >>> columns, rows = comparison.columns_and_rows()
    >>> columns, rows[0]
    (['before', 'after'], ['requests', '200', '200'])
    """

    plot: ClassVar[Callable[..., Any]]
    view: ClassVar[Callable[..., Any]]

    before: Recording
    after: Recording
    edits: dict[str, object] = field(default_factory=dict)
    recorded: Recording | None = None
    names: tuple[str, str] = ("before", "after")
    causes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def differences(self) -> dict[str, tuple[float, float]]:
        """The figures that the simulation of what was recorded does not reproduce: as recorded, and as simulated."""
        if self.recorded is None:
            return {}
        recorded, before = self.recorded.summary(), self.before.summary()
        pairs = {name: (recorded[name], before[name]) for name in self._measures}
        return {name: pair for name, pair in pairs.items() if not is_near(name, *pair)}

    def table(self) -> list[tuple[str, float, float]]:
        """Return the compared keys of `Recording.summary`: name, before, after; units as in `Recording.summary`.

        Examples
        --------
        >>> from tritonnb import fixed, simulate
        >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", [(0, 1)] * 8, fixed(10))
        >>> recording.what_if(max_batch_size=8).table()[2]
        ('batches', 3, 2)
        """
        before, after = self.before.summary(), self.after.summary()
        return [(name, before[name], after[name]) for name in self._measures]

    def verdict(self) -> str:
        """Summarize the comparison in one sentence."""
        texts = ((name, self._text(name, before), self._text(name, after)) for name, before, after in self.table())
        changed = [f"{_label(name)} {before} → {after}" for name, before, after in texts if before != after]
        if self.recorded is None:
            return f"{self.names[1]} compared with {self.names[0]}: {'; '.join(changed) or 'no difference'}."
        edits = ", ".join(f"{name}: {value}" for name, value in self.edits.items())
        doubts = {
            name: f"{_label(name)} {self._text(name, recorded)} recorded and {self._text(name, before)} simulated"
            for name, (recorded, before) in self.differences.items()
        }
        return verdict_of(edits, changed, doubts, self.causes)

    def _text(self, name: str, value: float) -> str:
        """Format a figure: without decimals that a simulation of another recording would not have."""
        text = _format(name, value)
        return f"{value:.0f}" if self.differences and name.endswith("_ms") else text

    def difference(self) -> str:
        """Describe the first batch that differs, with the reason why each run sent it when it did."""
        if not self._have_the_same_arrivals:
            return "the arrivals differ, so the batches are not compared one by one"
        runs = (self.before, self.after)
        pairs = zip_longest(*(sorted(run.batches, key=attrgetter("sent_ns", "number")) for run in runs))
        positions = [_arrival_positions(run) for run in runs]
        for number, batches in enumerate(pairs, 1):
            one, other = (
                None if batch is None else (_members(batch, position), batch.sent_ns - run.origin_ns)
                for batch, position, run in zip(batches, positions, runs, strict=True)
            )
            if one != other:
                sentences = (
                    f"{name.capitalize() if self.recorded else name}: {_batch_text(batch, run.origin_ns)}."
                    for name, batch, run in zip(self.names, batches, runs, strict=True)
                )
                return f"batch {number} differs. {' '.join(sentences)}"
        return "the batches are the same"

    def changed_batches(self) -> tuple[set[int], set[int]]:
        """Return the numbers of the batches, before and after, whose requests form no batch in the other run.

        Examples
        --------
        >>> from tritonnb import fixed, simulate
        >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", [(0, 1)] * 8, fixed(10))
        >>> recording.what_if(max_batch_size=8).changed_batches()
        ({2, 3}, {2})
        """
        if not self._have_the_same_arrivals:
            return set(), set()
        before, after = (
            {_members(batch, positions): batch.number for batch in run.batches}
            for run, positions in ((run, _arrival_positions(run)) for run in (self.before, self.after))
        )
        only_before, only_after = before.keys() - after.keys(), after.keys() - before.keys()
        return {before[members] for members in only_before}, {after[members] for members in only_after}

    def __repr__(self) -> str:
        head, rows = self.columns_and_rows()
        lines = [
            f"  {name:<20}" + "".join(f"{value:>10}" for value in values) for name, *values in [("", *head), *rows]
        ]
        return "\n".join([self.verdict(), *lines, *self._remarks(head)])

    def _repr_html_(self) -> str:
        head, rows = self.columns_and_rows()
        return html_report(self.verdict(), ("", *head), rows, self._remarks(head))

    @cached_property
    def _measures(self) -> Mapping[str, str]:
        """The compared keys and their formats."""
        runs = (self.before, self.after, *([] if self.recorded is None else [self.recorded]))
        return _TOKEN_MEASURES if all("tokens" in run.summary() for run in runs) else _MEASURES

    @cached_property
    def _have_the_same_arrivals(self) -> bool:
        return self.before.arrivals() == self.after.arrivals()

    def _remarks(self, head: list[str]) -> list[str]:
        """State which of the numbers are simulated."""
        if self.recorded is not None:
            return [_REMARK, *([_LIVE_REMARK] if _RECORDED in head else []), *self.notes]
        virtual = [name for name, run in zip(self.names, (self.before, self.after), strict=True) if run.simulated]
        verb = "is simulated: its" if len(virtual) == 1 else "are simulated: their"
        return [f"{' and '.join(virtual)} {verb} times and rates are virtual, not measured."] if virtual else []

    def columns_and_rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the table as text: column headers, and rows of a label and the value of each column."""
        runs = {self.names[0]: self.before, self.names[1]: self.after}
        if self.recorded is not None:
            runs = {_RECORDED: self.recorded, **runs}
        columns = {}
        for head, run in runs.items():
            summary = run.summary()
            text = _format if head == _RECORDED else self._text  # what was recorded is exact
            columns[head] = [text(name, summary[name]) for name in self._measures]
        if columns.get(_RECORDED) == columns[self.names[0]]:
            del columns[_RECORDED]
        return [*columns], [list(row) for row in zip(map(_label, self._measures), *columns.values(), strict=True)]


@with_short_traceback
def compare(first: Recording, second: Recording, *, names: tuple[str, str] = ("first", "second")) -> Comparison:
    """Compare two recordings, live or simulated.

    Parameters
    ----------
    first, second : Recording
        Batches are compared one by one if both have the same arrivals.
    names : tuple of str, optional
        Labels of the two recordings.

    Returns
    -------
    Comparison

    Raises
    ------
    InvalidArgumentError
        If an argument is not a recording, or the names are not two different strings.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> two, four = (simulate(f"max_batch_size: {rows}", [(0, rows)] * 8, fixed(5)) for rows in (2, 4))
    >>> compare(two, four, names=("two rows", "four rows")).verdict()
    'four rows compared with two rows: mean batch size 2.00 → 4.00.'
    """
    from tritonnb.recording.recording import Recording  # it imports this module

    for recording in (first, second):
        if not isinstance(recording, Recording):
            raise InvalidArgumentError(f"compare expected two recordings, got {type(recording).__name__}")
    if not isinstance(names, tuple | list) or len({*names}) != 2 or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"names expected two different strings, got {names!r}")
    return Comparison(first, second, names=(names[0], names[1]))


def _arrival_positions(run: Recording) -> dict[int, int]:
    """Return the position of each request in the order of arrivals, by its serial."""
    return {serial: position for position, serial in enumerate(run.arrived)}


def _members(batch: Batch, positions: Mapping[int, int]) -> tuple[int | None, ...]:
    return tuple([None if serial is None else positions[serial] for serial in batch.requests])


def _batch_text(batch: Batch | None, begin_ns: int) -> str:
    return "no batch" if batch is None else f"at {(batch.sent_ns - begin_ns) / 1e6:.1f} ms {batch.why}"


def _label(name: str) -> str:
    if name == "rate":
        return "rate (requests/s)"
    return name.removesuffix("_ms").replace("_", " ") + (" (ms)" if name.endswith("_ms") else "")


def _format(name: str, value: float) -> str:
    return {**_MEASURES, **_TOKEN_MEASURES}[name].format(value)
