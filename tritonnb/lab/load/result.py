"""The result of a load: client-side measurements, and a recording of the server."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from tritonnb.core.accessors import extensible
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.html_table import html_report
from tritonnb.core.json_types import Json
from tritonnb.recording.generations import TokenTimes
from tritonnb.recording.recording import Recording
from tritonnb.telemetry.quantiles import quantile

if TYPE_CHECKING:
    import pandas

#: Columns of the table of responses: monotonic times in ns, rows, 0 or the number of the error, the time of the first
#: of several responses, and the number of generated tokens.
INTENDED, SENT, COMPLETED, ROWS, ERROR, FIRST, TOKENS = range(COLUMNS := 7)
_PERCENTILES = (50, 90, 95, 99)


@extensible
@with_short_tracebacks
@dataclass(frozen=True)
class LoadResult:
    """Client-side measurements of a load.

    Attributes
    ----------
    title : str
        Model and workload.
    responses : numpy.ndarray
        ``[completed requests, 7]`` of int64: intended send time, actual send time and completion time (ns, monotonic
        clock), rows, 0 or the number of the error, the time of the first response (ns; 0 if unknown), and the number of
        generated tokens (the responses of a model that does not count them).
    error_messages : sequence of str
        The errors, numbered from 1 in ``responses``.
    intended_rate : float or None
        Intended requests per second of an open loop; None for a closed loop.
    sent : int
        Requests sent, completed or not.
    recording : Recording or None
        Recording of the server; None for a server outside this process, or while the load is running.
    note : str
        What could not be measured, and why; why the load ended, if its server was gone.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=4)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     result = tnb.load(server["double"], clients=2, requests=40).wait()
    >>> result.sent, len(result.latencies_ms)
    (40, 40)
    >>> result.percentile(50) <= result.percentile(99)
    True
    >>> result.summary()["requests"], result.summary()["failed"]
    (40, 0)
    >>> len(result.to_pandas())
    40
    >>> "requests/s" in result.verdict()
    True
    """

    plot: ClassVar[Callable[..., Any]]
    plot_cdf: ClassVar[Callable[..., Any]]
    plot_tokens: ClassVar[Callable[..., Any]]

    title: str
    responses: npt.NDArray[np.int64]
    error_messages: Sequence[str]
    intended_rate: float | None
    sent: int
    recording: Recording | None = None
    note: str = ""

    @cached_property
    def latencies_ms(self) -> npt.NDArray[np.float64]:
        """Latency of each successful request, from its *intended* send time to its response.

        Latencies that count from the actual send time leave out the wait of clients whose requests the load generator
        sent too late (coordinated omission). In a closed loop the intended time is the actual send time.
        """
        succeeded = self.responses[self.responses[:, ERROR] == 0]
        return np.asarray(succeeded[:, COMPLETED] - succeeded[:, INTENDED], np.float64) / 1e6

    @cached_property
    def _sorted_ms(self) -> list[float]:
        ordered: list[float] = np.sort(self.latencies_ms).tolist()
        return ordered

    @property
    def requests(self) -> int:
        """Number of completed requests."""
        return len(self.responses)

    @property
    def errors(self) -> dict[str, int]:
        """Number of requests by error message."""
        counts = Counter(self.responses[:, ERROR].tolist())
        return {message: counts[number] for number, message in enumerate(self.error_messages, 1) if counts[number]}

    @property
    def failed(self) -> int:
        """Number of requests that completed with an error."""
        return int(np.count_nonzero(self.responses[:, ERROR]))

    @property
    def duration_s(self) -> float:
        """Seconds from the first intended send time to the last response."""
        if not self.requests:
            return 0.0
        return float(self.responses[:, COMPLETED].max() - self.responses[:, INTENDED].min()) / 1e9

    @property
    def rate(self) -> float:
        """Successful requests per second."""
        return len(self.latencies_ms) / self.duration_s if self.requests else 0.0

    @cached_property
    def token_times(self) -> TokenTimes:
        """Times of the tokens of each generation: the requests that were answered by several tokens."""
        table = self.responses
        generated = table[(table[:, ERROR] == 0) & (table[:, TOKENS] > 1) & (table[:, FIRST] > 0)]
        return TokenTimes(*(generated[:, column].tolist() for column in (INTENDED, FIRST, COMPLETED, TOKENS)))

    def percentile(self, percent: float) -> float:
        """Return a percentile (0 to 100) of the latency in ms; NaN if no request succeeded.

        Parameters
        ----------
        percent : float
        """
        return quantile(self._sorted_ms, percent / 100) if self._sorted_ms else math.nan

    def summary(self) -> Json:
        """Return the key figures of the measurement.

        Returns
        -------
        dict
            ``requests``, ``rows``, ``failed`` : int
                Completed requests, rows of successful requests, and failed requests.
            ``duration_s`` : float
                Seconds from the first intended send time to the last response.
            ``intended_rate``, ``rate``, ``rows_per_second`` : float
                Intended requests, successful requests, and rows per second.
            ``latency_mean_ms``, ``latency_p50_ms``, ..., ``latency_p99_ms``, ``latency_max_ms`` : float
                Latency of successful requests in milliseconds.
            ``scheduling_lag_p99_ms`` : float
                99th percentile of the delay of the load generator, in milliseconds.
            ``in_flight`` : float
                Mean number of requests in flight: by Little's law the rate times the mean latency.
            ``tokens``, ``tokens_per_second``, ``time_to_first_token_p50_ms``, ``..._p99_ms``, \
            ``time_per_output_token_p50_ms``, ``..._p99_ms`` : float
                Only of a model that generates tokens: see `TokenTimes`.
            ``mean_batch_size``, ``busy`` : float
                Only with a recording: rows per batch, and the mean share (0 to 1) of the time in which an instance
                executed a batch.
        """
        succeeded = self.responses[:, ERROR] == 0
        figures: Json = {
            "requests": self.requests,
            "rows": int(self.responses[succeeded, ROWS].sum()),
            "failed": self.failed,
            "duration_s": self.duration_s,
            "intended_rate": self.intended_rate,
            "rate": self.rate,
            "rows_per_second": float(self.responses[succeeded, ROWS].sum()) / self.duration_s if self.requests else 0.0,
            "latency_mean_ms": float(self.latencies_ms.mean()) if len(self.latencies_ms) else math.nan,
            **{f"latency_p{percent}_ms": self.percentile(percent) for percent in _PERCENTILES},
            "latency_max_ms": self.percentile(100),
            "scheduling_lag_p99_ms": self._scheduling_lag_p99_ms(),
            "in_flight": self._in_flight(),
        }
        figures.update(self.token_times.summary())
        if self.recording is not None and self.recording.batches:
            figures["mean_batch_size"] = self.recording.summary()["mean_batch_size"]
            figures["busy"] = self._busy(self.recording)
        return figures

    def verdict(self) -> str:
        """Summarize the measurement in one or two sentences."""
        if not self.requests:
            return f"{self.title}: no request has completed. {self.note}".rstrip()
        figures = self.summary()
        if not len(self.latencies_ms):
            text = f"{self.title}: {figures['requests']} requests in {figures['duration_s']:.1f} s, all failed."
            return f"{text} {self.note}".rstrip()
        intended = f" of {self.intended_rate:.0f} requests/s intended" if self._has_rate() else ""
        failed = f"{self.failed} failed" if self.failed else "none failed"
        text = (
            f"{self.title}: {figures['requests']} requests in {figures['duration_s']:.1f} s "
            f"({figures['rate']:.0f} requests/s{intended}), {failed}; latency p50 {figures['latency_p50_ms']:.2f} ms, "
            f"p99 {figures['latency_p99_ms']:.2f} ms; {figures['in_flight']:.1f} requests in flight on average "
            f"({figures['rate']:.0f} requests/s × {figures['latency_mean_ms']:.2f} ms)."
        )
        if self.token_times.count:
            text += f" {self.token_times.verdict()}"
        if self.note:
            text += f" {self.note}"
        is_slow = self._has_rate() and self.rate < 0.9 * (self.intended_rate or 0)
        if is_slow and not self.failed and self._latency_grew():
            text += " The server is overloaded: the latency grew during the load."
        return text

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row for each completed request; times in milliseconds from the first intended send time.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas

        begin = self.responses[:, INTENDED].min() if self.requests else 0
        names = ["", *self.error_messages]
        return pandas.DataFrame(
            {
                "intended_ms": (self.responses[:, INTENDED] - begin) / 1e6,
                "sent_ms": (self.responses[:, SENT] - begin) / 1e6,
                "completed_ms": (self.responses[:, COMPLETED] - begin) / 1e6,
                "latency_ms": (self.responses[:, COMPLETED] - self.responses[:, INTENDED]) / 1e6,
                "rows": self.responses[:, ROWS],
                "tokens": self.responses[:, TOKENS],
                "error": [names[number] for number in self.responses[:, ERROR]],
            }
        )

    def __repr__(self) -> str:
        errors = [f"  {count} x {message}" for message, count in self.errors.items()]
        return "\n".join([self.verdict(), *(f"  {name:<24}{value:>12}" for name, value in self._table()), *errors])

    def _repr_html_(self) -> str:
        errors = [f"{count} × {message}" for message, count in self.errors.items()]
        return html_report(self.verdict(), (), self._table(), errors)

    def _table(self) -> list[tuple[str, str]]:
        shown = [(name, value) for name, value in self.summary().items() if value is not None and not math.isnan(value)]
        return [(_label(name), _format(name, value)) for name, value in shown]

    def _latency_grew(self) -> bool:
        """Return whether the last quarter of the requests took more than twice as long as the first quarter."""
        order = np.argsort(self.responses[:, INTENDED])
        latencies = (self.responses[:, COMPLETED] - self.responses[:, INTENDED])[order]
        quarter = max(1, len(order) // 4)
        return bool(np.median(latencies[-quarter:]) > 2 * np.median(latencies[:quarter]))

    def _has_rate(self) -> bool:
        return self.intended_rate is not None and math.isfinite(self.intended_rate)

    def _scheduling_lag_p99_ms(self) -> float:
        if not self.requests:
            return math.nan
        return quantile(np.sort(self.responses[:, SENT] - self.responses[:, INTENDED]).tolist(), 0.99) / 1e6

    def _in_flight(self) -> float:
        if not self.requests:
            return 0.0
        return float((self.responses[:, COMPLETED] - self.responses[:, INTENDED]).sum()) / 1e9 / self.duration_s

    def _busy(self, recording: Recording) -> float:
        batches = recording.batches
        span = max(batch.exec_end_ns for batch in batches) - min(batch.exec_start_ns for batch in batches)
        return sum(batch.compute_ns for batch in batches) / (len(recording.instances) * span) if span else 1.0


def _label(name: str) -> str:
    for ending, unit in (("_ms", " (ms)"), ("_s", " (s)")):
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " ") + unit
    return name.replace("_", " ")


def _format(name: str, value: float) -> str:
    if name == "busy":
        return f"{value:.0%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
