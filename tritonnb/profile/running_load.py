"""Traffic that is under way: it is sent from a thread of its own, and measured from the clients' side."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import math
import threading
import time
from array import array
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import UnavailableError
from tritonnb.profile.examples import Examples
from tritonnb.profile.notebook_wait import wait
from tritonnb.profile.result import LoadResult
from tritonnb.profile.targets import PendingRequest, Target
from tritonnb.profile.workload import ClosedLoopWorkload, OpenLoop
from tritonnb.recording.recording import Recording
from tritonnb.simulation.arrivals import Arrival

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle

#: How often a load that waits for its last answers looks whether the server still lives, in seconds.
_LOOK_S = 0.1
#: How long a client of a closed loop waits after an error, so that refusals do not become a busy loop.
_RETRY_NS = 10_000_000
#: Different error texts that are told apart.
_MESSAGES = 100
#: Answers kept of traffic without an end.
_KEPT = 100_000


class Load:
    """Traffic that is under way, or over.

    Use ``load.wait()`` in a cell, ``await load`` in an event loop, ``load.stop()`` to end it. Counts and
    `result` can be read at any time.

    Attributes
    ----------
    sent, answered, failed : int
        Requests so far; failed ones are among the answered.
    finished : concurrent.futures.Future
        Resolved with the result when the load is over.
    """

    def __init__(
        self,
        target: Target,
        asked: OpenLoop | ClosedLoopWorkload,
        inputs: Examples,
        recorded: ModelHandle | None,
        grace: float,
    ) -> None:
        self.sent = 0
        self.answered = 0
        self.failed = 0
        self._target = target
        self._workload = asked
        self._inputs = inputs
        self._recorded = recorded
        self._grace_ns = round(grace * 1e9)
        self._active_ns = time.monotonic_ns()  # when something was sent or answered last
        self._outstanding: dict[PendingRequest, None] = {}
        self._counting = threading.Lock()  # who answers: the target's thread, and at the end the traffic's own
        self._answers = array("q")
        self._messages: dict[str, int] = {}
        self._open_sequences: dict[int | str, None] = {}
        self._free: SimpleQueue[PendingRequest | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._draining = False
        self.finished: concurrent.futures.Future[LoadResult] = concurrent.futures.Future()
        self.finished.set_running_or_notify_cancel()  # so that nobody who waits for it can cancel it
        threading.Thread(target=self._run, name="tritonnb-load", daemon=True).start()

    # --- using it -----------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the last answer has come."""
        return self.finished.done()

    @property
    def in_flight(self) -> int:
        """Requests that were sent and not answered yet."""
        return self.sent - self.answered

    @property
    def result(self) -> LoadResult:
        """What was measured so far; with the recording once it is `done`."""
        return self.finished.result() if self.done else self._measured(None)

    def newest(self, count: int) -> npt.NDArray[np.int64]:
        """The answers that came last, as in `LoadResult.answers`."""
        return self._table(max(0, len(self._answers) // 5 - count))

    def wait(self, timeout: float | None = None) -> LoadResult:
        """Wait until the traffic is over and everything is answered; a notebook shows how far it is.

        Requests that a server does not answer count as failed after the ``grace`` of `load`. An interrupt
        (``KeyboardInterrupt``) stops the traffic; what was measured stays in `result`.

        Parameters
        ----------
        timeout : float, optional
            Seconds.

        Raises
        ------
        TimeoutError
            If it is not over by then, with what is in flight; it goes on.
        """
        return wait(self.finished, timeout, self._progress, self.stop)

    def __await__(self) -> Generator[Any, None, LoadResult]:
        return asyncio.wrap_future(self.finished).__await__()

    def stop(self) -> None:
        """Send nothing more; does not wait for what is under way. Harmless twice."""
        self._stopping.set()
        self._free.put(None)

    def __repr__(self) -> str:
        return repr(self.result) if self.done else f"<{self._progress()}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_() if self.done else f"<b>{self._title()}</b>: {self._counts()}"

    def _title(self) -> str:
        return f"'{self._target.spec.name}', {self._workload}"

    def _progress(self) -> str:
        return f"load of {self._title()}: {self._counts()}"

    def _counts(self) -> str:
        return f"{self.sent} sent, {self.answered} answered, {self.failed} failed, {self.in_flight} in flight"

    # --- sending: on the traffic's own thread -------------------------------------------------

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
            self.finished.set_result(self._measured(self._concerning(recording)))
        finally:
            self._target.close()

    @contextmanager
    def _recording(self) -> Iterator[Recording | None]:
        if self._recorded is None:
            yield None
            return
        server = self._recorded.server
        try:
            with server.record() as recording:
                yield recording
        except UnavailableError:
            if server.alive:
                raise

    def _concerning(self, recording: Recording | None) -> Recording | None:
        """What concerns the model; of an ensemble everything, since other models do its work."""
        name = self._target.spec.name
        config = None if recording is None else recording.configs.get(name)
        if recording is None or not recording.events or (config is not None and config.HasField("ensemble_scheduling")):
            return recording
        return recording.of(name)

    def _open_loop(self, asked: OpenLoop) -> None:
        begin = time.monotonic_ns()
        leaving: list[tuple[int, int, PendingRequest]] = []
        for number, arrival in enumerate(asked.arrivals):
            due = begin + round(arrival.time_us * 1000)
            self._cancel_until(leaving, due)
            if not self._sleep_until(due) or not self._target.alive:
                return
            shot = self._send(arrival, due, 0)
            if arrival.cancel_us is not None:
                heapq.heappush(leaving, (begin + round(arrival.cancel_us * 1000), number, shot))
        self._cancel_until(leaving, None)

    def _cancel_until(self, leaving: list[tuple[int, int, PendingRequest]], due_ns: int | None) -> None:
        while leaving and (due_ns is None or leaving[0][0] <= due_ns):
            when, _, shot = heapq.heappop(leaving)
            if self._sleep_until(when):
                self._target.cancel(shot)

    def _sleep_until(self, due_ns: int) -> bool:
        """Wait for a moment; false if the traffic was stopped."""
        while not self._stopping.is_set():
            left = due_ns - time.monotonic_ns()
            if left <= 0:
                return True
            self._stopping.wait(left / 1e9)
        return False

    def _closed_loop(self, asked: ClosedLoopWorkload) -> None:
        begin = time.monotonic_ns()
        end = begin + asked.duration * 1e9
        limited = math.isfinite(asked.requests)
        dealers = asked.dealers()
        due: list[tuple[int, int]] = [(begin, client) for client in range(asked.clients)]
        while self.sent < asked.requests and not self._stopping.is_set() and self._target.alive:
            now = time.monotonic_ns()
            if now >= end:
                return
            if due and due[0][0] <= now:
                _, client = heapq.heappop(due)
                self._send(next(dealers[client]), now, client)
                continue
            if not due and limited and self._silent(now):
                return
            wake = min(end, due[0][0] if due else self._active_ns + self._grace_ns if limited else math.inf)
            try:
                shot = self._free.get(timeout=None if wake == math.inf else max(0.0, (wake - now) / 1e9))
            except Empty:
                continue
            if shot is not None:
                pause_ns = max(round(asked.think_ms * 1e6), _RETRY_NS if shot.error else 0)
                heapq.heappush(due, (time.monotonic_ns() + pause_ns, shot.client))

    def _end_sequences(self) -> None:
        if self._workload.ends_sequences:
            for sequence_id in list(self._open_sequences):
                self._send(Arrival(0.0, sequence_id=sequence_id, sequence_end=True), time.monotonic_ns(), 0)

    def _drain(self) -> None:
        self._draining = True
        self._active_ns = time.monotonic_ns()
        while self.in_flight and self._target.alive:
            with suppress(Empty):
                self._free.get(timeout=min(_LOOK_S, self._grace_ns / 1e9))
            if self._silent(time.monotonic_ns()):
                self._give_up()

    def _silent(self, now_ns: int) -> bool:
        """Whether the server has answered nothing for the grace period."""
        return now_ns - self._active_ns >= self._grace_ns

    def _give_up(self) -> None:
        """Count what is under way as failed."""
        for shot in list(self._outstanding):
            self._answer(shot, time.monotonic_ns(), f"no answer within {self._grace_ns / 1e9:g} s")
            self._target.cancel(shot)

    def _send(self, arrival: Arrival, intended_ns: int, client: int) -> PendingRequest:
        sequence = arrival.sequence_id
        if sequence and arrival.sequence_end:
            self._open_sequences.pop(sequence, None)
        elif sequence:
            self._open_sequences[sequence] = None
        rows = arrival.rows if self._workload.sized else None
        shot = PendingRequest(arrival, self._inputs.take(rows), client, intended_ns, self._answer)
        self.sent += 1
        self._outstanding[shot] = None
        shot.sent_ns = self._active_ns = time.monotonic_ns()
        self._target.send(shot)
        return shot

    # --- answers: on the target's threads -----------------------------------------------------

    def _answer(self, shot: PendingRequest, time_ns: int, error: str) -> None:
        with self._counting:
            if shot not in self._outstanding:
                return  # it was given up
            del self._outstanding[shot]
            self._active_ns = time_ns
            self._count(shot, time_ns, error)
        if self._draining or isinstance(self._workload, ClosedLoopWorkload):
            self._free.put(shot)

    def _count(self, shot: PendingRequest, time_ns: int, error: str) -> None:
        number = 0
        if error:
            self.failed += 1
            if len(self._messages) >= _MESSAGES:
                error = "other errors"
            number = self._messages.setdefault(error, len(self._messages) + 1)
        shot.error = error
        rows = len(next(iter(shot.inputs.values()), ())) if self._target.spec.max_batch_size else 1
        # One call, so that a reader in another thread never finds half of it.
        self._answers.extend((shot.intended_ns, shot.sent_ns, time_ns, rows, number))
        if not self._workload.ends and len(self._answers) > 2 * 5 * _KEPT:
            del self._answers[: 5 * _KEPT]
        self.answered += 1

    def _table(self, begin: int) -> npt.NDArray[np.int64]:
        return np.frombuffer(self._answers[5 * begin :], np.int64).reshape(-1, 5)

    def _measured(self, recording: Recording | None) -> LoadResult:
        rate = self._workload.rate if isinstance(self._workload, OpenLoop) else None
        return LoadResult(self._title(), self._table(0), list(self._messages), rate, self.sent, recording)
