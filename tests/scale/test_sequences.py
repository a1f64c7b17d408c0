"""The live sequences of a deployment: a sequence stays where it started until it ends."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tritonnb.scale.coordinator import GRACE_S, Coordinator, DeploymentChange, ReplicaReport
from tritonnb.scale.sequences import SequenceKey

keys = st.builds(SequenceKey, st.sampled_from(["m", "n"]), st.sampled_from([1, 2, "1"]))
replicas = st.sampled_from(["r1", "r2", "r3"])


class CoordinatorMachine(RuleBasedStateMachine):
    """The sequences of a coordinator, compared with what the replicas know."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(lambda: self.now)
        self.live: dict[SequenceKey, str] = {}
        self.now = 0.0

    @rule(key=keys, proposed=replicas)
    def start(self, key: SequenceKey, proposed: str) -> None:
        expected = self.live.get(key, proposed)
        assert self.coordinator.start(key, proposed) == expected
        self.live[key] = expected

    @rule(key=keys, replica=replicas)
    def end_sequence(self, key: SequenceKey, replica: str) -> None:
        self.coordinator.end_sequence(key, replica)
        if self.live.get(key) == replica:
            del self.live[key]

    @rule(replica=replicas)
    def forget(self, replica: str) -> None:
        lost = {key for key, other in self.live.items() if other == replica}
        assert self.coordinator.forget(replica) == len(lost)
        self.live = {key: other for key, other in self.live.items() if other != replica}

    @rule(replica=replicas, seconds=st.sampled_from([0.0, GRACE_S + 1]), data=st.data())
    def report(self, replica: str, seconds: float, data: st.DataObject) -> None:
        self.now += seconds
        here = sorted((key for key, other in self.live.items() if other == replica), key=repr)
        idle = set(data.draw(st.lists(st.sampled_from(here), unique=True))) if here and seconds else set()
        self.coordinator.report(ReplicaReport(replica, "engine", live=tuple(key for key in here if key not in idle)))
        self.live = {key: other for key, other in self.live.items() if key not in idle}

    @invariant()
    def the_coordinator_has_the_live_sequences(self) -> None:
        assert self.coordinator.sequences == self.live
        assert all(self.coordinator.find(key) == replica for key, replica in self.live.items())


TestCoordinator = CoordinatorMachine.TestCase


def test_new_sequence_is_kept_before_its_replica_reports_it() -> None:
    now = 0.0
    coordinator = Coordinator(lambda: now)
    key = SequenceKey("m", 1)
    coordinator.start(key, "r1")
    now = GRACE_S / 2
    coordinator.report(ReplicaReport("r1", "engine"))
    assert coordinator.find(key) == "r1"
    now = GRACE_S + 1
    coordinator.report(ReplicaReport("r1", "engine"))
    assert coordinator.find(key) is None


def test_restarted_coordinator_restores_the_sequences_from_reports() -> None:
    coordinator = Coordinator()
    key = SequenceKey("m", "a")
    coordinator.report(ReplicaReport("r2", "engine", live=(key,)))
    assert coordinator.find(key) == "r2"
    assert coordinator.start(key, "r1") == "r2"
    assert coordinator.forget("r2") == 1
    assert coordinator.start(key, "r1") == "r1"


def test_later_replica_gets_the_last_accepted_change_of_each_subject() -> None:
    coordinator = Coordinator()
    load, unload = (
        DeploymentChange("model m", "POST", f"/v2/repository/models/m/{verb}", b"") for verb in ("load", "unload")
    )
    setting = DeploymentChange("settings", "POST", "/v2/logging", b'{"log_verbose_level":1}')
    for change, accepted in ((load, True), (setting, True), (unload, True), (load, False)):
        coordinator.end_change("engine", coordinator.begin_change("engine", change), accepted)
    changes = coordinator.report(ReplicaReport("r1", "engine"))
    assert list(changes.values()) == [setting, unload]
    assert coordinator.report(ReplicaReport("r1", "engine", applied=tuple(changes))) == {}
    assert coordinator.report(ReplicaReport("r9", "another")) == {}


def test_change_reaches_a_replica_that_starts_while_it_is_applied() -> None:
    coordinator = Coordinator()
    load = DeploymentChange("model m", "POST", "/v2/repository/models/m/load", b"")
    number = coordinator.begin_change("engine", load)
    assert coordinator.report(ReplicaReport("new", "engine")) == {number: load}


def test_replicas_that_are_silent_are_not_listed() -> None:
    now = 0.0
    coordinator = Coordinator(lambda: now)
    coordinator.report(ReplicaReport("r1", "engine", live=(SequenceKey("m", 7),)))
    assert coordinator.replicas()[0]["sequences"] == [{"model": "m", "sequence_id": 7}]
    assert coordinator.replicas(["r2"]) == []
    now = 60.0
    assert coordinator.replicas() == []
