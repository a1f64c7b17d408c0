"""The presets: the five figures of Triton's document on stateful models, and the batches of the others."""

from __future__ import annotations

import pytest

from docs.playground.presets import PRESETS, preset
from docs.playground.result import control_inputs
from docs.playground.session import simulate_scenario
from tritonnb.recording.recording import Recording


def steps_of(recording: Recording) -> list[str]:
    """The batches in order, each as instance and requests: ``0: A.1 -`` has the first request of sequence A."""
    counts: dict[int | str, int] = {}
    names: dict[int | None, str] = {None: "-"}
    for request in sorted(recording.requests, key=lambda request: request.serial):
        counts[request.sequence_id] = counts.get(request.sequence_id, 0) + 1
        names[request.serial] = f"{request.sequence_id}.{counts[request.sequence_id]}"
    batches = sorted(recording.batches, key=lambda batch: batch.number)
    return [f"{batch.instance[-1]}: {' '.join(names[serial] for serial in batch.requests)}" for batch in batches]


def test_figure_1_two_instances_have_two_slots_each_and_a_fifth_sequence_waits() -> None:
    recording = simulate_scenario(preset("direct-slots"))
    first = {occupancy.sequence: occupancy for occupancy in recording.slot_occupancy}
    slots = {(occupancy.instance[-1], occupancy.slot) for occupancy in recording.slot_occupancy}
    assert slots == {("0", 0), ("0", 1), ("1", 0), ("1", 1)}
    assert [first[sequence].backlog_ns for sequence in (1, 2, 3, 4)] == [0, 0, 0, 0]
    assert first[5].assigned_ns == first[1].released_ns
    assert (first[5].instance, first[5].slot) == (first[1].instance, first[1].slot)


def test_figure_2_six_sequences_share_four_slots_and_the_backlog_gets_the_slot_that_is_free_first() -> None:
    recording = simulate_scenario(preset("direct-sequences"))
    first = {occupancy.sequence: occupancy for occupancy in recording.slot_occupancy}
    assert [sequence for sequence, held in first.items() if held.backlog_ns == 0] == ["S0", "S1", "S2", "S3"]
    assert (first["S4"].instance, first["S4"].slot) == (first["S2"].instance, first["S2"].slot)
    assert steps_of(recording)[:4] == ["0: S0.1", "1: S1.1", "0: - S2.1", "1: - S3.1"]
    for number in range(6):
        requests = [step for step in steps_of(recording) if f"S{number}." in step]
        assert len({step[0] for step in requests}) == 1, "all requests of a sequence run on one instance"


def test_figure_3_the_control_inputs_say_which_rows_start_a_sequence_and_which_are_ready() -> None:
    recording = simulate_scenario(preset("control-inputs"))
    inputs = [tensors for _, _, tensors in control_inputs(recording, recording.configs["direct_stateful_model"])]
    assert inputs[0] == {"START": [1], "READY": [1]}, "the first request of the sequence in slot 0"
    assert inputs[1] == {"START": [0], "READY": [1]}
    assert inputs[2] == {"START": [0, 1], "READY": [1, 1]}, "both slots are ready, and slot 1 starts a sequence"
    assert inputs[3] == {"START": [0, 0], "READY": [0, 1]}, "slot 0 has no request: a null request"
    assert inputs[4] == {"START": [0, 0], "READY": [1, 1]}


def test_figure_4_an_instance_has_four_candidates_and_a_fifth_sequence_waits() -> None:
    recording = simulate_scenario(preset("oldest-candidates"))
    waits = {occupancy.sequence: occupancy.backlog_ns > 0 for occupancy in recording.slot_occupancy}
    assert waits == {1: False, 2: False, 3: False, 4: False, 5: True}
    assert {occupancy.slot for occupancy in recording.slot_occupancy} == {0, 1, 2, 3}


def test_figure_5_batches_have_the_oldest_requests_of_different_sequences() -> None:
    assert steps_of(simulate_scenario(preset("oldest-batches"))) == [
        "0: A.1", "0: B.1 C.1", "0: D.1 A.2", "0: B.2 C.2", "0: D.2 A.3", "0: B.3 C.3", "0: D.3", "0: D.4", "0: D.5",
    ]  # fmt: skip


#: The rows of the batches of the other presets.
SIZES = {
    "five-requests": [8, 8],
    "no-batching": [4, 2, 2, 6, 2],
    "preferred-sizes": [2, 2, 2, 2],
    "priorities-timeouts": [1, 4, 4, 4, 4, 4, 4],
    "bursts": [1, 1, 8, 2] * 5,
    "closed-loop": [6] * 15,
    "iterative": [1, 2, 4, 4, 4, 4, 4, 4, 4, 4, 2, 1],
}


@pytest.mark.parametrize("name", SIZES)
def test_preset_forms_the_described_batches(name: str) -> None:
    batches = sorted(simulate_scenario(preset(name)).batches, key=lambda batch: batch.number)
    assert [batch.size for batch in batches] == SIZES[name]


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name]["scenario"]["baseline"]])
def test_baseline_of_a_preset_makes_a_difference(name: str) -> None:
    scenario = preset(name)
    before = simulate_scenario({**scenario, "config": scenario["baseline"]})
    assert before.events != simulate_scenario(scenario).events


def test_request_of_an_iterative_sequence_enters_when_another_one_has_finished() -> None:
    recording = simulate_scenario(preset("iterative"))
    members = [set(batch.requests) for batch in sorted(recording.batches, key=lambda batch: batch.number)]
    assert all(5 not in batch for batch in members[:5])
    assert members[5] == {1, 3, 5, 6}
    assert recording.arrivals()[0].steps == 12
