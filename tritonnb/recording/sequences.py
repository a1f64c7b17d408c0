"""Sequences in batch slots and in the backlog, derived from the batches of a recording.

A batch names the slot of each of its requests. A slot is released when the END request of its sequence is sent, or
when the sequence has been idle for ``max_sequence_idle_microseconds``. The next sequence in the slot was in the backlog
if it arrived before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.batches import Batch, RequestRecord
from tritonnb.scheduling.from_config import sequence_batcher_settings
from tritonnb.scheduling.reasons import pluralize
from tritonnb.scheduling.sequence_strategies import DirectSettings

#: Recent batches kept for each instance, to find the batch that ran at a given time.
_REMEMBERED = 4096
#: How the occupancy of a slot ended.
END, IDLE, OPEN = "END", "idle", ""


@dataclass(slots=True)
class SlotOccupancy:
    """One sequence in one slot.

    Attributes
    ----------
    sequence : int or str
        Correlation ID.
    model, instance, slot : str, str, int
    arrived_ns : int
        When its first request was accepted.
    assigned_ns : int
        When the slot was assigned: later than ``arrived_ns`` if the sequence waited in the backlog.
    released_ns : int or None
        When the slot was released; None if that is outside the recording.
    ended : str
        ``END`` (its END request was sent), ``idle`` (idle timeout), or empty (still open).
    requests : list of (Batch, RequestRecord)
        Its requests that ran, in order, with their batches.
    request_count : int
        Number of requests that ran, including those dropped from ``requests``.
    """

    sequence: int | str
    model: str
    instance: str
    slot: int
    arrived_ns: int
    assigned_ns: int
    released_ns: int | None = None
    ended: str = OPEN
    requests: list[tuple[Batch, RequestRecord]] = field(default_factory=list)
    request_count: int = 0

    @property
    def backlog_ns(self) -> int:
        """Time in the backlog."""
        return self.assigned_ns - self.arrived_ns

    def __repr__(self) -> str:
        requests = pluralize(self.request_count or len(self.requests), "request")
        return f"<SlotOccupancy: sequence {self.sequence!r} in slot {self.slot} of {self.instance}; {requests}>"


class SlotHistory:
    """The slot occupancies derived from batches, added in the order of execution by each instance.

    Parameters
    ----------
    configs : mapping of str to ModelConfig
        Configurations by model name, for the strategy and the idle timeout.
    """

    def __init__(self, configs: Mapping[str, pb.ModelConfig]) -> None:
        self._configs = configs
        self._slots: dict[tuple[str, int], _Slot] = {}
        self._busy: dict[str, deque[Batch]] = {}

    def update_configs(self, configs: Mapping[str, pb.ModelConfig]) -> None:
        """Use changed configurations from now on."""
        self._configs = configs
        for slot in self._slots.values():
            slot.use_config(configs.get(slot.model))

    def add_batch(self, batch: Batch, requests: Iterable[RequestRecord]) -> None:
        """Add a batch and the requests that ran in it."""
        if not batch.slots:
            return
        records = {request.serial: request for request in requests}
        before = self._busy.setdefault(batch.instance, deque(maxlen=_REMEMBERED))
        for index, serial in zip(batch.slots, batch.requests, strict=True):
            if serial in records:
                key = (batch.instance, index)
                if key not in self._slots:
                    self._slots[key] = _Slot(batch.model, self._configs.get(batch.model), before)
                self._slots[key].add_request(batch, index, records[serial])
        before.append(batch)

    def occupancies(self, until_ns: int, waiting: Container[int | str] = ()) -> list[SlotOccupancy]:
        """Return the occupancies up to a time, ordered by their assignment.

        ``waiting`` are sequences with requests that wait or run, which are therefore not idle.
        """
        for slot in self._slots.values():
            if slot.occupancies and slot.occupancies[-1].sequence not in waiting:
                slot.release_if_complete()
                slot.release_if_idle(until_ns)
        occupancies = [occupancy for slot in self._slots.values() for occupancy in slot.occupancies]
        return sorted(occupancies, key=lambda occupancy: occupancy.assigned_ns)

    def discard_before(self, before_ns: int) -> None:
        """Discard the occupancies that ended before a time, and all but the last request of the others."""
        for slot in self._slots.values():
            slot.occupancies = [
                occupancy
                for occupancy in slot.occupancies
                if occupancy.released_ns is None or occupancy.released_ns >= before_ns
            ]
            for occupancy in slot.occupancies:
                del occupancy.requests[:-1]


def slot_count(config: pb.ModelConfig) -> int:
    """Return the number of batch slots of each instance."""
    return sequence_batcher_settings(config, {}).strategy.slot_count


def number_sequences(occupancies: Sequence[SlotOccupancy]) -> dict[int | str, int]:
    """Number the sequences in the order of arrival, to choose their colours."""
    ordered = sorted(occupancies, key=lambda occupancy: occupancy.arrived_ns)
    distinct = dict.fromkeys(occupancy.sequence for occupancy in ordered)
    return {sequence: number for number, sequence in enumerate(distinct)}


class _Slot:
    """One slot and its occupancies."""

    def __init__(self, model: str, config: pb.ModelConfig | None, instance_batches: deque[Batch]) -> None:
        self.model = model
        self.use_config(config)
        self.occupancies: list[SlotOccupancy] = []
        self._instance_batches = instance_batches  # recent batches of the slot's instance
        self._done_ns = 0  # end of the last execution of this slot

    def use_config(self, config: pb.ModelConfig | None) -> None:
        """Use the settings of a configuration that determine when the slot is released."""
        settings = None if config is None else sequence_batcher_settings(config, {})
        self._idle_ns = None if settings is None else settings.max_sequence_idle_ns
        self._direct = settings is None or isinstance(settings.strategy, DirectSettings)
        self._iterative = settings is not None and settings.iterative

    def add_request(self, batch: Batch, index: int, request: RequestRecord) -> None:
        """Add a request of the sequence that occupies the slot, or of the next sequence."""
        occupancy = self.occupancies[-1] if self.occupancies else None
        sequence = request.sequence_id or f"#{request.serial}"  # an iterative request may have no correlation ID
        if occupancy is not None:
            self.release_if_idle(request.queued_ns - 1 if occupancy.sequence == sequence else batch.sent_ns)
        if occupancy is None or occupancy.released_ns is not None or occupancy.sequence != sequence:
            free_ns = request.queued_ns if occupancy is None else self._release_previous(occupancy, batch)
            assigned_ns = max(request.queued_ns, free_ns)
            occupancy = SlotOccupancy(sequence, batch.model, batch.instance, index, request.queued_ns, assigned_ns)
            self.occupancies.append(occupancy)
        occupancy.requests.append((batch, request))
        occupancy.request_count += 1
        if request.ends:
            # The oldest strategy releases it when END goes to its batcher: after the previous request of the slot ran.
            occupancy.released_ns = (
                batch.sent_ns if self._direct else max(occupancy.assigned_ns, request.queued_ns, self._done_ns)
            )
            occupancy.ended = END
        self._done_ns = batch.exec_end_ns

    def release_if_complete(self) -> None:
        """End the occupancy of an iterative sequence, which neither waits nor runs: its last step has released it."""
        occupancy = self.occupancies[-1]
        if self._iterative and occupancy.released_ns is None:
            occupancy.released_ns, occupancy.ended = self._done_ns, END

    def release_if_idle(self, until_ns: int) -> None:
        """End the occupancy if the idle timeout of its sequence expired before a time."""
        occupancy = self.occupancies[-1] if self.occupancies else None
        if occupancy is None or occupancy.released_ns is not None or self._idle_ns is None:
            return
        # Time in the backlog counts; requests in the slot still run; a busy instance is checked when it is idle.
        last_batch, last = occupancy.requests[-1]
        expired = max(last.queued_ns + self._idle_ns, occupancy.assigned_ns, last_batch.sent_ns)
        if self._direct:
            running = (batch.exec_end_ns for batch in reversed(self._instance_batches) if batch.sent_ns <= expired)
            expired = max(expired, next(running, 0))
        else:
            expired = max(expired, self._done_ns)
        if expired <= until_ns:
            occupancy.released_ns, occupancy.ended = expired, IDLE

    def _release_previous(self, occupancy: SlotOccupancy, batch: Batch) -> int:
        """End the previous occupancy of a slot that another sequence has now."""
        if occupancy.released_ns is None:  # it was cancelled, which is not visible in batches
            occupancy.released_ns = min(self._done_ns, batch.sent_ns)
            occupancy.ended = END if self._iterative else OPEN
        return occupancy.released_ns
