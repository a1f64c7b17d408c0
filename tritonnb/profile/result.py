"""What a load measured, from the clients' side, with a recording of what the server did meanwhile."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritonnb.recording.recording import Recording

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Columns of the table of answers: monotonic times in ns, rows, and 1 + the error's index or 0.
INTENDED, SENT, ANSWERED, ROWS, ERROR = range(5)
_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class LoadResult:
    """The answers of a load.

    Attributes
    ----------
    title : str
        What was loaded, and how.
    answers : numpy.ndarray
        ``[answered requests, 5]`` of int64: when each was to be sent, when it was sent, when it was
        answered (ns, monotonic clock), its rows, and 0 or the number of its error.
    messages : sequence of str
        The errors that answers number, from 1 on.
    intended_rate : float or None
        Requests a second that an open loop was to send; None for a closed loop.
    sent : int
        Requests that left, answered or not.
    recording : Recording or None
        What the server did meanwhile; None where it is not in this process, or the load goes on.
    """

    title: str
    answers: npt.NDArray[np.int64]
    messages: Sequence[str]
    intended_rate: float | None
    sent: int
    recording: Recording | None = None

    @cached_property
    def latencies_ms(self) -> npt.NDArray[np.float64]:
        """Of each success, from when it *should* have been sent to its answer.

        A generator that waits while the server is slow, and counts from when it sent at last, leaves out
        the wait of the clients it stands for (coordinated omission). In a closed loop nothing is
        intended before the client is free: both times are one.
        """
        good = self.answers[self.answers[:, ERROR] == 0]
        return np.asarray(good[:, ANSWERED] - good[:, INTENDED], np.float64) / 1e6

    @property
    def requests(self) -> int:
        """Requests that were answered."""
        return len(self.answers)

    @property
    def errors(self) -> dict[str, int]:
        """How often each error came."""
        counts = Counter(self.answers[:, ERROR].tolist())
        return {message: counts[number] for number, message in enumerate(self.messages, 1) if counts[number]}

    @property
    def failed(self) -> int:
        """Requests that were answered with an error."""
        return int(np.count_nonzero(self.answers[:, ERROR]))

    @property
    def duration_s(self) -> float:
        """From the first request's time to the last answer."""
        if not self.requests:
            return 0.0
        return float(self.answers[:, ANSWERED].max() - self.answers[:, INTENDED].min()) / 1e9

    @property
    def rate(self) -> float:
        """Successes a second."""
        return len(self.latencies_ms) / self.duration_s if self.requests else 0.0

    def percentile(self, percent: float) -> float:
        """A percentile of the latency in ms; not a number if nothing succeeded."""
        return float(np.percentile(self.latencies_ms, percent)) if len(self.latencies_ms) else math.nan

    def summary(self) -> dict[str, Any]:
        """The measurement in numbers; times in milliseconds.

        ``in_flight`` is the mean number of requests that were under way: by Little's law the rate times
        the mean latency. ``scheduling_lag_p99_ms`` is how late the generator itself was. ``busy`` is the share of
        time in which an instance ran a batch, the mean over all instances.
        """
        good = self.answers[:, ERROR] == 0
        found: dict[str, Any] = {
            "requests": self.requests,
            "rows": int(self.answers[good, ROWS].sum()),
            "failed": self.failed,
            "duration_s": self.duration_s,
            "intended_rate": self.intended_rate,
            "rate": self.rate,
            "rows_per_second": float(self.answers[good, ROWS].sum()) / self.duration_s if self.requests else 0.0,
            "latency_mean_ms": float(self.latencies_ms.mean()) if len(self.latencies_ms) else math.nan,
            **{f"latency_p{each}_ms": self.percentile(each) for each in _PERCENTILES},
            "latency_max_ms": self.percentile(100),
            "scheduling_lag_p99_ms": self._late_p99_ms(),
            "in_flight": self._in_flight(),
        }
        if self.recording is not None and self.recording.batches:
            found["mean_batch_size"] = self.recording.summary()["mean_batch_size"]
            found["busy"] = self._busy(self.recording)
        return found

    def verdict(self) -> str:
        """The measurement in a sentence or two."""
        if not self.requests:
            return f"{self.title}: nothing was answered."
        found = self.summary()
        if not len(self.latencies_ms):
            return f"{self.title}: {found['requests']} requests in {found['duration_s']:.1f} s, all failed."
        intended = f" of {self.intended_rate:.0f}/s intended" if self._has_rate() else ""
        failed = f"{self.failed} failed" if self.failed else "none failed"
        text = (
            f"{self.title}: {found['requests']} requests in {found['duration_s']:.1f} s "
            f"({found['rate']:.0f}/s{intended}), {failed}; latency p50 {found['latency_p50_ms']:.2f} ms, "
            f"p99 {found['latency_p99_ms']:.2f} ms; {found['in_flight']:.1f} requests in flight on average "
            f"({found['rate']:.0f}/s × {found['latency_mean_ms']:.2f} ms)."
        )
        if self._has_rate() and self.rate < 0.9 * (self.intended_rate or 0) and not self.failed:
            text += " The server could not keep up: requests waited longer and longer."
        return text

    def plot(self, ax: Axes | None = None) -> Figure:
        """The latency of each request over time, into ``ax`` or a new figure that a notebook shows."""
        from tritonnb.figures import load as load_figure

        return load_figure.draw(self, ax)

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each answered request; times in milliseconds from the first one.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas

        begin = self.answers[:, INTENDED].min() if self.requests else 0
        names = ["", *self.messages]
        return pandas.DataFrame(
            {
                "intended_ms": (self.answers[:, INTENDED] - begin) / 1e6,
                "sent_ms": (self.answers[:, SENT] - begin) / 1e6,
                "answered_ms": (self.answers[:, ANSWERED] - begin) / 1e6,
                "latency_ms": (self.answers[:, ANSWERED] - self.answers[:, INTENDED]) / 1e6,
                "rows": self.answers[:, ROWS],
                "error": [names[number] for number in self.answers[:, ERROR]],
            }
        )

    def __repr__(self) -> str:
        errors = [f"  {count} x {message}" for message, count in self.errors.items()]
        return "\n".join([self.verdict(), *(f"  {name:<24}{value:>12}" for name, value in self._table()), *errors])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in self._table())
        errors = "".join(f"<li>{count} × {html.escape(message)}</li>" for message, count in self.errors.items())
        return f"<p><b>{html.escape(self.verdict())}</b></p><table><tbody>{rows}</tbody></table><ul>{errors}</ul>"

    def _table(self) -> list[tuple[str, str]]:
        shown = [(name, each) for name, each in self.summary().items() if each is not None and not math.isnan(each)]
        return [(_words(name), _show(name, value)) for name, value in shown]

    def _has_rate(self) -> bool:
        return self.intended_rate is not None and math.isfinite(self.intended_rate)

    def _late_p99_ms(self) -> float:
        if not self.requests:
            return math.nan
        return float(np.percentile(self.answers[:, SENT] - self.answers[:, INTENDED], 99)) / 1e6

    def _in_flight(self) -> float:
        if not self.requests:
            return 0.0
        return float((self.answers[:, ANSWERED] - self.answers[:, INTENDED]).sum()) / 1e9 / self.duration_s

    def _busy(self, recording: Recording) -> float:
        batches = recording.batches
        span = max(each.exec_end_ns for each in batches) - min(each.exec_start_ns for each in batches)
        return sum(each.compute_ns for each in batches) / (len(recording.instances) * span) if span else 1.0


def _words(name: str) -> str:
    for ending, unit in (("_ms", " (ms)"), ("_s", " (s)")):
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " ") + unit
    return name.replace("_", " ")


def _show(name: str, value: float) -> str:
    if name == "busy":
        return f"{value:.0%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
