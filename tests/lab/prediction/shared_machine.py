"""A machine whose instances slow each other down for as long as both run, also after they began: simulated truth.

Simulations of this project decide how long an execution takes when it begins. Here it takes longer if another one
begins later: they share cores, or a lock that each needs for a part of its time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import tritonnb as tnb
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestArrived
from tritonnb.lab.simulation.service import Service
from tritonnb.model_config.read import read_config
from tritonnb.scheduling.reasons import NO_DELAY

CONFIG = 'name: "m" max_batch_size: {} dynamic_batching {{ }} instance_group {{ count: {} kind: KIND_CPU }}'


@dataclass(frozen=True)
class SharedMachine:
    """What instances share.

    Attributes
    ----------
    service : Service
        The time of an execution alone, in ns by rows.
    sigma : float
        Standard deviation of the logarithm of its variation.
    slow_down : float
        By how much two executions slow each other down: they share cores.
    locked_ns : float
        How long each execution needs a lock, from a random time on.
    """

    service: Service
    sigma: float
    slow_down: float = 0.0
    locked_ns: float = 0.0

    def record(self, times_ns: Sequence[int], count: int, largest: int, seed: object) -> tnb.Recording:
        """Return what a model with a number of instances does with requests of one row."""
        events: list[Event] = []
        queue: list[int] = []
        running: dict[int, _Execution] = {}
        rng, now, arrived, batches = random.Random(f"{seed} shared"), 0.0, 0, 0
        holder: _Execution | None = None  # of the lock
        while arrived < len(times_ns) or running:
            speed = 1 / (1 + self.slow_down * max(0, len(running) - 1))
            if holder is None or not holder.needs_lock:
                holder = next((one for one in running.values() if one.needs_lock), None)
            active = [one for one in running.values() if one is holder or not one.needs_lock]
            first = min(active, key=lambda one: one.left[0], default=None)
            end = math.inf if first is None else now + first.left[0] / speed
            arrival = times_ns[arrived] if arrived < len(times_ns) else math.inf
            for one in active:
                one.left[0] -= (min(end, arrival) - now) * speed
            now = min(end, arrival)
            if arrival <= end or first is None:
                arrived += 1
                queue.append(arrived)
                events.append(RequestArrived(round(now), "m", 1, arrived, 1, 0, 0, str(arrived), 0, 0, 0))
            else:
                first.left.pop(0)
                if not first.left:
                    del running[first.instance]
                    events.append(first.executed(round(now), times_ns))
            while queue and len(running) < count:
                members, queue = tuple(queue[:largest]), queue[largest:]
                instance = min(set(range(count)) - running.keys())
                batches += 1
                whole_ns = self.service(len(members)) * math.exp(rng.gauss(0.0, self.sigma))
                locked_ns = min(whole_ns, self.locked_ns)
                before_ns = rng.random() * (whole_ns - locked_ns)
                parts = [before_ns, locked_ns, whole_ns - locked_ns - before_ns]
                running[instance] = _Execution(instance, batches, members, round(now), parts)
                events.append(running[instance].sent(len(queue)))
        events.sort(key=lambda event: event.time_ns)
        return tnb.Recording(events, {"m": read_config(CONFIG.format(largest, count))}, simulated=True)


@dataclass(eq=False)
class _Execution:
    """An execution, with what is left of its time before, with and after the lock, in ns."""

    instance: int
    number: int
    members: tuple[int, ...]
    begin_ns: int
    left: list[float] = field(default_factory=list)

    @property
    def needs_lock(self) -> bool:
        """True if the part with the lock is next."""
        return len(self.left) == 2

    @property
    def _key(self) -> tuple[str, int, int, str, int]:
        return "m", 1, self.number, f"m_0_{self.instance}", len(self.members)

    def sent(self, waiting: int) -> BatchSent:
        """Return its begin, with the number of requests that still wait."""
        facts = {"requests": len(self.members), "rows": len(self.members), "waited_ns": 0}
        return BatchSent(self.begin_ns, *self._key, NO_DELAY, waiting, self.members, None, facts)

    def executed(self, end_ns: int, arrived_ns: Sequence[int]) -> BatchExecuted:
        """Return its end."""
        requests = tuple([(serial, 1, arrived_ns[serial - 1], arrived_ns[serial - 1], "") for serial in self.members])
        times = (self.begin_ns, self.begin_ns, end_ns, end_ns)
        return BatchExecuted(end_ns, *self._key, *times, requests)
