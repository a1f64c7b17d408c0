"""Recordings of traces: batches, reasons, agreement, and predictions, compared with what the server did."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import tritonnb as tnb
from tests.client.servers import ServerProcess
from tests.lab.traces.traces import CONFIG, entries, executed, request, traced
from tests.lab.traces.traffic import send
from tritonnb.recording.trace_source import Agreement

REQUESTS = 500
#: Name, model, and traffic: Poisson arrivals, and clients that wait for their responses.
LOADS = [
    ("one", {"rate": 300}),
    ("delay", {"rate": 300}),
    ("two", {"rate": 400}),
    ("one", {"clients": 12}),
    ("delay", {"clients": 12}),
    ("two", {"clients": 12}),
]


def record_load(
    server: ServerProcess, model: str, requests: int, **traffic: int
) -> tuple[tnb.Recording, list[list[str]]]:
    """A recording of a load, and the batches that the model logged during it."""
    before = len(server.logged(model))
    with tnb.connect(server.grpc) as remote, remote.record(model) as recording:
        send(server.grpc, model, requests, **traffic)
    return recording, server.logged(model)[before:]


def ids_of_batches(recording: tnb.Recording) -> list[tuple[str, ...]]:
    ids = {request.serial: request.id for request in recording.requests}
    return [tuple([ids[serial] for serial in batch.requests if serial is not None]) for batch in recording.batches]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("model", "traffic"), LOADS, ids=lambda value: str(value))
def test_trace_has_the_batches_that_ran(remote_server: ServerProcess, model: str, traffic: dict[str, int]) -> None:
    recording, logged = record_load(remote_server, model, REQUESTS, **traffic)
    assert len(recording.requests) == REQUESTS
    assert Counter(ids_of_batches(recording)) == Counter(map(tuple, logged))
    assert recording.batch_sizes() == dict(sorted(Counter(map(len, logged)).items()))
    agreement = recording.agreement
    assert agreement is not None
    print(f"\n{'Triton' if remote_server.is_triton else 'tritonnb'} {model} {traffic}: {agreement}")
    assert agreement.share >= 0.95, agreement
    assert agreement.share == 1 or agreement.difference.startswith("batch ")
    for batch in recording.batches:
        is_inferred = bool(batch.reason.facts.get("inferred"))
        assert is_inferred == (batch.reason.rule != "unknown")
        assert batch.why.endswith("(inferred)") == is_inferred


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("model", "rate", "delay_us"), [("delay", 150, 0), ("one", 200, 3000)])
def test_what_if_predicts_a_run_under_another_configuration(
    remote_server: ServerProcess, model: str, rate: int, delay_us: int
) -> None:
    attempts = []
    for _ in range(12):  # until one pair of runs finds the machine equally busy
        recording, _ = record_load(remote_server, model, REQUESTS, rate=rate)
        with tnb.connect(remote_server.grpc) as remote, remote[model].config as config:
            config.dynamic_batching.max_queue_delay_microseconds = delay_us
            config.apply()
            actual, _ = record_load(remote_server, model, REQUESTS, rate=rate)
        measured = actual.summary()
        # Other work of the machine changes the execution times between the runs: then with those of the second run.
        for service in (None, actual.service().function):
            what_if = recording.what_if(service=service, max_queue_delay_microseconds=delay_us)
            predicted = what_if.after.summary()
            pairs = [(predicted[name], measured[name]) for name in ("mean_batch_size", "latency_p50_ms")]
            attempts.append(pairs)
            print(f"\n{model}, {delay_us} µs: (predicted, measured) mean batch size and p50 in ms: {pairs}")
            if all(first == pytest.approx(second, rel=0.15) for first, second in pairs):
                return
    pytest.fail(f"no prediction was within 15 %: {attempts}")


@pytest.mark.slow
def test_rows_are_read_from_traced_tensors(remote_server: ServerProcess) -> None:
    with tnb.connect(remote_server.grpc) as remote, remote.record("two", rows=True) as recording:
        send(remote_server.grpc, "two", 200, clients=6, rows=3)
    assert {request.size for request in recording.requests} == {1, 2, 3}
    assert recording.source is not None
    assert not any("rows" in note for note in recording.source.notes)
    assert max(recording.batch_sizes()) <= 8


@pytest.mark.parametrize(
    ("sizes", "rows", "note"),
    [
        ([1] * 6, {1}, ""),
        ([3] * 6, {3}, "each request has 3 rows, because the server counted 18 in 6 requests"),
        ([1, 3] * 3, {1}, r"the rows of each are not known (the server counted 12 in 6 requests)"),
    ],
)
def test_rows_are_read_from_statistics_if_all_requests_have_equal_numbers(
    remote_server: ServerProcess, sizes: list[int], rows: set[int], note: str
) -> None:
    with tnb.connect(remote_server.http) as remote, remote.record("one") as recording:
        for size in sizes:
            remote["one"](X=[[1.0]] * size)
    assert recording.source is not None
    notes = [text for text in recording.source.notes if "rows" in text]
    assert {request.size for request in recording.requests} == rows
    assert [note in text for text in notes] == [True] * bool(note)


def test_contents_of_tensors_are_written_only_if_rows_are_asked_for(remote_server: ServerProcess) -> None:
    files = remote_server.trace_file.parent
    for rows, is_written in ((False, False), (True, True)):
        before = set(files.glob(f"{remote_server.trace_file.name}*"))
        with tnb.connect(remote_server.http) as remote, remote.record("one", rows=rows) as recording:
            remote["one"](X=[[1.0], [2.0]])
        assert recording.source is not None
        assert any("the server counted" in note for note in recording.source.notes) != rows
        new = set(files.glob(f"{remote_server.trace_file.name}*")) - before
        assert any("tensor" in path.read_text() for path in new) == is_written


# --- files ----------------------------------------------------------------------------------------


def test_trace_file_is_read_as_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries(100)))
    recording = tnb.Recording.from_trace(path, CONFIG)
    assert (len(recording.requests), recording.agreement.share) == (100, 1.0)
    assert recording.instances == ["m_0_0"]
    recording.plot.timeline()
    recording.to_perfetto(tmp_path / "perfetto.json")
    recording.save(tmp_path / "recording")
    assert repr(tnb.Recording.load(tmp_path / "recording")) == repr(recording)
    assert "count" in repr(recording.what_if(count=2))


def test_late_start_of_an_instance_is_not_a_late_decision(tmp_path: Path) -> None:
    """On a busy machine; this project's server records when the scheduler sent a batch."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries(100, late_ns=9_000_000)))
    assert tnb.Recording.from_trace(path, CONFIG, trace_rate=1).agreement.share < 1
    path.write_text(json.dumps(entries(100, late_ns=9_000_000, sent=True)))
    recording = tnb.Recording.from_trace(path, CONFIG, trace_rate=1)
    assert recording.agreement.share == 1
    assert {batch.exec_start_ns - batch.sent_ns for batch in recording.batches} == {9_000_000}


