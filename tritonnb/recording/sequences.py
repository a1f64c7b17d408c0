"""Which sequence held which batch slot, and which waited in the backlog: folded from a recording's batches.

A batch tells the slot of each of its requests. A slot is free again when its sequence's END request is
sent, or when the sequence has been idle for ``max_sequence_idle_microseconds``; whoever came before that
and got the slot waited in the backlog until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.batches import Batch, RequestRecord
from tritonnb.scheduling.direct import DirectSettings
from tritonnb.scheduling.from_config import sequence_batcher_settings

#: Batches of an instance among which the one that ran at a given time is looked for.
_REMEMBERED = 4096
#: How a stay ended.
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
        When it got the slot: later than ``arrived_ns`` if it waited in the backlog.
    released_ns : int or None
        When the slot was free again; None if it was not, or nobody saw it.
    ended : str
        ``END`` (its END request was sent), ``idle`` (it timed out), or empty.
    requests : list of (Batch, RequestRecord)
        What ran of it, in order.
    ran : int
        How many requests that were.
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
    ran: int = 0

    @property
    def backlog_ns(self) -> int:
        """How long it waited for a slot."""
        return self.assigned_ns - self.arrived_ns


class SlotHistory:
    """Folds batches, in the order in which each instance ran them, into stays.

    Parameters
    ----------
    configs : mapping of str to ModelConfig
        For the strategy and the idle time of each model.
    """

    def __init__(self, configs: Mapping[str, pb.ModelConfig]) -> None:
        self._configs = configs
        self._slots: dict[tuple[str, int], _Slot] = {}
        self._busy: dict[str, deque[Batch]] = {}

    def follow(self, configs: Mapping[str, pb.ModelConfig]) -> None:
        """The configurations have changed."""
        self._configs = configs
        for slot in self._slots.values():
            slot.rules = _Rules.of(configs.get(slot.model))

    def ran(self, batch: Batch, requests: Iterable[RequestRecord]) -> None:
        """One more batch, with the requests that ran in it."""
        if not batch.slots:
            return
        records = {each.serial: each for each in requests}
        before = self._busy.setdefault(batch.instance, deque(maxlen=_REMEMBERED))
        for index, serial in zip(batch.slots, batch.requests, strict=True):
            if serial in records:
                key = (batch.instance, index)
                if key not in self._slots:
                    self._slots[key] = _Slot(batch.model, _Rules.of(self._configs.get(batch.model)), before)
                self._slots[key].ran(batch, index, records[serial])
        before.append(batch)

    def stays(self, until_ns: int, waiting: Container[int | str] = ()) -> list[SlotOccupancy]:
        """Every stay up to a time, in the order in which they began.

        Sequences with requests that wait or run, so that no batch tells of them yet, are not idle.
        """
        for slot in self._slots.values():
            if slot.held and slot.held[-1].sequence not in waiting:
                slot.time_out(until_ns)
        return sorted((stay for slot in self._slots.values() for stay in slot.held), key=lambda each: each.assigned_ns)

    def forget(self, before_ns: int) -> None:
        """Drop the stays that ended before a time, and of the others all requests but the last."""
        for slot in self._slots.values():
            slot.held = [each for each in slot.held if each.released_ns is None or each.released_ns >= before_ns]
            for stay in slot.held:
                del stay.requests[:-1]


def stays(
    executed: Iterable[tuple[Batch, list[RequestRecord]]], configs: Mapping[str, pb.ModelConfig], until_ns: int
) -> list[SlotOccupancy]:
    """Every stay of a sequence in a slot, in the order in which they began.

    Parameters
    ----------
    executed : iterable of (Batch, list of RequestRecord)
        Of a recording.
    configs : mapping of str to ModelConfig
    until_ns : int
        The end of the recording: a timeout after it was not seen.
    """
    history = SlotHistory(configs)
    for batch, requests in sorted(executed, key=lambda each: (each[0].sent_ns, each[0].number)):
        history.ran(batch, requests)
    return history.stays(until_ns)


def slot_count(config: pb.ModelConfig) -> int:
    """Slots of each instance."""
    return sequence_batcher_settings(config, {}).strategy.slot_count


def numbered(held: Sequence[SlotOccupancy]) -> dict[int | str, int]:
    """A number for each sequence, in the order in which they arrived, to choose colours by."""
    ordered = sorted(held, key=lambda each: each.arrived_ns)
    return {each: number for number, each in enumerate(dict.fromkeys(stay.sequence for stay in ordered))}


@dataclass(frozen=True, slots=True)
class _Rules:
    """What decides when a slot is free again."""

    idle_ns: int | None
    direct: bool

    @classmethod
    def of(cls, config: pb.ModelConfig | None) -> _Rules:
        if config is None:
            return cls(None, True)
        settings = sequence_batcher_settings(config, {})
        return cls(settings.max_sequence_idle_ns, isinstance(settings.strategy, DirectSettings))


class _Slot:
    """One slot and the stays in it, built from what runs there."""

    def __init__(self, model: str, rules: _Rules, busy: deque[Batch]) -> None:
        self.model = model
        self.rules = rules
        self.held: list[SlotOccupancy] = []
        self._busy = busy  # what ran on the slot's instance up to now
        self._done_ns = 0  # when the last request of this slot had run

    def ran(self, batch: Batch, index: int, request: RequestRecord) -> None:
        """One more request: of the sequence that holds the slot, or of the next one."""
        stay = self.held[-1] if self.held else None
        sequence = request.sequence_id or f"#{request.serial}"  # an iterative request needs no id
        if stay is not None:
            self.time_out(request.queued_ns - 1 if stay.sequence == sequence else batch.sent_ns)
        if stay is None or stay.released_ns is not None or stay.sequence != sequence:
            free_ns = request.queued_ns if stay is None else self._freed(stay, batch)
            assigned_ns = max(request.queued_ns, free_ns)
            stay = SlotOccupancy(sequence, batch.model, batch.instance, index, request.queued_ns, assigned_ns)
            self.held.append(stay)
        stay.requests.append((batch, request))
        stay.ran += 1
        if request.ends:
            # The oldest strategy lets go when END goes to its batcher, after the slot's request before it has run.
            direct = self.rules.direct
            stay.released_ns = batch.sent_ns if direct else max(stay.assigned_ns, request.queued_ns, self._done_ns)
            stay.ended = END
        self._done_ns = batch.exec_end_ns

    def time_out(self, until_ns: int) -> None:
        """End the stay if its sequence was silent for too long before a time."""
        stay = self.held[-1] if self.held else None
        if stay is None or stay.released_ns is not None or self.rules.idle_ns is None:
            return
        # Time in the backlog counts, what waits in the slot still runs, and a busy instance is asked when it is free.
        last_batch, last = stay.requests[-1]
        expired = max(last.queued_ns + self.rules.idle_ns, stay.assigned_ns, last_batch.sent_ns)
        if self.rules.direct:
            running = (each.exec_end_ns for each in reversed(self._busy) if each.sent_ns <= expired)
            expired = max(expired, next(running, 0))
        else:
            expired = max(expired, self._done_ns)
        if expired <= until_ns:
            stay.released_ns, stay.ended = expired, IDLE

    def _freed(self, stay: SlotOccupancy, batch: Batch) -> int:
        """When the last owner left, given that another one runs there now."""
        if stay.released_ns is None:  # it was cancelled, which no batch tells
            stay.released_ns = min(self._done_ns, batch.sent_ns)
        return stay.released_ns
