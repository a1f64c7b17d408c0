"""Agreement of all that reads the events: live view, debugger, figures, statistics, latencies and dashboard."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from hypothesis import HealthCheck, given

from tests.lab.analysis.test_verdicts import recordings
from tests.laws import law
from tritonnb.core.packed_events import pack
from tritonnb.notebook.activity import Activity
from tritonnb.notebook.batch_tracker import BatchTracker
from tritonnb.notebook.interval_counters import Counters
from tritonnb.recording.recording import Recording
from tritonnb.recording.waits import queue_depth, waits_of
from tritonnb.telemetry.latencies import HistogramSettings, Latencies
from tritonnb.telemetry.statistics import ModelStatistics

MODEL = "simulated"
#: More seconds than a recording lasts.
MANY = 1000
every_scheduler = law(150, suppress_health_check=list(HealthCheck))


def tracker_of(recording: Recording) -> BatchTracker:
    return BatchTracker(MODEL, recording.configs[MODEL], 0, 0, False, lambda: Counters(0, 1_000_000))


@every_scheduler
@given(recordings())
def test_live_view_debugger_and_figures_see_the_same_queue_and_busy_instances(recording: Recording) -> None:
    tracker, debugger = tracker_of(recording), recording.debug()
    times, depths = queue_depth(waits_of(recording))
    for event, following in pairwise([*recording.events, None]):
        assert event is not None
        tracker.fold([pack(event)])
        shown = debugger.events[debugger.position :]
        if shown and shown[0] is event:  # the debugger leaves out events that say nothing about the queue
            debugger.step()
        if following is not None and following.time_ns == event.time_ns:
            continue
        state = debugger.state
        changes = tracker.take_changes(event.time_ns)
        assert state.quantities["queue"] == changes.depth
        assert state.quantities["busy"] == len(changes.running)
        assert changes.depth == [0, *depths][bisect_right(times, event.time_ns)]


@every_scheduler
@given(recordings())
def test_statistics_latencies_dashboard_and_recording_have_the_same_sums(recording: Recording) -> None:
    tracker, statistics = tracker_of(recording), ModelStatistics(MODEL, 1)
    latencies = Latencies(lambda model, version: HistogramSettings())
    activity = Activity(begin_ns=recording.events[0].time_ns)
    activity.fold(map(pack, recording.events))
    for event in recording.events:
        tracker.fold([pack(event)])
        statistics.fold(event)
        latencies.fold(pack(event))
    counts, intervals = tracker.counts, activity.last(MODEL, MANY, MANY)
    requests, batches = recording.requests, recording.batches
    total_ns = sum(request.latency_ns for request in requests)
    assert statistics.success.ns == sum(sum(interval.latencies_ns) for interval in intervals) == total_ns
    assert statistics.queue.ns == sum(interval.queue_ns for interval in intervals)
    assert statistics.queue.ns == sum(request.queue_ns for request in requests)
    assert latencies.for_model(MODEL, 1).summaries["request"].sum == sum(one.latency_ns // 1000 for one in requests)
    assert statistics.success.count == sum(interval.requests for interval in intervals) == len(requests)
    assert statistics.execution_count == counts.batches == len(batches)
    assert sum(interval.batches for interval in intervals) == len(batches)
    assert sum(interval.busy_ns for interval in intervals) == sum(batch.compute_ns for batch in batches)
    assert counts.rows == sum(batch.size for batch in batches)
    refused = recording.refused
    invalid = {refusal.serial for refusal in refused} - recording.arrived.keys()
    assert counts.refused == sum(interval.refused for interval in intervals) == len(refused)
    assert sum(interval.arrived for interval in intervals) == len(recording.arrived)
    assert counts.requests == len(recording.arrived) + len(invalid)