def test_series_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    whole = entries(100)
    for number in range(12):
        part = whole[number * len(whole) // 12 : (number + 1) * len(whole) // 12]
        (tmp_path / f"trace.json.{number}").write_text(json.dumps(part))
    series = tnb.Recording.from_trace(tmp_path / "trace.json", CONFIG)
    assert ids_of_batches(series) == ids_of_batches(tnb.Recording.from_trace(list(tmp_path.glob("*.json.*")), CONFIG))
    assert len(series.requests) == 100


def test_file_that_was_cut_off_has_the_requests_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps(entries(100))
    path.write_text(text[: len(text) // 2])
    recording = tnb.Recording.from_trace(path, CONFIG)
    assert 45 <= len(recording.requests) <= 50
    assert any("cut off after" in note for note in recording.source.notes)


def test_sampled_trace_is_recognised_and_complete_analyses_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries(2000, every=10)))
    recording = tnb.Recording.from_trace(path, CONFIG)
    assert "sampled" in recording.source.sampled
    recording.plot.latency()
    for refused in (
        *(recording.batch_sizes, recording.arrivals, recording.diagnoses, recording.what_if, recording.view),
        *(recording.plot, recording.plot.timeline, recording.plot.batch_sizes, lambda: tnb.theory(recording)),
    ):
        with pytest.raises(tnb.TritonError, match="expected a recording of every request, got a sample"):
            refused()
    assert repr(recording).startswith("Sample of 200 traced requests")
    assert "1 of 10" in tnb.Recording.from_trace(path, CONFIG, trace_rate=10).source.sampled


def test_replay_of_another_configuration_has_low_agreement(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries(200)))
    for other in ("max_batch_size: 4 dynamic_batching { }", "max_batch_size: 8"):
        agreement = tnb.Recording.from_trace(path, other).agreement
        assert agreement.share < 0.5
        assert agreement.difference


