"""What a live view draws, folded from events: small enough to send ten times a second.

Counts are exact. What is drawn may be a part of it: with more requests than `MOST_MEMBERS` in one
delivery, every k-th is sent, and the view says so. Times are milliseconds from the feed's beginning.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.events import (
    BatchExecuted,
    BatchSent,
    CacheHit,
    EnsembleExecuted,
    Event,
    RequestArrived,
    RequestRefused,
)
from tritonnb.recording.batches import batches_of
from tritonnb.recording.instances import instances_of, natural
from tritonnb.recording.sequences import SlotHistory, Stay, slot_count
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.from_config import sequence_batcher_settings
from tritonnb.scheduling.reasons import explain

#: Requests drawn of one delivery, and batches. Jupyter passes on 1 MB a second; ten of the largest are 0.3 MB.
MOST_MEMBERS, MOST_BATCHES = 240, 60
#: Waiting requests drawn at once, and moments of the queue's depth in one delivery.
_MOST_PENDING, _MOST_DEPTHS = 200, 150

Json = dict[str, Any]
#: Serial, arrival if it was seen, and line; None for a null request.
_Member = tuple[int, RequestArrived | None, int] | None


@dataclass(slots=True)
class _Counts:
    """What there was in all, drawn or not."""

    requests: int = 0
    refused: int = 0
    cached: int = 0
    batches: int = 0
    rows: int = 0
    nulls: int = 0
    sizes: Counter[int] = field(default_factory=Counter)


class Feed:
    """Folds the events of one model into what a view draws.

    Parameters
    ----------
    model : str
    config : ModelConfig
    begin_ns : int
        Where the view's time begins.
    depth : int, optional
        Requests that wait already.
    keep : int, optional
        Batches that `history` gives.
    sample : bool, optional
        Whether more may come than can be drawn.
    """

    def __init__(
        self, model: str, config: pb.ModelConfig, begin_ns: int, *, depth: int = 0, keep: int = 400, sample: bool = True
    ) -> None:
        self.model = model
        self.config = config
        self.counts = _Counts()
        self._begin_ns = begin_ns
        self._depth = self._from_before = depth
        self._sample = sample
        self._kept: deque[Json] = deque(maxlen=keep)
        self._by_number: dict[int, Json] = {}
        self._sent: dict[int, BatchSent] = {}
        self._arrived: dict[int, RequestArrived] = {}
        self._rows = _Rows()
        self._pending: dict[int, int] = {}  # serials and their lines
        self._stays = SlotHistory({model: config})
        self._told: dict[tuple[str, int, int], list[Any]] = {}
        self._instances: list[str] = instances_of(model, config)
        self._new = _new()
        self._refused: deque[list[Any]] = deque(maxlen=keep)
        self._depths: deque[list[float]] = deque(maxlen=4 * keep)
        self._end_ns = begin_ns

    def reconfigured(self, config: pb.ModelConfig) -> None:
        """From now on the model has this configuration."""
        if config != self.config:
            self.config = config
            self._stays.follow({self.model: config})

    # --- events in ----------------------------------------------------------------------------

    def take(self, events: Iterable[Event]) -> None:
        """Fold events, in order."""
        for event in events:
            if event.model == self.model and type(event) in _FOLDS:
                self._end_ns = max(self._end_ns, event.time_ns)
                _FOLDS[type(event)](self, event)

    # At full load these run tens of thousands of times a second: what is drawn is made of them later.

    def _request_arrived(self, event: RequestArrived) -> None:
        self.counts.requests += 1
        self._step(event.time_ns, 1)
        self._arrived[event.serial] = event
        self._pending[event.serial] = self._rows.take()

    def _request_refused(self, event: RequestRefused) -> None:
        self.counts.refused += 1
        row = self._leave(event.serial, event.time_ns)
        arrived = self._arrived.pop(event.serial, None)
        label, sequence = (arrived.id, arrived.correlation_id) if arrived else ("", 0)
        told = [
            self._at(event.received_ns), self._at(event.time_ns), label or str(event.serial), row,
            event.message or "cancelled", sequence,
        ]  # fmt: skip
        self._new["refused"].append(told)
        self._refused.append(told)

    def _batch_sent(self, event: BatchSent) -> None:
        counts = self.counts
        counts.batches += 1
        counts.rows += event.size
        counts.sizes[event.size] += 1
        counts.nulls += event.members.count(None)
        self._sent[event.batch] = event
        if event.instance not in self._instances:
            self._instances.append(event.instance)
        members = [
            None if each is None else (each, self._arrived.get(each), self._leave(each, event.time_ns))
            for each in event.members
        ]
        self._new["batches"].append((event, members))

    def _batch_executed(self, event: BatchExecuted) -> None:
        sent = self._sent.pop(event.batch, None)
        if sent is None:
            return
        told = {
            "n": event.batch,
            "start": self._at(event.exec_start_ns),
            "input": self._at(event.compute_start_ns),
            "output": self._at(event.compute_end_ns),
            "end": self._at(event.exec_end_ns),
            "failed": sum(1 for each in event.requests if each[4]),
        }
        self._new["done"].append(told)
        if sent.slots:
            joined = batches_of([*filter(None, map(self._arrived.get, filter(None, sent.members))), sent, event])
            for batch, requests in joined:
                self._stays.ran(batch, requests)
        for serial in sent.members:
            self._arrived.pop(serial, None)  # type: ignore[arg-type]

    def _cache_hit(self, event: CacheHit) -> None:
        self.counts.requests += 1
        self.counts.cached += 1
        self._new["others"].append(event)

    def _ensemble_executed(self, event: EnsembleExecuted) -> None:
        self.counts.requests += 1
        self._new["others"].append(event)

    # --- pictures out -------------------------------------------------------------------------

    def flush(self, now_ns: int) -> Json:
        """What is new since the last time."""
        new, self._new = self._new, _new()
        shown = self._chosen(new["batches"])
        for done in new["done"]:
            known = self._by_number.get(done["n"])
            if known is not None:
                known.update(done)
        return {
            **self._state(now_ns),
            "batches": shown,
            "done": [each for each in new["done"] if each["n"] in self._by_number],
            "refused": new["refused"][-_MOST_PENDING:],
            "depths": self._keep_depths(new["depths"]),
            "stays": self._new_stays(now_ns),
        }

    def history(self, now_ns: int) -> Json:
        """Everything that is kept, for a view that opens now."""
        return {
            **self._state(now_ns),
            "meta": self.meta(),
            "batches": list(self._kept),
            "done": [],
            "refused": list(self._refused),
            "depths": list(self._depths),
            "stays": list(self._told.values()),
        }

    def meta(self) -> Json:
        """The model and what its configuration says."""
        return describe_config(self.model, self.config)

    @property
    def quiet(self) -> bool:
        """Whether nothing is new and nothing waits or runs."""
        return not (any(self._new.values()) or self._pending or self._sent)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._depth

    def _state(self, now_ns: int) -> Json:
        counts = self.counts
        return {
            "now": self._at(now_ns),
            "instances": sorted(self._instances, key=natural),
            "pending": [
                self._request(self._arrived[serial], row)
                for serial, row in islice(self._pending.items(), _MOST_PENDING)
            ],
            "depth": self._depth,
            "counts": {
                "requests": counts.requests,
                "refused": counts.refused,
                "cached": counts.cached,
                "batches": counts.batches,
                "rows": counts.rows,
                "nulls": counts.nulls,
                "sizes": sorted(counts.sizes.items()),
            },
        }

    def _chosen(self, sent: list[tuple[BatchSent, list[_Member]]]) -> list[Json]:
        """The batches to draw, with words for why, and of each as many members as there is room for."""
        every = max(1, -(-len(sent) // MOST_BATCHES)) if self._sample else 1
        chosen = sent[::every]
        count = sum(len(members) for _, members in chosen)
        part = max(1, -(-count // MOST_MEMBERS)) if self._sample else 1
        return [self._keep(self._batch(event, members, every, part)) for event, members in chosen]

    def _batch(self, event: BatchSent, members: list[_Member], every: int, part: int) -> Json:
        arrived = [each[1].time_ns for each in members if each is not None and each[1] is not None]
        drawn = members if event.slots else members[::part]
        return {
            "n": event.batch,
            "instance": event.instance,
            "sent": self._at(event.time_ns),
            "start": None,
            "end": None,
            "rows": event.size,
            "requests": len(members) - members.count(None),
            "depth": event.queue_depth,
            "oldest": self._at(min(arrived, default=event.time_ns)),
            "why": explain(Reason(event.rule, event.facts)),
            "members": [self._member(event.time_ns, each) for each in drawn],
            "slots": event.slots,
            "drawn": [every, part],
        }

    def _member(self, sent_ns: int, member: _Member) -> list[Any]:
        if member is None:
            return []
        serial, event, row = member
        if event is None:  # it came before the view, or runs again
            return [str(serial), 1, 0, self._at(sent_ns), 0, 0, 0]
        return self._request(event, row)

    def _request(self, event: RequestArrived, row: int) -> list[Any]:
        label = event.id or str(event.serial)
        return [label, event.size, event.priority, self._at(event.time_ns), row, event.correlation_id, event.flags]

    def _keep(self, batch: Json) -> Json:
        if len(self._kept) == self._kept.maxlen:
            self._by_number.pop(self._kept[0]["n"], None)
        self._kept.append(batch)
        self._by_number[batch["n"]] = batch
        return batch

    def _keep_depths(self, steps: list[tuple[int, int]]) -> list[list[float]]:
        """The queue's depth over time; of many moments the deepest of each hundredth second."""
        if self._sample and len(steps) > _MOST_DEPTHS:
            deepest: dict[int, tuple[int, int]] = {}
            for step in steps:
                at = step[0] // 10_000_000
                if at not in deepest or step[1] >= deepest[at][1]:
                    deepest[at] = step
            steps = [*deepest.values(), steps[-1]]
        told = {self._at(time_ns): depth for time_ns, depth in steps}
        kept: list[list[float]] = [[time, depth] for time, depth in told.items()]
        self._depths.extend(kept)
        return kept

    def _new_stays(self, now_ns: int) -> list[list[Any]]:
        running = {event.correlation_id for event in self._arrived.values()}
        found = []
        for stay in self._stays.stays(now_ns, running):
            told = self._stay(stay)
            key = (stay.instance, stay.slot, stay.assigned_ns)
            if self._told.get(key) != told:
                self._told[key] = told
                found.append(told)
        if self._sample:
            self._stays.forget(now_ns - 1_000_000_000)
            self._told = dict(list(self._told.items())[-(self._kept.maxlen or 0) :])
        return found

    def _stay(self, stay: Stay) -> list[Any]:
        released = None if stay.released_ns is None else self._at(stay.released_ns)
        last = self._at(stay.requests[-1][1].queued_ns)
        return [
            stay.sequence, stay.instance, stay.slot, self._at(stay.arrived_ns), self._at(stay.assigned_ns), released,
            stay.ended, stay.ran, last,
        ]  # fmt: skip

    def _leave(self, serial: int, time_ns: int) -> int:
        """A request waits no more; the line that it was drawn on."""
        row = self._pending.pop(serial, None)
        if row is not None:
            self._rows.give_back(row)
            self._step(time_ns, -1)
        elif self._from_before:
            self._from_before -= 1
            self._step(time_ns, -1)
        return row or 0

    def _step(self, time_ns: int, change: int) -> None:
        self._depth += change
        self._new["depths"].append((time_ns, self._depth))

    def _at(self, time_ns: int) -> float:
        return round((time_ns - self._begin_ns) / 1e6, 4)


