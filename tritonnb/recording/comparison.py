"""Two recordings side by side: of two runs, or of the same arrivals before and after an edit of the configuration."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tritonnb.core.events import RequestArrived
from tritonnb.recording.batches import Batch

if TYPE_CHECKING:
    import ipywidgets as widgets

    from tritonnb.figures.picture import Picture
    from tritonnb.recording.recording import Recording

#: What is compared: members of `Recording.summary`, and how they are shown.
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

_RECORDED = "recorded"
_REMARK = (
    "Before and after are simulated: these arrivals, these times of executions, and nothing else that takes time; "
    "their times and rates are virtual, not measured."
)
_LIVE_REMARK = (
    "What was recorded also took time between executions, and more requests may have gathered meanwhile: "
    "what the edit does is the difference between before and after."
)


@dataclass(frozen=True)
class Comparison:
    """Two recordings side by side; `compare` and `Recording.what_if` give one.

    Attributes
    ----------
    before, after : Recording
        Of `what_if`, the same arrivals under the recorded configuration and under the edited one. Both are
        simulated with the same service times, so that they differ by the edit alone.
    edits : dict
        Of `what_if`: the fields that were set.
    recorded : Recording or None
        Of `what_if`: what the arrivals were taken from. It is shown where it differs from ``before``: a live server
        does not only execute.
    names : tuple of str
        What ``before`` and ``after`` are called.
    """

    before: Recording
    after: Recording
    edits: dict[str, Any] = field(default_factory=dict)
    recorded: Recording | None = None
    names: tuple[str, str] = ("before", "after")

    def table(self) -> list[tuple[str, float, float]]:
        """What is compared: name, before, after; times in milliseconds."""
        before, after = self.before.summary(), self.after.summary()
        return [(name, before[name], after[name]) for name in _MEASURES]

    def verdict(self) -> str:
        """The comparison in one sentence."""
        changed = [
            f"{_words(name)} {_show(name, before)} → {_show(name, after)}"
            for name, before, after in self.table()
            if _show(name, before) != _show(name, after)
        ]
        if self.recorded is None:
            return f"{self.names[1]} beside {self.names[0]}: {'; '.join(changed) or 'no number differs'}."
        told = ", ".join(f"{name}: {value}" for name, value in self.edits.items())
        return f"{f'With {told}' if told else 'Without an edit'}: {'; '.join(changed) or 'nothing changes'}."

    def difference(self) -> str:
        """The first batch that is another one, and why it was sent when it was."""
        if not self._have_the_same_arrivals:
            return "the arrivals are not the same, so batches are not compared one by one"
        runs = (self.before, self.after)
        pairs = zip_longest(*(sorted(each.batches, key=_sent) for each in runs))
        places = [_places(each) for each in runs]
        for number, batches in enumerate(pairs, 1):
            one, other = (
                None if batch is None else (_members(batch, place), batch.sent_ns - run.origin_ns)
                for batch, place, run in zip(batches, places, runs, strict=True)
            )
            if one != other:
                told = (
                    f"{name.capitalize() if self.recorded else name}: {_told(batch, run.origin_ns)}."
                    for name, batch, run in zip(self.names, batches, runs, strict=True)
                )
                return f"batch {number} differs. {' '.join(told)}"
        return "the batches are the same"

    def changed_batches(self) -> tuple[set[int], set[int]]:
        """The numbers of the batches, before and after, whose requests are not together in the other run."""
        if not self._have_the_same_arrivals:
            return set(), set()
        made = [
            {_members(each, places): each.number for each in run.batches}
            for run, places in ((run, _places(run)) for run in (self.before, self.after))
        ]
        before, after = ({made[one][key] for key in made[one].keys() - made[1 - one].keys()} for one in (0, 1))
        return before, after

    def view(self) -> widgets.VBox:
        """Both runs in the view of `Recording.view`, one below the other, over the same time.

        Returns
        -------
        ipywidgets.VBox
        """
        from tritonnb.notebook.batch_view import compare

        return compare(self)

    def plot(self, *, start_ms: float | None = None, end_ms: float | None = None) -> Picture:
        """Both timelines, one above the other, over the same time.

        Parameters
        ----------
        start_ms, end_ms : float, optional
            A part of the time, in milliseconds from the beginning of each.

        Returns
        -------
        matplotlib.figure.Figure
            A notebook shows it when a cell ends with it.
        """
        from tritonnb.figures.compare import draw  # matplotlib takes a while to import

        return draw(self, start_ms, end_ms)

    def __repr__(self) -> str:
        head, rows = self._shown()
        lines = [f"  {name:<20}" + "".join(f"{each:>10}" for each in values) for name, *values in [("", *head), *rows]]
        return "\n".join([self.verdict(), *lines, *self._remarks(head)])

    def _repr_html_(self) -> str:
        head, rows = self._shown()
        body = "".join(f"<tr>{''.join(f'<td>{each}</td>' for each in row)}</tr>" for row in rows)
        heads = "".join(f"<th>{each}</th>" for each in ("", *head))
        return (
            f"<p><b>{html.escape(self.verdict())}</b></p>"
            f"<table style='margin-left:0'><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{html.escape(' '.join(self._remarks(head)))}</p>"
        )

    @cached_property
    def _have_the_same_arrivals(self) -> bool:
        return self.before.arrivals() == self.after.arrivals()

    def _remarks(self, head: list[str]) -> list[str]:
        """What is virtual here, and what that means."""
        if self.recorded is not None:
            return [_REMARK, _LIVE_REMARK] if _RECORDED in head else [_REMARK]
        virtual = [name for name, run in zip(self.names, (self.before, self.after), strict=True) if run.simulated]
        words = "is simulated: its" if len(virtual) == 1 else "are simulated: their"
        return [f"{' and '.join(virtual)} {words} times and rates are virtual, not measured."] if virtual else []

    def _shown(self) -> tuple[list[str], list[list[str]]]:
        """The heads of the columns, and the rows: a name and what is in each column."""
        runs = {self.names[0]: self.before, self.names[1]: self.after}
        if self.recorded is not None:
            runs = {_RECORDED: self.recorded, **runs}
        columns = {}
        for head, run in runs.items():
            found = run.summary()
            columns[head] = [_show(name, found[name]) for name in _MEASURES]
        if columns.get(_RECORDED) == columns[self.names[0]]:
            del columns[_RECORDED]
        return [*columns], [list(row) for row in zip(map(_words, _MEASURES), *columns.values(), strict=True)]


def _sent(batch: Batch) -> tuple[int, int]:
    return batch.sent_ns, batch.number


def _places(run: Recording) -> dict[int, int]:
    """The place of each request in the order of arrivals, by its serial."""
    arrived = [each.serial for each in run.events if isinstance(each, RequestArrived)]
    return {serial: place for place, serial in enumerate(arrived)}


def _members(batch: Batch, places: Mapping[int, int]) -> tuple[int | None, ...]:
    return tuple([None if serial is None else places[serial] for serial in batch.requests])


def _told(batch: Batch | None, begin_ns: int) -> str:
    return "there is none" if batch is None else f"at {(batch.sent_ns - begin_ns) / 1e6:.1f} ms {batch.why}"


def _words(name: str) -> str:
    if name == "rate":
        return "rate (requests/s)"
    return name.removesuffix("_ms").replace("_", " ") + (" (ms)" if name.endswith("_ms") else "")


def _show(name: str, value: float) -> str:
    return _MEASURES[name].format(value)