@pytest.mark.parametrize("grown", [4, 0], ids=["batcher first", "instance first"])
def test_end_of_an_execution_lets_a_waiting_batch_grow_or_closes_it(tmp_path: Path, grown: int) -> None:
    """Triton's batcher and instance wake at the same time, here at 20 ms; the trace shows which of them was first."""
    later = [6 + 0.1 * n for n in range(6)]  # too few to wake the batcher
    batches: list[tuple[list[float], float, float]] = [
        ([0.0], 0.55, 20),
        ([0.6], 1.15, 4),
        ([2 + 0.01 * n for n in range(8)], 4.05, 24),
        ([2.1 + 0.01 * n for n in range(8)], 20.05, 40),
        ([3, 3.1, 3.2, 3.3, *later[:grown]], 24.05, 44),  # formed at 4 ms
        (later[grown:], 40.05, 60),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(traced(batches)))
    config = CONFIG.replace("{ }", "{ max_queue_delay_microseconds: 500 }", 1).replace("count: 1", "count: 2")
    agreement = tnb.Recording.from_trace(path, config, trace_rate=1).agreement
    assert (agreement.identical, agreement.batches) == (6, 6), agreement


def _at(begin_ms: float, count: int) -> list[float]:
    return [begin_ms + 0.01 * number for number in range(count)]


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(
            [
                ([19.9, 20.5, 21.47, 21.49, 23.3, 24.15], 29.39, 37.0),  # 4 rows, closed at 23.5 ms, and 2 rows
                ([25.58, 26.85, 27.56, 28.57, 29.17, 30.16, 30.18, 31.22], 31.65, 40.0),
            ],
            id="a batch of two payloads while later requests are queued",
        ),
        pytest.param(
            [
                ([19.9, 20.5, 21.47, 22.3], 29.39, 37.0),  # woken at 22 ms, the batcher makes its pass after 22.3 ms
                ([23.3, 23.35, *_at(23.6, 6)], 31.65, 40.0),
            ],
            id="the batcher wakes up late",
        ),
        pytest.param(
            [
                ([20.0, 21.2, 21.5, 22.1], 29.39, 37.0),  # the only pass at the end of an execution is at 22.2 ms
                ([*_at(22.3, 6), 24.0, 24.1], 31.65, 40.0),  # 6 rows are too few to wake the batcher before 23.5 ms
            ],
            id="the batcher makes one late pass",
        ),
    ],
)
def test_batches_behind_the_next_one_are_replayed(tmp_path: Path, last: list[tuple[list[float], float, float]]) -> None:
    """Instances take batches at 22 and 23.5 ms, where further ones wait."""
    first = [([0.0], 1.05, 21.96), ([1.2], 2.25, 23.49), (_at(12.8, 8), 22.0, 29.34), (_at(16.0, 8), 23.55, 31.6)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(traced([*first, *last])))
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 } instance_group { count: 2 }"
    agreement = tnb.Recording.from_trace(path, config, trace_rate=1).agreement
    assert (agreement.identical, agreement.batches) == (6, 6), agreement


def test_batcher_that_wakes_up_late_takes_what_has_come(tmp_path: Path) -> None:
    """The delay of the request at 5 ms was exceeded at 6 ms; on a busy machine, the batcher wakes up at about 8 ms."""
    batches = [([0.0], 1.05, 20.0), ([5.0, 6.5, 7.8], 20.05, 30.0), ([8.4, 9.0, 9.5], 30.05, 40.0)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(traced(batches)))
    config = CONFIG.replace("{ }", "{ max_queue_delay_microseconds: 1000 }", 1)
    agreement = tnb.Recording.from_trace(path, config, trace_rate=1).agreement
    assert (agreement.identical, agreement.batches) == (3, 3), agreement


