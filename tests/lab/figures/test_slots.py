"""Both figures of Triton's stateful-models document, simulated and live, and who holds which slot when."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.laws import law
from tests.scheduling.harness import Begun
from tritonnb.lab.simulation import run
from tritonnb.recording.sequences import END, IDLE
from tritonnb.scheduling.from_config import make_scheduler
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.server.server import Server

DIRECT = 'name: "m" max_batch_size: 2 instance_group { count: 2 } sequence_batching { direct { } %s }'
OLDEST = 'name: "m" max_batch_size: 2 sequence_batching { oldest { max_candidate_sequences: 4 } %s }'


def sequence(name: str, *times_ms: float) -> list[tnb.Arrival]:
    last = len(times_ms) - 1
    return [
        tnb.Arrival(time * 1000, sequence_id=name, sequence_start=step == 0, sequence_end=step == last)
        for step, time in enumerate(times_ms)
    ]


def together(*sequences: list[tnb.Arrival]) -> list[tnb.Arrival]:
    return sorted(itertools.chain(*sequences), key=lambda arrival: arrival.time_us)


@pytest.fixture(scope="module")
def direct() -> tnb.Recording:
    ends = [420, 480, 360, 540, 600, 660]
    arrivals = together(*(sequence(str(index), index * 30, 180 + index * 30, ends[index]) for index in range(6)))
    return tnb.simulate(DIRECT % "", arrivals, tnb.fixed(20))


@pytest.fixture(scope="module")
def oldest() -> tnb.Recording:
    arrivals = together(*(sequence(name, at * 10, 60 + at * 10, 120 + at * 10) for at, name in enumerate("ABCD")))
    return tnb.simulate(OLDEST % "", arrivals, tnb.fixed(40))


def held(rec: tnb.Recording) -> list[tuple[Any, ...]]:
    return [
        (occupancy.sequence, occupancy.instance, occupancy.slot, occupancy.backlog_ns // 1_000_000)
        for occupancy in rec.slot_occupancy
    ]


def test_figure_of_the_direct_strategy_shows_its_slots(direct: tnb.Recording) -> None:
    assert held(direct) == [
        ("0", "m_0_0", 0, 0),
        ("1", "m_0_1", 0, 0),
        ("2", "m_0_0", 1, 0),
        ("3", "m_0_1", 1, 0),
        ("4", "m_0_0", 1, 240),
        ("5", "m_0_0", 0, 270),
    ]
    assert sum(batch.requests.count(None) for batch in direct.batches) == 9
    [ax] = direct.plot.slots().axes
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    assert labels == ["m_0_0 slot 0", "m_0_0 slot 1", "m_0_1 slot 0", "m_0_1 slot 1", "backlog"]
    shown = {label.get_text().strip() for label in ax.texts}
    assert {f"{name}·{step}" for name in "012345" for step in (1, 2, 3)} <= shown
    (hatched,) = [collection for collection in ax.collections if collection.get_hatch()]
    assert len(hatched.get_paths()) == 9
    marks = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"arrival of a request", "null request"} < set(marks)
    assert "null" not in shown


def test_figure_of_the_oldest_strategy_shows_its_candidates(oldest: tnb.Recording) -> None:
    assert held(oldest) == [(name, "m_0_0", slot, 0) for slot, name in enumerate("ABCD")]
    members = {request.serial: request.sequence_id for request in oldest.requests}
    batches = ["".join(members[serial] for serial in batch.requests) for batch in oldest.batches]  # type: ignore[index, misc]
    assert batches == ["A", "BC", "DA", "BC", "DA", "BC", "D"]
    [ax] = oldest.plot.slots().axes
    assert "backlog" not in [tick.get_text() for tick in ax.get_yticklabels()]
    assert {f"{name}·{step}" for name in "ABCD" for step in (1, 2, 3)} <= {label.get_text() for label in ax.texts}
    assert "0 of 12 rows are null requests" in oldest.plot.alt("slots")


def test_description_has_slots_null_requests_and_backlog(direct: tnb.Recording) -> None:
    alt = direct.plot.alt("slots")
    assert "6 sequences in 4 slots of 2 instances" in alt
    assert "9 of 27 rows are null requests" in alt
    assert "2 sequences waited in the backlog, at most 270.0 ms" in alt


def test_figure_of_a_recording_without_slots_has_a_note() -> None:
    rec = tnb.simulate("max_batch_size: 2 dynamic_batching { }", [(0, 1)], tnb.fixed(1))
    with pytest.raises(tnb.TritonError, match="a recording of a stateful model"):
        rec.plot.slots()


def test_idle_sequence_loses_its_slot() -> None:
    config = 'name: "m" max_batch_size: 1 sequence_batching { direct { } max_sequence_idle_microseconds: 50000 }'
    arrivals = [
        tnb.Arrival(0, sequence_id="A", sequence_start=True),
        tnb.Arrival(10_000, sequence_id="B", sequence_start=True, sequence_end=True),
        tnb.Arrival(90_000, sequence_id="A"),
    ]
    rec = tnb.simulate(config, arrivals, tnb.fixed(5))
    silent, next_one = rec.slot_occupancy
    assert (silent.ended, silent.released_ns, next_one.assigned_ns) == (IDLE, 50_000_000, 50_000_000)
    assert (next_one.ended, next_one.backlog_ns) == (END, 40_000_000)
    assert "idle timeout" in rec.plot.alt("slots")
    assert {"idle ✕", "A refused"} <= {label.get_text().strip() for label in rec.plot.slots().axes[0].texts}


def test_figures_of_a_live_server_equal_those_of_a_simulation(tmp_path: Path) -> None:
    """The same sequences, one request after the other: slots, null rows and backlog are those of the simulation."""
    source = Path(__file__).parents[2] / "models" / "accumulate"
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text((source / "1" / "model.py").read_text())
    config = (source / "config.pbtxt").read_text()
    for before, after in (
        ('"accumulate"', '"m"'),
        ("max_batch_size: 4", "max_batch_size: 2"),
        ("count: 1", "count: 2"),
    ):
        assert before in config
        config = config.replace(before, after)
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    with Server(tmp_path, port=0) as server, server.record() as rec:
        for name in range(1, 5):
            server["m"](INPUT0=[[1]], sequence_id=name, sequence_start=True)
        for name in range(1, 5):
            server["m"](INPUT0=[[1]], sequence_id=name, sequence_end=True)
        server["m"](INPUT0=[[1]], sequence_id=5, sequence_start=True)
    assert [occupancy[:3] for occupancy in held(rec)] == [
        (1, "m_0_0", 0), (2, "m_0_1", 0), (3, "m_0_0", 1), (4, "m_0_1", 1), (5, "m_0_0", 0),
    ]  # fmt: skip
    assert [occupancy.ended for occupancy in rec.slot_occupancy] == [END] * 4 + [""]
    sizes = [batch.requests.count(None) for batch in rec.batches]
    assert sizes == [0, 0, 1, 1, 0, 0, 1, 1, 0]
    assert "5 sequences in 4 slots of 2 instances" in rec.plot.alt("slots")
    assert rec.plot.slots().axes[0].collections


class Watched:
    """A sequence batcher that tells when each slot changes hands."""

    STIMULI = ("enqueue", "instance_idle", "released", "cancel", "wake")

    def __init__(self, batcher: SequenceBatcher) -> None:
        self._batcher = batcher
        self._begun = Begun(batcher)
        self.log: dict[tuple[Any, ...], int] = {}

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        attribute = getattr(self._batcher, name)
        return partial(self._watch, attribute) if name in self.STIMULI else attribute

    def _watch(self, stimulus: Any, *args):  # type: ignore[no-untyped-def]
        decisions = stimulus(*args)
        for sequence in self._begun.sequences:
            if sequence.slot is not None:
                whose = (sequence.slot.instance, sequence.slot.index, sequence.id)
                self.log.setdefault(("assigned", *whose), args[-1])
                if sequence.slot.sequence is not sequence:
                    self.log.setdefault(("released", *whose), args[-1])
        return decisions


@law(100)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.lists(st.integers(0, 25), min_size=1, max_size=4), st.booleans()),
        min_size=1,
        max_size=7,
    ),
    st.sampled_from([DIRECT, OLDEST]),
    st.integers(1, 12),
)
def test_slot_occupancies_equal_the_schedulers_decisions(workload: Any, config: str, service_ms: Any) -> None:
    """Slot occupancies that are folded from batches equal the scheduler's own table."""
    arrivals = []
    for number, (begin, gaps, ends) in enumerate(workload):
        # Odd nanoseconds keep moments apart that nothing orders.
        times = [begin + sum(gaps[:step]) + 0.013 * number + 0.001 * step for step in range(len(gaps))]
        named = sequence(f"s{number}", *times)
        arrivals.append(named if ends or len(named) == 1 else named[:-1])
    watched = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "make_scheduler", lambda *args: watched.append(Watched(make_scheduler(*args))) or watched[0])  # type: ignore[arg-type, func-returns-value]
        rec = tnb.simulate(config % "max_sequence_idle_microseconds: 30000", together(*arrivals), tnb.fixed(service_ms))
    ran = {(occupancy.sequence, occupancy.instance, occupancy.slot) for occupancy in rec.slot_occupancy}
    end = max(event.time_ns for event in rec.events)
    logged = [
        (what, now, instance, slot, sequence)
        for (what, instance, slot, sequence), now in watched[0].log.items()
        if (sequence, f"m_0_{instance}", slot) in ran and now <= end
    ]
    folded = [
        ("assigned", occupancy.assigned_ns, int(occupancy.instance[-1]), occupancy.slot, occupancy.sequence)
        for occupancy in rec.slot_occupancy
    ] + [
        ("released", occupancy.released_ns, int(occupancy.instance[-1]), occupancy.slot, occupancy.sequence)
        for occupancy in rec.slot_occupancy
        if occupancy.released_ns is not None
    ]
    assert sorted(folded, key=str) == sorted(logged, key=str)
