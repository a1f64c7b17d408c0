"""A running load: sends requests on its own thread and measures them on the client side.

The thread waits with a timeout and wakes about 0.1 ms late. Event loops round timers to milliseconds, which is the
whole interval at 1,000 requests per second.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import html
import math
import threading
import time
from array import array
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

import numpy as np
import numpy.typing as npt

from tritonnb.core.copies import OfThisProcess
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.forks import call_in_children, fork_safe
from tritonnb.lab.load.examples import NextExample
from tritonnb.lab.load.notebook_wait import failed_future, wait
from tritonnb.lab.load.result import COLUMNS, LoadResult
from tritonnb.lab.load.targets import PendingRequest, Target, describe_missing_times
from tritonnb.lab.load.workload import AnyLoop, ClosedLoopWorkload, OpenLoop
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.recording import Recording
from tritonnb.server.model_handle import ModelHandle

#: Poll interval in seconds for the state of the server while a load waits for its last responses.
_POLL_S = 0.1
#: Pause of a client of a closed loop after an error, so that errors do not cause a busy loop.
_RETRY_NS = 10_000_000
#: Maximum number of different error messages that are counted separately.
_MAX_MESSAGES = 100
#: Responses kept of a load without an end.
_KEPT = 100_000


@with_short_tracebacks
class Load(OfThisProcess):
    """A running or finished load.

    Use ``load.wait()`` in a cell, ``await load`` in an event loop, and ``load.stop()`` to stop it. Counts and `result`
    can be read at any time.

    Attributes
    ----------
    sent, completed, failed : int
        Requests so far; ``completed`` includes ``failed``.
    finished : concurrent.futures.Future
        Resolves with the result when the load has finished.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=4)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     load = tnb.load(server["double"], clients=2, requests=40)
    ...     _ = load.wait()
    >>> load.completed, load.failed
    (40, 0)
    >>> load.stop()
    >>> load.latest_responses(5).shape
    (5, 7)
    """

    def __init__(
        self, target: Target, workload: AnyLoop, next_example: NextExample, recorded: ModelHandle | None, grace: float
    ) -> None:
        self.sent = 0
        self.completed = 0
        self.failed = 0
        self._target = target
        self._workload = workload
        self._next_example = next_example
        self._recorded = recorded
        self._grace_ns = round(grace * 1e9)
        self._active_ns = time.monotonic_ns()  # time of the last request or response
        self._outstanding: dict[PendingRequest, None] = {}
        # Completions come from the target's thread, and at the end from the thread of the load.
        self._lock = fork_safe(threading.Lock())
        self._responses = array("q")
        self._error_messages: dict[str, int] = {}
        self._open_sequences: dict[int | str, None] = {}
        self._completed_requests: SimpleQueue[PendingRequest | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._draining = False
        self.finished: concurrent.futures.Future[LoadResult] = concurrent.futures.Future()
        self.finished.set_running_or_notify_cancel()  # so that waiting code cannot cancel it
        call_in_children(self._forked)
        threading.Thread(target=self._run, name="tritonnb-load", daemon=True).start()

    # --- public -----------------------------------------------------------------------------

    def _not_copied(self) -> tuple[str, str]:
        return f"load of {self._title()}", "wait for its end, and copy its result (load.wait())"

    def _forked(self) -> None:
        """Fail a running load in a forked child, where its thread does not exist."""
        self._stopping = threading.Event()
        if not self.done:
            self.finished = failed_future("load")

    @property
    def done(self) -> bool:
        """True if the load has finished."""
        return self.finished.done()

    @property
    def in_flight(self) -> int:
        """Number of requests sent and not completed yet."""
        return self.sent - self.completed

    @property
    def result(self) -> LoadResult:
        """The measurement so far; includes the recording once the load is `done`."""
        return self.finished.result() if self.done else self._make_result(None)

    def latest_responses(self, count: int) -> npt.NDArray[np.int64]:
        """Return the last responses, as in `LoadResult.responses`.

        Parameters
        ----------
        count : int
            The largest number of responses.
        """
        return self._table(max(0, len(self._responses) // COLUMNS - count))

    def wait(self, timeout: float | None = None) -> LoadResult:
        """Wait until the load has finished; a notebook shows its progress.

        Requests without a response count as failed after the ``grace`` of `load`. ``KeyboardInterrupt`` stops the load;
        the measurement stays in `result`.

        Parameters
        ----------
        timeout : float, optional
            Seconds.

        Raises
        ------
        TimeoutError
            If the load has not finished by then; it keeps running.
        """
        return wait(self.finished, timeout, self._progress, self.stop)

    def __await__(self) -> Generator[object, None, LoadResult]:
        return asyncio.wrap_future(self.finished).__await__()

    def stop(self) -> None:
        """Stop sending, without waiting for requests in flight; a second call has no effect."""
        self._stopping.set()
        self._completed_requests.put(None)

    def __repr__(self) -> str:
        return repr(self.result) if self.done else f"<{self._progress()}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_() if self.done else f"<b>{html.escape(self._title())}</b>: {self._counts()}"

    def _title(self) -> str:
        return f"'{self._target.spec.name}', {self._workload}"

    def _progress(self) -> str:
        return f"load of {self._title()}: {self._counts()}"

    def _counts(self) -> str:
        return f"{self.sent} sent, {self.completed} completed, {self.failed} failed, {self.in_flight} in flight"

    # --- sending, on the thread of the load -------------------------------------------------

    def _run(self) -> None:
        try:
            with self._recording() as recording:
                if isinstance(self._workload, OpenLoop):
                    self._open_loop(self._workload)
                else:
                    self._closed_loop(self._workload)
                self._end_sequences()
                self._drain()
        except BaseException as error:
            self.finished.set_exception(error)
        else:
            self.finished.set_result(self._make_result(self._of_model(recording)))
        finally:
            self._target.close()

    @contextmanager
    def _recording(self) -> Iterator[Recording | None]:
        if self._recorded is None:
            yield None
            return
        with self._recorded.server.record() as recording:
            yield recording

    def _of_model(self, recording: Recording | None) -> Recording | None:
        """Return the recording of the model; of an ensemble everything, because its steps run on other models."""
        name = self._target.spec.name
        config = None if recording is None else recording.configs.get(name)
        if recording is None or not recording.events or (config is not None and config.HasField("ensemble_scheduling")):
            return recording
        return recording.for_model(name)

    def _open_loop(self, workload: OpenLoop) -> None:
        begin = time.monotonic_ns()
        cancellations: list[tuple[int, int, PendingRequest]] = []
        for number, arrival in enumerate(workload.arrivals):
            due = begin + round(arrival.time_us * 1000)
            self._cancel_until(cancellations, due)
            if not self._sleep_until(due) or self._target.end:
                return
            pending = self._send(arrival, due, 0)
            if arrival.cancel_us is not None:
                heapq.heappush(cancellations, (begin + round(arrival.cancel_us * 1000), number, pending))
        self._cancel_until(cancellations, None)

    def _cancel_until(self, cancellations: list[tuple[int, int, PendingRequest]], due_ns: int | None) -> None:
        while cancellations and (due_ns is None or cancellations[0][0] <= due_ns):
            when, _, pending = heapq.heappop(cancellations)
            if self._sleep_until(when):
                self._target.cancel(pending)

    def _sleep_until(self, due_ns: int) -> bool:
        """Wait until a time; false if the load was stopped."""
        while not self._stopping.is_set():
            left = due_ns - time.monotonic_ns()
            if left <= 0:
                return True
            self._stopping.wait(left / 1e9)
        return False

    def _closed_loop(self, workload: ClosedLoopWorkload) -> None:
        begin = time.monotonic_ns()
        end = begin + workload.duration * 1e9
        limited = math.isfinite(workload.requests)
        requests = workload.client_requests()
        due: list[tuple[int, int]] = [(begin, client) for client in range(workload.clients)]
        while self.sent < workload.requests and not (self._stopping.is_set() or self._target.end):
            now = time.monotonic_ns()
            if now >= end:
                return
            if due and due[0][0] <= now:
                _, client = heapq.heappop(due)
                self._send(next(requests[client]), now, client)
                continue
            if not due and limited and self._is_silent(now):
                return
            wake = min(end, due[0][0] if due else self._active_ns + self._grace_ns if limited else math.inf)
            timeout_s = None if wake == math.inf else max(0.0, (wake - now) / 1e9)
            try:
                pending = self._completed_requests.get(timeout=timeout_s)
            except Empty:
                continue
            if pending is not None:
                pause_ns = max(round(workload.think_ms * 1e6), _RETRY_NS if pending.error else 0)
                heapq.heappush(due, (time.monotonic_ns() + pause_ns, pending.client))

    def _end_sequences(self) -> None:
        if self._workload.ends_sequences:
            for sequence_id in list(self._open_sequences):
                self._send(Arrival(0.0, sequence_id=sequence_id, sequence_end=True), time.monotonic_ns(), 0)

    def _drain(self) -> None:
        self._draining = True
        self._active_ns = time.monotonic_ns()
        while self.in_flight and not self._target.end:
            with suppress(Empty):
                self._completed_requests.get(timeout=min(_POLL_S, self._grace_ns / 1e9))
            if self._is_silent(time.monotonic_ns()):
                self._fail_outstanding(f"no response within {self._grace_ns / 1e9:g} s")
        self._fail_outstanding(self._target.end)

    def _is_silent(self, now_ns: int) -> bool:
        """Return whether there was neither a request nor a response during the grace period."""
        return now_ns - self._active_ns >= self._grace_ns

    def _fail_outstanding(self, error: str) -> None:
        """Fail the requests in flight."""
        for pending in list(self._outstanding):
            self._complete(pending, time.monotonic_ns(), error)
            self._target.cancel(pending)

    def _send(self, arrival: Arrival, intended_ns: int, client: int) -> PendingRequest:
        sequence = arrival.sequence_id
        if sequence and arrival.sequence_end:
            self._open_sequences.pop(sequence, None)
        elif sequence:
            self._open_sequences[sequence] = None
        rows = arrival.rows if self._workload.sets_rows else None
        pending = PendingRequest(arrival, self._next_example(rows), client, intended_ns, self._complete)
        self.sent += 1
        self._outstanding[pending] = None
        pending.sent_ns = self._active_ns = time.monotonic_ns()
        self._target.send(pending)
        return pending

    # --- responses, on the threads of the target -----------------------------------------------------

    def _complete(self, pending: PendingRequest, time_ns: int, error: str) -> None:
        with self._lock:
            if pending not in self._outstanding:
                return  # it has already failed
            del self._outstanding[pending]
            self._active_ns = time_ns
            self._count(pending, time_ns, error)
        if self._draining or isinstance(self._workload, ClosedLoopWorkload):
            self._completed_requests.put(pending)

    def _count(self, pending: PendingRequest, time_ns: int, error: str) -> None:
        number = 0
        if error:
            self.failed += 1
            if len(self._error_messages) >= _MAX_MESSAGES:
                error = "other errors"
            number = self._error_messages.setdefault(error, len(self._error_messages) + 1)
        pending.error = error
        rows = len(next(iter(pending.inputs.values()), ())) if self._target.spec.max_batch_size else 1
        # A single call, so that readers on other threads never see a partial row.
        self._responses.extend(
            (pending.intended_ns, pending.sent_ns, time_ns, rows, number, pending.first_token_ns, pending.tokens)
        )
        if not self._workload.ends and len(self._responses) > 2 * COLUMNS * _KEPT:
            del self._responses[: COLUMNS * _KEPT]
        self.completed += 1

    def _table(self, begin: int) -> npt.NDArray[np.int64]:
        return np.frombuffer(self._responses[COLUMNS * begin :], np.int64).reshape(-1, COLUMNS)

    def _make_result(self, recording: Recording | None) -> LoadResult:
        rate = self._workload.rate if isinstance(self._workload, OpenLoop) else None
        notes = [describe_missing_times(self._target), self._target.end]
        messages, note = list(self._error_messages), " ".join(filter(None, notes))
        return LoadResult(self._title(), self._table(0), messages, rate, self.sent, recording, note)