def test_batch_that_overtakes_another_is_the_only_difference(tmp_path: Path) -> None:
    """Triton had given the first of two requests to an instance that was busy, and the second to an idle one."""
    path = tmp_path / "trace.json"
    regular = [([20.0 * n], 20.0 * n + 0.05, 20.0 * n + 4) for n in range(100)]
    overtaken = [([1005.0], 1005.1, 1014.3), ([1006.46], 1006.56, 1009.0), ([1006.27], 1014.4, 1018.0)]
    path.write_text(json.dumps(traced([*regular[:51], *overtaken, *regular[51:]])))
    recording = tnb.Recording.from_trace(path, CONFIG.replace("count: 1", "count: 2"), trace_rate=1)
    assert recording.agreement.batches - recording.agreement.identical == 1
    assert [batch.number for batch in recording.batches if batch.reason.rule == "unknown"] == [54]
    assert "max_queue_delay or more rows" not in recording.agreement.difference


def test_batches_under_another_configuration_are_named_and_do_not_affect_the_others(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    phases = [(10, [0.0]), (400, [0.0, 6.0]), (800, [0.0])]  # in the second one, requests wait for others
    batches = [
        ([begin + 8.0 * n + at for at in queued], begin + 8.0 * n + queued[-1] + 0.1, begin + 8.0 * n + 7)
        for begin, queued in phases
        for n in range(40)
    ]
    path.write_text(json.dumps(traced(batches)))
    recording = tnb.Recording.from_trace(path, CONFIG, trace_rate=1)
    reasons = [batch.reason.rule for batch in recording.batches]
    assert [rule == "unknown" for rule in reasons] == [False] * 40 + [True] * 40 + [False] * 40
    [note] = [text for text in recording.source.notes if "another configuration" in text]
    assert note.startswith("model 'm': batches 41 to 80 (396 to 708 ms) were sent under another configuration")


def test_requests_of_ensembles_and_of_bls_are_linked(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    ensemble = {"REQUEST_START": 1, "QUEUE_START": 2, "REQUEST_END": 90}
    path.write_text(
        json.dumps(
            [
                *request(3, 1, "second", executed(50)),
                *request(2, 1, "first", executed(10)),
                *request(1, 0, "pipeline", ensemble),
                *request(4, 0, "caller", executed(200) | {"COMPUTE_END": 290, "REQUEST_END": 291}),
                *request(5, 4, "first", executed(220)),
            ]
        )
    )
    recording = tnb.Recording.from_trace(path)
    serials = {(record.model, record.received_ns): record.serial for record in recording.requests}
    pipeline, caller = recording.ensemble_requests
    assert (pipeline.model, pipeline.received_ns, pipeline.ended_ns) == ("pipeline", 1, 90)
    assert [step.serial for step in pipeline.steps] == [serials["first", 10], serials["second", 50]]
    assert (caller.model, [step.serial for step in caller.steps]) == ("caller", [serials["first", 220]])
    assert {batch.model for batch in recording.batches} == {"first", "second", "caller"}
    recording.plot.steps()
    assert recording.plot.alt("steps").startswith("Steps over 0.3 µs: 2 requests of pipeline and caller")


def test_requests_that_were_not_executed_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    refused = {"REQUEST_START": 1, "QUEUE_START": 2, "REQUEST_END": 90}
    path.write_text(json.dumps([*request(1, 0, "m", executed(10)), *request(2, 0, "m", refused)]))
    recording = tnb.Recording.from_trace(path, "dynamic_batching { } max_batch_size: 4")
    assert [refusal.message for refusal in recording.refused] == ["not executed; the trace does not contain the reason"]
    assert len(recording.requests) == 1


@pytest.mark.parametrize(
    ("identical", "batches", "percent"),
    [(790, 792, "99.7%"), (792, 792, "100%"), (99999, 100000, "99.9%"), (1, 9, "11.1%")],
)
def test_agreement_is_100_percent_only_if_all_batches_are_the_same(identical: int, batches: int, percent: str) -> None:
    assert f"({percent})" in str(Agreement(batches, identical))
