"""What an edit of the configuration would have changed: two runs of the same arrivals, side by side."""

from __future__ import annotations

import html
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tritonnb.recording.batches import Batch

if TYPE_CHECKING:
    import ipywidgets as widgets

    from tritonnb.recording.figures.picture import Picture
    from tritonnb.recording.recording import Recording

#: What is compared: members of `Recording.summary`, and how they are shown.
_MEASURES = {
    "batches": "{:.0f}",
    "mean_batch_size": "{:.2f}",
    "rows_batched": "{:.0%}",
    "longest_queue_ms": "{:.2f}",
    "latency_p50_ms": "{:.2f}",
    "latency_p99_ms": "{:.2f}",
    "refused": "{:.0f}",
}

_RECORDED = "recorded"
_REMARK = "Before and after are simulated: these arrivals, these times of executions, and nothing else that takes time."
_LIVE_REMARK = (
    " What was recorded also took time between executions, and more requests may have gathered meanwhile: "
    "what the edit does is the difference between before and after."
)


@dataclass(frozen=True)
class Comparison:
    """The same arrivals under two configurations, both in virtual time.

    Attributes
    ----------
    before, after : Recording
        Under the recorded configuration and under the edited one. Both are simulated with the same
        service times, so that they differ by the edit alone.
    edits : dict
        The fields that were set.
    recorded : Recording
        What the arrivals were taken from. It is shown where it differs from ``before``: a live server does not
        only execute.
    """

    before: Recording
    after: Recording
    edits: dict[str, Any]
    recorded: Recording

    def table(self) -> list[tuple[str, float, float]]:
        """What is compared: name, before, after; times in milliseconds."""
        before, after = self.before.summary(), self.after.summary()
        return [(name, before[name], after[name]) for name in _MEASURES]

    def verdict(self) -> str:
        """The comparison in one sentence."""
        told = ", ".join(f"{name}: {value}" for name, value in self.edits.items())
        changed = [
            f"{_words(name)} {_show(name, before)} → {_show(name, after)}"
            for name, before, after in self.table()
            if _show(name, before) != _show(name, after)
        ]
        return f"{f'With {told}' if told else 'Without an edit'}: {'; '.join(changed) or 'nothing changes'}."

    def difference(self) -> str:
        """The first batch that is another one, and why it was sent when it was."""
        begin = min(each.span_ns[0] for each in (self.before, self.after))
        pairs = zip_longest(*(sorted(each.batches, key=_sent) for each in (self.before, self.after)))
        for number, (one, other) in enumerate(pairs, 1):
            if one is None or other is None or _what(one) != _what(other):
                return f"batch {number} differs. Before: {_told(one, begin)}. After: {_told(other, begin)}."
        return "the batches are the same"

    def regrouped(self) -> tuple[set[int], set[int]]:
        """The numbers of the batches, before and after, whose requests are not together in the other run."""
        made = [{each.requests: each.number for each in run.batches} for run in (self.before, self.after)]
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

    def plot(self) -> Picture:
        """Both timelines, one above the other, over the same time.

        Returns
        -------
        matplotlib.figure.Figure
            A notebook shows it when a cell ends with it.
        """
        from tritonnb.recording.figures.compare import draw  # matplotlib takes a while to import

        return draw(self)

    def __repr__(self) -> str:
        head, rows = self._shown()
        lines = [f"  {name:<20}" + "".join(f"{each:>10}" for each in values) for name, *values in [("", *head), *rows]]
        return "\n".join([self.verdict(), *lines])

    def _repr_html_(self) -> str:
        head, rows = self._shown()
        body = "".join(f"<tr>{''.join(f'<td>{each}</td>' for each in row)}</tr>" for row in rows)
        heads = "".join(f"<th>{each}</th>" for each in ("", *head))
        return (
            f"<p><b>{html.escape(self.verdict())}</b></p>"
            f"<table style='margin-left:0'><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{_REMARK}{_LIVE_REMARK if _RECORDED in head else ''}</p>"
        )

    def _shown(self) -> tuple[list[str], list[list[str]]]:
        """The heads of the columns, and the rows: a name and what is in each column."""
        runs = {_RECORDED: self.recorded, "before": self.before, "after": self.after}
        columns = {}
        for head, run in runs.items():
            found = run.summary()
            columns[head] = [_show(name, found[name]) for name in _MEASURES]
        if columns[_RECORDED] == columns["before"]:
            del columns[_RECORDED]
        return [*columns], [list(row) for row in zip(map(_words, _MEASURES), *columns.values(), strict=True)]


def _sent(batch: Batch) -> tuple[int, int]:
    return batch.sent_ns, batch.number


def _what(batch: Batch) -> tuple[object, ...]:
    return batch.requests, batch.sent_ns


def _told(batch: Batch | None, begin_ns: int) -> str:
    return "there is none" if batch is None else f"at {(batch.sent_ns - begin_ns) / 1e6:.1f} ms {batch.why}"


def _words(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ") + (" (ms)" if name.endswith("_ms") else "")


def _show(name: str, value: float) -> str:
    return _MEASURES[name].format(value)
