"""The latest requests of a recording under a draft of the configuration."""

from __future__ import annotations

import pytest

import tritonnb as tnb
from tritonnb.lab.analysis.draft_replay import replay_draft
from tritonnb.recording.recording import Recording

RUNNING = 'name: "m" max_batch_size: 8 dynamic_batching { }'
DELAYED = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }'


@pytest.fixture
def rec() -> Recording:
    return tnb.simulate(RUNNING, tnb.poisson(150, 2, seed=1), tnb.fixed(10))


def test_running_configuration_reproduces_the_recording(rec: Recording) -> None:
    replay = replay_draft(rec, RUNNING, seconds=10)
    assert [batch.requests for batch in replay.before.batches] == [batch.requests for batch in rec.batches]
    assert replay.before.events == replay.after.events
    assert [batch.sent_ns + replay.begin_ns for batch in replay.after.batches] == [b.sent_ns for b in rec.batches]


def test_draft_is_predicted_like_what_if_predicts_it(rec: Recording) -> None:
    figures = replay_draft(rec, DELAYED, seconds=10).figures()
    changed = rec.what_if(max_queue_delay_microseconds=20000)
    for name, (before, after) in figures.items():
        assert (before, after) == (changed.before.summary()[name], changed.after.summary()[name])
    assert figures["mean_batch_size"][1] > figures["mean_batch_size"][0]


@pytest.mark.parametrize(("seconds", "requests", "count"), [(0.5, 1000, None), (10, 50, 50), (10, 1000, None)])
def test_only_the_latest_requests_are_replayed(
    rec: Recording, seconds: float, requests: int, count: int | None
) -> None:
    replay = replay_draft(rec, DELAYED, seconds=seconds, requests=requests)
    arrived = [arrival.time_us for arrival in rec.arrivals()]
    expected = sum(time_us >= arrived[-1] - seconds * 1e6 for time_us in arrived)
    assert len(replay.after.requests) == (expected if count is None else count)


def test_requests_that_the_draft_refuses_are_counted(rec: Recording) -> None:
    limited = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    replay = replay_draft(rec, limited)
    assert replay.figures()["refused"][1] > 0
    assert ", refused 0 → " in replay.verdict()


def test_sequences_that_began_earlier_continue() -> None:
    text = 'name: "s" max_batch_size: 2 sequence_batching { }'
    rec = tnb.simulate(text, tnb.sequences([20, 20], every_ms=10), tnb.fixed(2))
    replay = replay_draft(rec, text, requests=10)
    assert len(replay.after.requests) == 10
    assert not replay.after.refused


@pytest.mark.parametrize(
    ("recording", "draft", "complaint"),
    [
        (Recording(), RUNNING, "replay_draft expected a recording of one model, got one of no model"),
        (tnb.simulate(RUNNING, [(0, 4)], tnb.fixed(1)), 'name: "m" max_batch_size: 2', "batch-size must be <= 2"),
        (
            tnb.simulate(RUNNING, [(0, 4)], tnb.fixed(1)),
            'platform: "ensemble" ensemble_scheduling { }',
            "got an ensemble",
        ),
    ],
)
def test_replay_of_an_unsupported_recording_is_an_error(recording: Recording, draft: str, complaint: str) -> None:
    with pytest.raises(tnb.TritonError, match=complaint):
        replay_draft(recording, draft)
