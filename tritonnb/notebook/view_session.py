"""The data of a live view, small enough to send ten times a second.

Counts, and the counters of each interval, are exact at every rate. Single batches and requests are sent only up to
`MOST_BATCHES` and `MOST_MEMBERS` per delivery, in order: a delivery states the time until which it has all of them
(``exact``), and a view draws the rest from the counters. A `BatchTracker` follows the events, a `ViewSession` encodes
what it took. Both may be on different threads: the tracker where events are made, the encoding on the thread of the
view, which holds the interpreter lock only for short parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tritonnb.core.events import BatchExecuted
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, pack, slots_of, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.figures import palette
from tritonnb.notebook.batch_tracker import MOST_BATCHES, BatchTracker, Delta
from tritonnb.notebook.interval_counters import Counters, ModelIntervals, encode_counters
from tritonnb.notebook.view_encoding import (
    BATCH_FIELDS,
    ENCODING,
    EXEC_END,
    EXEC_START,
    EXECUTION_FIELDS,
    INSTANCE,
    NUMBER,
    SERIAL,
    SIZE,
    TIME,
    DrawnBatch,
    Encoded,
    ViewEncoder,
    columns,
)
from tritonnb.recording.batches import batches_of
from tritonnb.recording.instance_names import natural_sort_key
from tritonnb.recording.recording import Recording
from tritonnb.recording.sequences import SlotHistory, slot_count
from tritonnb.scheduling.from_config import queue_delay_ns, sequence_batcher_settings
from tritonnb.scheduling.reasons import MARKS
from tritonnb.telemetry.lanes import Lanes

#: The shortest interval that is counted, and how many are kept for a view that is opened later.
INTERVAL_NS, KEPT_INTERVALS = 10_000_000, 128
#: The slots of a model that has more are not counted one by one.
MOST_SLOTS = 64
#: Batches that are encoded without a pause.
_BATCHES_PER_PART = 5
#: The maximum number of batches of a recording that are shown one by one, and the number of its intervals at least.
_MAX_RECORDED, _RECORDED_INTERVALS = 5000, 500
#: Its intervals at most: a wait of hours is counted in each interval that it covers.
_MOST_INTERVALS = 50_000
#: Intervals at most that all its executions and their slots cover together.
_MOST_COUNTED = 400_000
#: Events that are replayed in parts of which no batch is left out.
_REPLAYED = 8000
#: A request's arrival in ns, its serial, and when it left the queue; None if it still waits.
Wait = tuple[int, int, int | None]


class ViewSession:
    """The deliveries to a view, made from the events of one model.

    Parameters
    ----------
    model : str
    config : ModelConfig
    begin_ns : int
        The origin of the view's time.
    depth : int, optional
        The number of requests that already wait.
    keep : int, optional
        The number of batches in `history`.
    limited : bool, optional
        Whether to send single batches only up to the limits of a delivery.
    interval_ns, keep_intervals : int, optional
        The shortest interval that is counted, and how many of them `history` has at least.
    recent : int, optional
        How many of the newest events the tracker keeps.
    pause : callable, optional
        Called after each part of the work of a delivery, so that other threads get the interpreter lock.

    Attributes
    ----------
    tracker : BatchTracker
        What events are passed to.
    encoder : ViewEncoder
    meta : dict
    """

    def __init__(
        self,
        model: str,
        config: pb.ModelConfig,
        begin_ns: int,
        *,
        depth: int = 0,
        keep: int = 400,
        limited: bool = True,
        interval_ns: int = INTERVAL_NS,
        keep_intervals: int = KEPT_INTERVALS,
        recent: int = 0,
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        self.model = model
        self.config = config
        self.meta = describe_config(model, config)
        self._intervals = ModelIntervals(begin_ns, interval_ns, keep_intervals)
        self.tracker = BatchTracker(model, config, begin_ns, depth, limited, self._intervals.counters, recent)
        self._last = self.tracker.take_changes(begin_ns)
        self.encoder = ViewEncoder(begin_ns, config.dynamic_batching.default_priority_level)
        self._limited = limited
        self._pause = pause
        self._stateful = config.HasField("sequence_batching")
        self._queue_rows = QueueRows()
        self._slots = SlotHistory({model: config})
        self._occupancy: dict[tuple[str, int, int], Encoded] = {}
        self._kept: deque[Encoded] = deque(maxlen=keep)
        self._pending: list[Encoded] = []
        self._refused: deque[Encoded] = deque(maxlen=keep)
        self._depths: deque[list[int]] = deque(maxlen=4 * keep)
        self._responses: deque[list[int]] = deque(maxlen=4 * keep)
        self._number = 0  # of the last delivery
        self._exact: deque[list[int]] = deque(maxlen=keep)  # the spans of which every batch was sent

    def reconfigure(self, config: pb.ModelConfig) -> bool:
        """Follow a new configuration of the model; return whether it differs from the current one."""
        if config == self.config:
            return False
        self.config, self.meta = config, describe_config(self.model, config)
        self._slots.update_configs({self.model: config})
        self.tracker.reconfigure(config)
        return True

    @property
    def now_ns(self) -> int:
        """The time of the last delivery, or of the begin."""
        return self._last.now_ns

    def replay(self, events: Sequence[Packed]) -> None:
        """Process past events, in order, as if the view had been open at that time."""
        recent = max(0, len(events) - _REPLAYED)
        parts = [events[:recent], *(events[at : at + MOST_BATCHES] for at in range(recent, len(events), MOST_BATCHES))]
        for part in filter(None, parts):
            self.tracker.fold(part)
            self.flush(max(packed[TIME] for packed in part))

    def flush(self, now_ns: int) -> Json:
        """Return the changes since the last delivery, as a delivery."""
        return self.encode(self.tracker.take_changes(now_ns))

    def encode(self, changes: Delta) -> Json:
        """Return a delivery; changes are encoded in the order of taking."""
        before, self._last = self._last, changes
        if self._stateful:
            self._follow_slots(changes.executed, changes.counters)
        self._intervals.add(changes.counters)
        self._pause()
        encoder = self.encoder
        queue_rows = self._queue_rows.assign(drawn_waits(changes.sent, changes.refused, changes.pending))
        self._pause()
        batches: list[Encoded] = []
        for batch in changes.sent:
            batches.append(encoder.batch(batch, queue_rows))
            if len(batches) % _BATCHES_PER_PART == 0:
                self._pause()
        self._kept.extend(batches)
        done = [[batch.sent[NUMBER], *encoder.execution(batch)] for batch in changes.done]
        for batch, (_, *execution) in zip(changes.done, done, strict=True):
            batch.encoded[-len(EXECUTION_FIELDS) :] = execution
        self._pending = [encoder.request(arrived, queue_rows[arrived[SERIAL]]) for arrived in changes.pending]
        refusals = [encoder.refusal(*refusal, queue_rows) for refusal in changes.refused]
        self._refused.extend(refusals)
        self._number += 1
        since, exact = encoder.ticks(before.now_ns), encoder.ticks(changes.exact_ns)
        self._add_exact(since, exact)
        return {
            **self._state(),
            "since": since,
            "exact": exact,
            "batches": columns(BATCH_FIELDS, batches),
            "done": columns(("n", *EXECUTION_FIELDS), done),
            "refused": refusals,
            "depths": self._new_depths(changes.depths),
            "responses": self._new_responses(changes.responses),
            "occupancy": self._new_occupancy(changes) if self._stateful else [],
            "counters": encode_counters(changes.counters),
        }

    def history(self) -> Json:
        """Return everything that is kept at the time of the last delivery, for a view that is opened now."""
        return {
            **self._state(),
            "meta": self.meta,
            "spans": self._exact_spans(),
            "batches": columns(BATCH_FIELDS, self._kept),
            "done": {},
            "refused": list(self._refused),
            "depths": list(self._depths),
            "responses": list(self._responses),
            "occupancy": list(self._occupancy.values()),
            "levels": self._intervals.encode(),
        }

    def _state(self) -> Json:
        last, ticks = self._last, self.encoder.ticks
        return {
            "number": self._number,
            "now": ticks(last.now_ns),
            "interval": self._intervals.width_ns / 1e6,
            "instances": sorted(last.instances, key=natural_sort_key),
            "pending": self._pending,
            "running": [[sent[INSTANCE], ticks(sent[TIME]), sent[SIZE]] for sent in last.running],
            "depth": last.depth,
            "counts": asdict(last.counts),
        }

    def _follow_slots(self, executed: list[DrawnBatch], counters: Counters) -> None:
        is_counted = self.meta["slots"] <= MOST_SLOTS
        for batch in executed:
            arrivals = [arrived for _, arrived in batch.requests if arrived is not None]
            packed = batch.executed
            assert packed is not None
            for recorded, requests in batches_of(list(map(unpack, [*arrivals, batch.sent, packed]))):
                self._slots.add_batch(recorded, requests)
            for slot, (serial, _) in zip(slots_of(batch.sent) or (), batch.requests, strict=False):
                if is_counted:
                    counters.add_slot(packed[INSTANCE], slot, packed[EXEC_START], packed[EXEC_END], null=serial is None)

    def _add_exact(self, since: int, until: int) -> None:
        if self._exact and self._exact[-1][1] == since:
            self._exact[-1][1] = until
        elif until > since:
            self._exact.append([since, until])

    def _exact_spans(self) -> list[list[int]]:
        """Return the spans of which everything is kept."""
        kept = ((self._kept, BATCH_FIELDS.index("sent")), (self._depths, 0), (self._refused, 1))
        first = max([items[0][time] for items, time in kept if len(items) == items.maxlen], default=-1) + 1
        return [[max(first, since), until] for since, until in self._exact if until > first]

    def _new_depths(self, changes: list[tuple[int, int]]) -> list[list[int]]:
        """Return the queue depth over time since the last delivery, with the depth before."""
        depths = {self.encoder.ticks(time_ns): depth for time_ns, depth in changes}
        encoded = [[ticks, depth] for ticks, depth in depths.items()]
        self._depths.extend(encoded)
        return encoded

    def _new_responses(self, responses: list[tuple[int, int, int]]) -> list[list[int]]:
        """Return the responses that were sent after their executions: batch, place in it, and time."""
        encoded = [[number, place, self.encoder.ticks(time_ns)] for number, place, time_ns in responses]
        self._responses.extend(encoded)
        return encoded

    def _new_occupancy(self, changes: Delta) -> list[Encoded]:
        """Return the slot occupancy that has changed since the last delivery."""
        changed = []
        for occupancy in self._slots.occupancies(changes.now_ns, changes.sequences):
            encoded = self.encoder.occupancy(occupancy)
            key = (occupancy.instance, occupancy.slot, occupancy.assigned_ns)
            if self._occupancy.get(key) != encoded:
                self._occupancy[key] = encoded
                changed.append(encoded)
        if self._limited:
            self._slots.discard_before(changes.now_ns - 1_000_000_000)
            self._occupancy = dict(list(self._occupancy.items())[-(self._kept.maxlen or 0) :])
        return changed


def describe_config(model: str, config: pb.ModelConfig) -> Json:
    """Return the metadata of a view of a model with this configuration; times in ms."""
    sequences = config.HasField("sequence_batching")
    batching = config.sequence_batching.oldest if sequences else config.dynamic_batching
    direct = sequences and not config.sequence_batching.HasField("oldest")
    meta = {
        "model": model,
        "encoding": ENCODING,
        "themes": palette.themes(),
        "marks": MARKS,
        "max_batch_size": config.max_batch_size,
        "preferred": [] if direct else sorted(set(batching.preferred_batch_size)),
        "delay": queue_delay_ns(config) / 1e6,
        "priorities": 0 if sequences else config.dynamic_batching.priority_levels,
        "batcher": "sequence" if sequences else "dynamic" if config.HasField("dynamic_batching") else "none",
    }
    steps = dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step)
    if steps:
        meta["note"] = f"An ensemble itself has no batches. Watch the models of its steps: {', '.join(steps)}."
    if sequences:
        settings = sequence_batcher_settings(config, {})
        meta |= {
            "strategy": "direct" if direct else "oldest",
            "iterative": config.sequence_batching.iterative_sequence,
            "slots": slot_count(config),
            "idle": settings.max_sequence_idle_ns / 1e6,
            "states": [f"{state.input_name} {list(state.dims)}" for state in config.sequence_batching.state],
        }
    return meta


def recorded_history(recording: Recording, span_ns: tuple[int, int] | None = None) -> Json:
    """Return the data of a view of a recording of one model: see `BatchView`.

    Parameters
    ----------
    recording : Recording
    span_ns : tuple of int, optional
        The time that the view has, which begins at 0 in it; by default that of the recording.
    """
    model = recording.events[0].model
    begin, end = span_ns or recording.span_ns
    config = recording.configs.get(model, pb.ModelConfig())
    interval_ns = INTERVAL_NS
    while (end - begin) // interval_ns < _RECORDED_INTERVALS and interval_ns % 2 == 0:
        interval_ns //= 2
    counted_ns = _counted_ns(recording, begin, config.HasField("sequence_batching"))
    while (end - begin) // interval_ns > _MOST_INTERVALS or counted_ns // interval_ns > _MOST_COUNTED:
        interval_ns *= 2
    session = ViewSession(
        model, config, begin, keep=_MAX_RECORDED, limited=False,
        interval_ns=interval_ns, keep_intervals=2 * _RECORDED_INTERVALS,
    )  # fmt: skip
    session.meta["simulated"] = recording.simulated
    session.tracker.fold(map(pack, recording.events))
    session.flush(end)
    return session.history()


def _counted_ns(recording: Recording, begin: int, has_slots: bool) -> int:
    """Return the time of all executions and their slots together, which is counted interval by interval.

    It may exceed the time between the first and the last event: a file can contain any times.
    """
    return sum(
        max(0, event.exec_end_ns - max(begin, event.exec_start_ns)) * (1 + has_slots * len(event.requests))
        for event in recording.events
        if isinstance(event, BatchExecuted)
    )


class QueueRows:
    """The rows of requests, assigned delivery by delivery; a request that still waits keeps its row."""

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}  # of the requests that still wait
        self._lanes = Lanes()

    def assign(self, waits: Iterable[Wait]) -> Mapping[int, int]:
        """Return the row of each request by serial; a waiting request that is no longer listed has left."""
        ordered = sorted(waits, key=lambda wait: wait[0])
        for serial in self._row_of.keys() - {serial for _, serial, _ in ordered}:
            self._lanes.free(self._row_of.pop(serial))
        rows = {}
        for arrived_ns, serial, left_ns in ordered:
            row = self._row_of.pop(serial, None)
            if row is None:
                row = self._lanes.take_lane(arrived_ns)
            rows[serial] = row
            if left_ns is None:
                self._row_of[serial] = row
            else:
                # A request that did not wait also has a row for itself: else its mark would be that of another.
                self._lanes.free_lane(row, max(left_ns, arrived_ns + 1))
        return rows


def drawn_waits(
    batches: Iterable[DrawnBatch], refused: Iterable[tuple[Any, Packed | None]], pending: Iterable[Packed]
) -> Iterator[Wait]:
    """Yield the waits that are drawn in the queue."""
    for batch in batches:
        for serial, arrived in batch.requests:
            if serial is not None and arrived is not None:
                yield arrived[TIME], serial, batch.sent[TIME]
    for event, arrived in refused:
        if arrived is not None:
            yield arrived[TIME], event.serial, event.time_ns
    for arrived in pending:
        yield arrived[TIME], arrived[SERIAL], None
