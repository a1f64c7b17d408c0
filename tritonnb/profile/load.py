"""`load`: traffic on a model, from a thread of its own, measured from the clients' side."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import math
import threading
import time
from array import array
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.profile.examples import Examples, Inputs, Shapes, examples
from tritonnb.profile.progress import wait
from tritonnb.profile.result import LoadResult
from tritonnb.profile.targets import InProcess, OverHttp, Shot, Target
from tritonnb.profile.workload import Clients, OpenLoop, workload
from tritonnb.recording.recording import Recording
from tritonnb.simulation.arrivals import Arrival, ClosedLoop

if TYPE_CHECKING:
    from tritonnb.model_handle import ModelHandle

#: How often a load that waits for its last answers looks whether the server still lives, in seconds.
_LOOK_S = 0.1
#: How long a client of a closed loop waits after an error, so that refusals do not become a busy loop.
_RETRY_NS = 10_000_000
#: Different error texts that are told apart.
_MESSAGES = 100
#: Answers kept of traffic without an end.
_KEPT = 100_000


def load(
    model: ModelHandle | str,
    *,
    rate: float | None = None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None = None,
    clients: int | None = None,
    duration: float | None = None,
    requests: int | None = None,
    size: int | None = None,
    burst: int = 8,
    sequence_length: int | None = None,
    sequences: int = 4,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    over: str = "process",
    record: bool | None = None,
    seed: int = 0,
) -> Load:
    """Send traffic to a model, in the background.

    Give ``rate`` for an open loop, ``clients`` for a closed one, or a list of arrivals.

    Parameters
    ----------
    model : ModelHandle or str
        ``server["name"]``, or the URL of a model of any server of the v2 protocol,
        ``http://HOST:PORT/v2/models/NAME``.
    rate : float, optional
        Requests a second of an open loop.
    arrivals : str, iterable of Arrival or of (time in µs, rows), or ClosedLoop, optional
        How the requests of an open loop come: ``"constant"`` (the default), ``"poisson"``, ``"burst"``. Or
        a list of them, such as `Recording.arrivals` gives; what it says of shapes is not heeded.
    clients : int, optional
        Clients of a closed loop: each waits for its answer before it sends again.
    duration : float, optional
        Seconds; without it and ``requests``, traffic goes on until `Load.stop`, and the newest 100,000
        answers are kept.
    requests : int, optional
        How many, at most.
    size : int, optional
        Rows of each request; by default those of the inputs that were given, and 1 for generated ones.
    burst : int, optional
        Requests that come at once, for ``arrivals="burst"``.
    sequence_length : int, optional
        Send sequences of so many requests: each client of a closed loop one after the other, an open
        loop to ``sequences`` of them in turn. What is under way at the end is ended. By default 10 for a
        model with ``sequence_batching`` and for an ensemble with such a step, and 0, which is none, for any other.
    sequences : int, optional
        Sequences of an open loop that are under way at once.
    inputs : str, mapping or sequence of mappings, optional
        ``"random"`` or ``"zero"`` tensors made from the model's metadata, the tensors of a request by
        name, or several such, sent in turn.
    shapes : mapping of str to sequence of int, optional
        The shape to use for inputs of variable dimensions, without the batch dimension.
    over : str, optional
        ``"process"``, or ``"http"`` to go through the server's own socket.
    record : bool, optional
        Record what the server does meanwhile; by default if the traffic has an end.
    seed : int, optional
        Of random times and tensors.

    Returns
    -------
    Load
        At once; the traffic has begun.

    Raises
    ------
    InvalidArgumentError
        If the arguments contradict each other or do not fit the model.
    UnavailableError
        If no server answers at the URL, or ``over="http"`` asks for an endpoint that the server does not have.

    Examples
    --------
    >>> load = tnb.load(server["digits"], rate=300, arrivals="poisson", duration=5, seed=1)  # doctest: +SKIP
    >>> load.wait()  # doctest: +SKIP
    """
    target = _target(model, over)
    try:
        asked = workload(
            rate=rate,
            arrivals=arrivals,
            clients=clients,
            duration=duration,
            requests=requests,
            size=size,
            burst=burst,
            sequence_length=sequence_length,
            sequences=sequences,
            seed=seed,
            stateful=target.stateful,
        )
        tensors = examples(target.spec, inputs, shapes or {}, seed)
        limit = target.spec.max_batch_size
        if size is not None and size > max(1, limit):
            raise InvalidArgumentError(f"size must be <= {max(1, limit)} for '{target.spec.name}', got {size}")
    except BaseException:
        target.close()
        raise
    recorded = asked.ends if record is None else record
    return Load(target, asked, tensors, model if recorded and not isinstance(model, str) else None)


def _target(model: ModelHandle | str, over: str) -> Target:
    if isinstance(model, str):
        return OverHttp(model)
    if not hasattr(model, "served"):
        raise InvalidArgumentError(
            f"a load needs a model, server['NAME'] or http://HOST:PORT/v2/models/NAME, got {type(model).__name__}"
        )
    if over == "process":
        return InProcess(model)
    if over != "http":
        raise InvalidArgumentError(f"over cannot be '{over}': give 'process' or 'http'")
    if not model.server.url:
        raise UnavailableError("the server has no HTTP endpoint")
    version = "" if model.version == -1 else f"/versions/{model.version}"
    return OverHttp(f"{model.server.url}/v2/models/{model.name}{version}")


class Load:
    """Traffic that is under way, or over.

    Use ``load.wait()`` in a cell, ``await load`` in an event loop, ``load.stop()`` to end it. Counts and
    `result` can be read at any time.

    Attributes
    ----------
    sent, answered, failed : int
        Requests so far; failed ones are among the answered.
    """

    def __init__(self, target: Target, asked: OpenLoop | Clients, inputs: Examples, recorded: ModelHandle | None):
        self.sent = 0
        self.answered = 0
        self.failed = 0
        self._target = target
        self._workload = asked
        self._inputs = inputs
        self._recorded = recorded
        self._answers = array("q")
        self._messages: dict[str, int] = {}
        self._open_sequences: dict[int | str, None] = {}
        self._free: SimpleQueue[Shot | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._draining = False
        self._finished: concurrent.futures.Future[LoadResult] = concurrent.futures.Future()
        self._finished.set_running_or_notify_cancel()  # so that nobody who waits for it can cancel it
        threading.Thread(target=self._run, name="tritonnb-load", daemon=True).start()

    # --- using it -----------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the last answer has come."""
        return self._finished.done()

    @property
    def in_flight(self) -> int:
        """Requests that were sent and not answered yet."""
        return self.sent - self.answered

    @property
    def result(self) -> LoadResult:
        """What was measured so far; with the recording once it is `done`."""
        return self._finished.result() if self.done else self._measured(None)

    def newest(self, count: int) -> npt.NDArray[np.int64]:
        """The answers that came last, as in `LoadResult.answers`."""
        return self._table(max(0, len(self._answers) // 5 - count))

    def wait(self, timeout: float | None = None) -> LoadResult:
        """Wait until the traffic is over and everything is answered; a notebook shows how far it is.

        An interrupt (``KeyboardInterrupt``) stops the traffic; what was measured stays in `result`.

        Parameters
        ----------
        timeout : float, optional
            Seconds.

        Raises
        ------
        TimeoutError
            If it is not over by then; it goes on.
        """
        return wait(self._finished, timeout, self._counts, self.stop)

    def __await__(self) -> Generator[Any, None, LoadResult]:
        return asyncio.wrap_future(self._finished).__await__()

    def stop(self) -> None:
        """Send nothing more; does not wait for what is under way. Harmless twice."""
        self._stopping.set()
        self._free.put(None)

    def __repr__(self) -> str:
        return repr(self.result) if self.done else f"<Load of {self._title()}: {self._counts()}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_() if self.done else f"<b>{self._title()}</b>: {self._counts()}"

    def _title(self) -> str:
        return f"'{self._target.spec.name}', {self._workload}"

    def _counts(self) -> str:
        return f"{self.sent} sent, {self.answered} answered, {self.failed} failed"

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
            self._finished.set_exception(error)
        else:
            self._finished.set_result(self._measured(self._concerning(recording)))
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
        leaving: list[tuple[int, int, Shot]] = []
        for number, arrival in enumerate(asked.arrivals):
            due = begin + round(arrival.time_us * 1000)
            self._cancel_until(leaving, due)
            if not self._sleep_until(due) or not self._target.alive:
                return
            shot = self._send(arrival, due, 0)
            if arrival.cancel_us is not None:
                heapq.heappush(leaving, (begin + round(arrival.cancel_us * 1000), number, shot))
        self._cancel_until(leaving, None)

    def _cancel_until(self, leaving: list[tuple[int, int, Shot]], due_ns: int | None) -> None:
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

    def _closed_loop(self, asked: Clients) -> None:
        begin = time.monotonic_ns()
        end = begin + asked.duration * 1e9
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
            wake = min(end, due[0][0] if due else end)
            try:
                shot = self._free.get(timeout=None if wake == math.inf else (wake - now) / 1e9)
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
        while self.in_flight and self._target.alive:
            with suppress(Empty):
                self._free.get(timeout=_LOOK_S)

    def _send(self, arrival: Arrival, intended_ns: int, client: int) -> Shot:
        sequence = arrival.sequence_id
        if sequence and arrival.sequence_end:
            self._open_sequences.pop(sequence, None)
        elif sequence:
            self._open_sequences[sequence] = None
        rows = arrival.rows if self._workload.sized else None
        shot = Shot(arrival, self._inputs.take(rows), client, intended_ns, self._answer)
        self.sent += 1
        shot.sent_ns = time.monotonic_ns()
        self._target.send(shot)
        return shot

    # --- answers: on the target's thread ------------------------------------------------------

    def _answer(self, shot: Shot, time_ns: int, error: str) -> None:
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
        if self._draining or isinstance(self._workload, Clients):
            self._free.put(shot)

    def _table(self, begin: int) -> npt.NDArray[np.int64]:
        return np.frombuffer(self._answers[5 * begin :], np.int64).reshape(-1, 5)

    def _measured(self, recording: Recording | None) -> LoadResult:
        rate = self._workload.rate if isinstance(self._workload, OpenLoop) else None
        return LoadResult(self._title(), self._table(0), list(self._messages), rate, self.sent, recording)
