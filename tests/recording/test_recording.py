"""A recording turns events into batches that can be asked why."""

from __future__ import annotations

import pytest
from tritonclient.grpc import model_config_pb2 as pb

import tritonnb as tnb
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestRefused
from tritonnb.core.packed_events import pack, unpack
from tritonnb.recording.instance_names import natural_sort_key
from tritonnb.recording.recording import Recording

MS = 1_000_000


def sent(number: int, *members: int, size: int = 0, at: int = 0, model: str = "m") -> BatchSent:
    rule, facts = "timed_out", {"waited_ns": 5 * MS, "timeout_ns": 5 * MS}
    return BatchSent(at, model, 1, number, "m_0_0", size or len(members), rule, 3, members, None, facts)


def executed(number: int, *members: int, size: int = 0, at: int = 0, model: str = "m") -> BatchExecuted:
    requests = tuple((member, 1, at - 2 * MS, at - MS, "") for member in members)
    return BatchExecuted(
        at + 4 * MS,
        model,
        1,
        number,
        "m_0_0",
        size or len(members),
        at,
        at,
        at + 4 * MS,
        at + 4 * MS,
        requests,
    )


@pytest.fixture
def recording() -> Recording:
    return Recording([sent(1, 1, 2, 3), sent(2, 4, at=MS), executed(1, 1, 2, 3, at=MS), executed(2, 4, at=9 * MS)])


def test_null_requests_do_not_count_as_sharing_a_batch() -> None:
    config = "max_batch_size: 2 sequence_batching { direct { } }"
    rec = tnb.simulate(config, tnb.sequences([2, 3], every_ms=5, stagger_ms=2), tnb.fixed(1))
    assert [batch.requests.count(None) for batch in rec.batches] == [0, 1, 0, 1, 1]
    assert rec.summary()["rows_batched"] == 0.0


def test_lists_of_a_recording_have_short_reprs() -> None:
    config = "max_batch_size: 2 sequence_batching { direct { } }"
    stateful = tnb.simulate(config, tnb.sequences([40, 40], every_ms=5), tnb.fixed(1))
    assert repr(stateful.slot_occupancy[0]) == "<SlotOccupancy: sequence 1 in slot 0 of simulated_0_0; 40 requests>"
    assert repr(stateful.requests[0]) == "<RequestRecord 1: 1 row of 'simulated' in batch 1; 1.00 ms>"
    config = "max_batch_size: 2 sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 2 } }"
    generating = tnb.simulate(config, [tnb.Arrival(0).with_steps(75)], tnb.fixed(1))
    assert repr(generating.generations) == "[<Generation 1: 75 tokens in slot 0 of simulated_0_0; 75.00 ms>]"


def test_recorded_batches_combine_sent_and_executed_events(recording: Recording) -> None:
    first = recording.batches[0]
    assert (first.requests, first.size, first.queue_depth) == ((1, 2, 3), 3, 3)
    assert first.compute_ns == 4 * MS
    assert first.queue_ns == MS


def test_batch_has_its_reason_in_words(recording: Recording) -> None:
    assert "5.0 ms" in recording.batches[0].why


def test_summary_counts_requests_rows_and_batches(recording: Recording) -> None:
    summary = recording.summary()
    assert (summary["requests"], summary["rows"], summary["batches"]) == (4, 4, 2)
    assert summary["mean_batch_size"] == 2.0
    assert summary["rows_batched"] == 0.75
    assert summary["longest_queue_ms"] == 1.0


def test_batch_of_one_request_and_a_null_request_does_not_count_as_shared() -> None:
    alone = Recording([sent(1, None, 2), executed(1, 2)])  # type: ignore[arg-type]
    assert alone.batches[0].size == 2
    assert alone.summary()["rows_batched"] == 0


def test_verdict_is_the_first_line_of_the_repr(recording: Recording) -> None:
    assert repr(recording).splitlines()[0] == recording.verdict()
    assert "2 batches" in recording.verdict()
    assert "<table" in recording._repr_html_()


def test_batch_started_before_the_recording_is_excluded() -> None:
    assert Recording([executed(7, 1)]).batches == []


def test_refused_requests_are_listed_separately() -> None:
    refused = RequestRefused(1, "m", 1, 1, 1, 0, "Request timeout expired", "REJECTED")
    assert Recording([refused]).refused == [refused]


def test_view_can_be_limited_to_one_model(recording: Recording) -> None:
    both = Recording([*recording.events, sent(3, 9, model="n"), executed(3, 9, model="n")])
    assert [batch.model for batch in both.for_model("n").batches] == ["n"]


def test_model_without_recorded_events_is_an_error(recording: Recording) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^recording expected one of the models 'm', got 'digit'$"):
        recording.for_model("digit")
    with pytest.raises(InvalidArgumentError, match="expected one of the models"):
        Recording().for_model("m")


def test_model_without_requests_has_an_empty_recording() -> None:
    idle = Recording([], {"m": pb.ModelConfig(name="m")})
    assert idle.for_model("m").events == []


@pytest.mark.parametrize("event", [sent(1, 2, None, 3), executed(1, 2, 3), RequestRefused(1, "m", 1, 2, 3, 4, "x", "")])  # type: ignore[arg-type]
def test_event_is_unchanged_after_packing_and_unpacking(event: Event) -> None:
    assert unpack(pack(event)) == event


def test_empty_recording_has_a_message_instead_of_a_table() -> None:
    assert tnb.Recording()._repr_html_() == "<p><b>Nothing was executed.</b></p>"


def test_numbers_in_names_are_sorted_whatever_their_length() -> None:
    names = ["m_0_10", "m_0_9", "m_0_²", f"m_0_{'9' * 5000}", f"m_0_{'8' * 5000}", "m_0_010", "m"]
    ordered = sorted(names, key=natural_sort_key)
    assert ordered[:3] == ["m", "m_0_9", "m_0_10"]
    assert ordered.index(f"m_0_{'8' * 5000}") < ordered.index(f"m_0_{'9' * 5000}")
