"""The state that the replicas of a deployment share: their live sequences, and the changes that clients made.

There is one coordinator for a deployment; every ingress replica calls it, so they agree. Its state is rebuilt from the
reports of the replicas if it is restarted, except for the changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tritonnb.core.json_types import JsonDict
from tritonnb.scale.sequences import SequenceKey, SequenceTable

#: Seconds without a report after which a replica is no longer listed.
_SILENT_S = 30.0


@dataclass(frozen=True, slots=True)
class DeploymentChange:
    """A request that changes every replica, including those that are added later: load, unload, settings.

    Attributes
    ----------
    subject : str
        What it changes; a later change of the same subject replaces it for new replicas. Empty if it adds to others.
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
        """Return a change of settings with these names; it replaces an earlier one of the same settings."""
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


@dataclass(slots=True)
class _Changes:
    """The changes of one group of replicas, by number."""

    last: int = 0
    by_number: dict[int, DeploymentChange] = field(default_factory=dict)

    def add(self, change: DeploymentChange) -> int:
        self.last += 1
        self.by_number[self.last] = change
        return self.last

    def confirm(self, number: int) -> None:
        """Drop the earlier changes of the same subject, which new replicas need not apply."""
        change = self.by_number.get(number)
        if change is not None and change.subject:
            replaced = [n for n, other in self.by_number.items() if n < number and other.subject == change.subject]
            for n in replaced:
                del self.by_number[n]


class Coordinator:
    """The state that the ingress replicas and the engine replicas of a deployment share.

    Parameters
    ----------
    clock : callable, optional
        Seconds; for tests.

    Attributes
    ----------
    sequences : SequenceTable
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.sequences = SequenceTable()
        self._clock = clock
        self._reports: dict[str, tuple[float, ReplicaReport]] = {}
        self._changes: dict[str, _Changes] = {}

    # --- sequences ----------------------------------------------------------------------------

    def start(self, key: SequenceKey, proposed: str) -> str:
        """Return the replica for a START request; see `SequenceTable.start`."""
        return self.sequences.start(key, proposed, self._clock())

    def find(self, key: SequenceKey) -> str | None:
        """Return the replica of a live sequence; None for an unknown one."""
        return self.sequences.find(key)

    def end_sequence(self, key: SequenceKey, replica: str) -> None:
        """Remove a sequence that has ended."""
        self.sequences.end_sequence(key, replica)

    def forget(self, replica: str) -> int:
        """Remove a lost replica; return how many sequences ended with it."""
        self._reports.pop(replica, None)
        return len(self.sequences.forget(replica))

    # --- replicas -----------------------------------------------------------------------------

    def report(self, report: ReplicaReport) -> Mapping[int, DeploymentChange]:
        """Record the state of a replica; return the changes that it has not applied, by number."""
        now = self._clock()
        self._reports[report.replica] = now, report
        self.sequences.report(report.replica, report.live, now)
        changes = self._changes.setdefault(report.group, _Changes()).by_number
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
        return self._changes.setdefault(group, _Changes()).add(change)

    def end_change(self, group: str, number: int, accepted: bool) -> None:
        """Keep a change for later replicas if a replica accepted it; every replica has answered."""
        changes = self._changes[group]
        if accepted:
            changes.confirm(number)
        else:
            changes.by_number.pop(number, None)