_FOLDS: Mapping[type, Any] = {
    RequestArrived: Feed._request_arrived,
    RequestRefused: Feed._request_refused,
    BatchSent: Feed._batch_sent,
    BatchExecuted: Feed._batch_executed,
    CacheHit: Feed._cache_hit,
    EnsembleExecuted: Feed._ensemble_executed,
}


class _Rows:
    """The line that each waiting request is drawn on: the topmost free one."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._count = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._count += 1
        return self._count - 1

    def give_back(self, row: int) -> None:
        heapq.heappush(self._free, row)


def describe_config(model: str, config: pb.ModelConfig) -> Json:
    """What a view needs to know of a configuration."""
    sequences = config.HasField("sequence_batching")
    batching = config.sequence_batching.oldest if sequences else config.dynamic_batching
    direct = sequences and not config.sequence_batching.HasField("oldest")
    delay = config.sequence_batching.direct if direct else batching
    meta = {
        "model": model,
        "max_batch_size": config.max_batch_size,
        "preferred": [] if direct else sorted(set(batching.preferred_batch_size)),
        "delay": delay.max_queue_delay_microseconds / 1000,
        "priorities": 0 if sequences else config.dynamic_batching.priority_levels,
        "batcher": "sequence" if sequences else "dynamic" if config.HasField("dynamic_batching") else "none",
    }
    steps = dict.fromkeys(each.model_name for each in config.ensemble_scheduling.step)
    if steps:
        meta["note"] = f"An ensemble runs no batches of its own. Watch the models of its steps: {', '.join(steps)}."
    if sequences:
        settings = sequence_batcher_settings(config, {})
        meta |= {
            "strategy": "direct" if direct else "oldest",
            "slots": slot_count(config),
            "idle": settings.max_sequence_idle_ns / 1e6,
            "states": [f"{each.input_name} {list(each.dims)}" for each in config.sequence_batching.state],
        }
    return meta


def _new() -> dict[str, list[Any]]:
    return {"batches": [], "done": [], "refused": [], "depths": [], "others": []}
