"""The state that the replicas of a deployment share: their live sequences, and the changes that clients made.

There is one coordinator for a deployment; every ingress replica calls it, so they agree. Its state is rebuilt from the
reports of the replicas if it is restarted, except for the changes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from tritonnb.core.json_types import JsonDict
from tritonnb.scale.sequences import SequenceKey

#: A replica without a report for these seconds is no longer listed.
_SILENT_S = 30.0
#: Seconds after its START during which a sequence is kept although its replica does not report it yet.
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class DeploymentChange:
    """A request that changes every replica, including those that are added later: load, unload, settings.

    Attributes
    ----------
    subject : str
        What it changes; a later change of the same subject replaces it for new replicas.
    method, target : str
        The request line; for gRPC, an empty method and the name of the RPC.
    body : bytes
    """

    subject: str
    method: str
    target: str
    body: bytes

    @classmethod
    def of_settings(cls, method: str, target: str, body: bytes, model: str, names: Iterable[str]) -> DeploymentChange:
        """Return a change of settings with these names; it replaces an earlier change of the same settings."""
        return cls(f"settings {target} {model} {' '.join(sorted(names))}", method, target, body)


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The state that a replica reports every second.

    Attributes
    ----------
    replica, group : str
        Its ID, and the models that it serves: the name of its engine deployment.
    node : str
    url : str
        For its own HTTP endpoint; empty if it has none.
    grpc_url : str
    live : tuple of SequenceKey
        Its sequences that have not ended.
    in_flight, queued : int
        Requests without a final response, and those of them that wait for an execution.
    applied : tuple of int
        The numbers of the changes that it has applied.
    """

    replica: str
    group: str
    node: str = ""
    url: str = ""
    grpc_url: str = ""
    live: tuple[SequenceKey, ...] = ()
    in_flight: int = 0
    queued: int = 0
    applied: tuple[int, ...] = ()

    def to_dict(self) -> JsonDict:
        """Return the entry of ``/v2/replicas``."""
        return {
            "replica": self.replica,
            "group": self.group,
            "node": self.node,
            "url": self.url,
            "grpc_url": self.grpc_url,
            "sequences": [{"model": key.model, "sequence_id": key.id} for key in self.live],
            "in_flight": self.in_flight,
            "queued": self.queued,
        }


class Coordinator:
    """The state that the ingress replicas and the engine replicas of a deployment share.

    A sequence is on one replica from its START request until it ends: by its END request, by being idle for too long,
    or because its replica was lost. It never moves when other replicas are added or removed. The replicas decide
    whether a sequence is live, and report it; the coordinator only remembers where.

    Parameters
    ----------
    clock : callable, optional
        Seconds; for tests.

    Attributes
    ----------
    sequences : dict of SequenceKey to str
        The replica of each live sequence.

    Examples
    --------
    >>> coordinator = Coordinator()
    >>> key = SequenceKey("accumulator", 42)
    >>> coordinator.start(key, "r1"), coordinator.start(key, "r2")  # a live sequence does not move
    ('r1', 'r1')
    >>> coordinator.end_sequence(key, "r1")
    >>> coordinator.start(key, "r2")
    'r2'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.sequences: dict[SequenceKey, str] = {}
        self._started: dict[SequenceKey, float] = {}  # the last START of each sequence
        self._clock = clock
        self._reports: dict[str, tuple[float, ReplicaReport]] = {}
        self._changes: dict[str, dict[int, DeploymentChange]] = defaultdict(dict)  # by group and number
        self._numbers = count(1)

    # --- sequences ----------------------------------------------------------------------------

    def start(self, key: SequenceKey, proposed: str) -> str:
        """Return the replica for a START request: the current one if the sequence is live."""
        self._started[key] = self._clock()
        return self.sequences.setdefault(key, proposed)

    def find(self, key: SequenceKey) -> str | None:
        """Return the replica of a live sequence; None for an unknown sequence."""
        return self.sequences.get(key)

    def end_sequence(self, key: SequenceKey, replica: str) -> None:
        """Remove a sequence that ended on a replica, unless it is on another replica now."""
        if self.sequences.get(key) == replica:
            self._remove(key)

    def forget(self, replica: str) -> int:
        """Remove a lost replica; return how many sequences ended with it."""
        self._reports.pop(replica, None)
        lost = [key for key, other in self.sequences.items() if other == replica]
        for key in lost:
            self._remove(key)
        return len(lost)

    def _remove(self, key: SequenceKey) -> None:
        del self.sequences[key], self._started[key]

    # --- replicas -----------------------------------------------------------------------------

    def report(self, report: ReplicaReport) -> Mapping[int, DeploymentChange]:
        """Record the state of a replica; return the changes that it has not applied, by number.

        Sequences that it does not report as live have ended.
        """
        now = self._clock()
        self._reports[report.replica] = now, report
        for key in report.live:
            self.sequences.setdefault(key, report.replica)
            self._started.setdefault(key, now)
        here = [key for key, replica in self.sequences.items() if replica == report.replica]
        for key in set(here).difference(report.live):
            if now - self._started[key] > GRACE_S:
                self._remove(key)
        changes = self._changes[report.group]
        return {number: change for number, change in changes.items() if number not in report.applied}

    def replicas(self, running: Collection[str] = ()) -> list[JsonDict]:
        """Return the replicas that reported lately, or those among them that are named, sorted by group and ID."""
        now = self._clock()
        self._reports = {name: entry for name, entry in self._reports.items() if now - entry[0] < _SILENT_S}
        reports = [report for _, report in self._reports.values() if not running or report.replica in running]
        return [report.to_dict() for report in sorted(reports, key=lambda report: (report.group, report.replica))]

    # --- changes ------------------------------------------------------------------------------

    def begin_change(self, group: str, change: DeploymentChange) -> int:
        """Number a change of a group of replicas, before it is sent to them: a replica that starts now applies it."""
        number = next(self._numbers)
        self._changes[group][number] = change
        return number

    def end_change(self, group: str, number: int, accepted: bool) -> None:
        """Keep a change for later replicas if a replica accepted it; every replica has answered.

        It replaces the earlier changes of the same subject, which new replicas need not apply.
        """
        changes = self._changes[group]
        change = changes.get(number)  # None if a later one has replaced it
        if not accepted:
            changes.pop(number, None)
        elif change is not None:
            for earlier in [n for n, other in changes.items() if n < number and other.subject == change.subject]:
                del changes[earlier]
