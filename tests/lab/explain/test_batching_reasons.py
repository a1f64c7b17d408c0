"""What `explain` says about batches that are not full, against the reasons for which simulated batches were sent."""

from __future__ import annotations

from collections import Counter

from google.protobuf import text_format
from hypothesis import assume, given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.laws import law
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.explain.batches import batching
from tritonnb.lab.explain.figures import Figures

#: What is said, and the rules by which batches are then sent.
CLAIMS = {
    "max_queue_delay (": {"delay_exceeded", "grown"},
    "sends batches earlier": {"preferred_size", "overshoots_preferred"},
}


@law(40)
@given(
    most=st.sampled_from([4, 8, 16, 32]),
    preferred=st.sets(st.integers(2, 32), max_size=2),
    delay_us=st.sampled_from([0, 1000, 5000, 20_000]),
    count=st.integers(1, 3),
    compute_ms=st.sampled_from([1, 5, 10]),
    load=st.floats(0.1, 3),
    seed=st.integers(0, 2**32),
)
def test_claimed_rule_sends_many_of_the_batches(
    most: int, preferred: set[int], delay_us: int, count: int, compute_ms: int, load: float, seed: int
) -> None:
    sizes = sorted(size for size in preferred if size <= most)
    config = f"""name: "m" max_batch_size: {most} instance_group {{ count: {count} kind: KIND_CPU }}
        dynamic_batching {{ preferred_batch_size: {sizes} max_queue_delay_microseconds: {delay_us} }}"""
    arrivals = tnb.poisson(load * count / compute_ms * 1e3, 0.5, seed=seed)
    assume(len(arrivals) >= 100)
    recording = tnb.simulate(config, arrivals, service=tnb.fixed(compute_ms))
    queued = [request.queue_ns for request in recording.requests if request.queue_ns is not None]
    seconds = (recording.batches[-1].exec_end_ns - recording.first_arrival_ns) / 1e9
    figures = Figures(
        "simulated",
        requests=len(queued),
        executions=len(recording.batches),
        rate=len(queued) / seconds,
        queue_ms=sum(queued) / len(queued) / 1e6,
        infer_ms=compute_ms,
    )
    said = batching(figures, text_format.Parse(config, pb.ModelConfig()))
    rules = Counter(batch.reason.rule for batch in recording.batches)
    for claim, claimed in CLAIMS.items():
        if claim in said and "do not tell" not in said:
            assert sum(rules[rule] for rule in claimed) >= 0.2 * len(recording.batches), (said, rules)
