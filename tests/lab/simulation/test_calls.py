"""Models that call others (BLS) in virtual time: described by hand, and as recorded."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.recording.pipelines import PipelineRequest

PLAIN, BATCHING = "max_batch_size: 8", "max_batch_size: 8 dynamic_batching { }"
TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'


#: Execution times, and what models that call others do.
Services = dict[str, Any]


def ensemble(first: str, second: str, max_batch_size: int = 8) -> str:
    return f"""platform: "ensemble" max_batch_size: {max_batch_size} {TENSORS} ensemble_scheduling {{
        step {{ model_name: "{first}" input_map {{ key: "I" value: "X" }} output_map {{ key: "O" value: "t" }} }}
        step {{ model_name: "{second}" input_map {{ key: "I" value: "t" }} output_map {{ key: "O" value: "Y" }} }}
    }}"""


def spans_ms(request: PipelineRequest) -> list[tuple[str, float, float]]:
    return [
        (step.model, (step.received_ns - request.received_ns) / 1e6, (step.ended_ns - request.received_ns) / 1e6)
        for step in request.steps
    ]


@pytest.mark.parametrize(
    ("calls", "spans", "latency_ms"),
    [
        (["net"], [("net", 1, 11)], 14),
        (["net", "post"], [("net", 1, 11), ("post", 13, 18)], 21),
        ([("net", 2)], [("net", 1, 11), ("net", 13, 23)], 26),
        ([["net", "post"]], [("net", 1, 11), ("post", 1, 6)], 14),
        ([["post", "net"], "post"], [("post", 1, 6), ("net", 1, 11), ("post", 13, 18)], 21),
        (["both"], [("both", 1, 16)], 19),
        (["inner"], [("inner", 1, 11)], 14),
        ([("net", 0), "post"], [("post", 1, 6)], 9),
    ],
)
def test_calls_follow_each_other_unless_they_are_made_together(calls: Any, spans: Any, latency_ms: float) -> None:
    models = {"caller": PLAIN, "net": PLAIN, "post": PLAIN, "both": ensemble("net", "post"), "inner": PLAIN}
    services: Services = {
        "caller": tnb.calling(calls, before_ms=1, between_ms=2, after_ms=3),
        "inner": tnb.calling(["net"]),
        "net": tnb.fixed(10),
        "post": tnb.fixed(5),
    }
    rec = tnb.simulate(models, [(0, 1)], services, model="caller")
    [request] = rec.pipelines["caller"].requests
    assert spans_ms(request) == spans
    assert request.latency_ns / 1e6 == latency_ms
    assert tnb.simulate(models, [(0, 1)], services, model="caller", keep="summary")["latency_p50_ms"] == latency_ms


def test_instance_is_busy_while_it_waits_for_its_calls() -> None:
    models = {"caller": PLAIN, "net": f"{BATCHING} instance_group {{ count: 2 }}"}
    services: Services = {"caller": tnb.calling(["net"]), "net": tnb.fixed(10)}
    rec = tnb.simulate(models, [(0, 1)] * 3, services)
    assert [request.latency_ns // 10**6 for request in rec.pipelines["caller"].requests] == [10, 20, 30]
    assert max(request.concurrency for request in rec.pipelines["caller"].requests) == 1
    models["caller"] += " instance_group { count: 3 }"
    assert tnb.simulate(models, [(0, 1)] * 3, services, keep="summary")["latency_p99_ms"] <= 20


@pytest.mark.parametrize(("per_request", "rows"), [(True, [2, 3]), (False, [5])])
def test_batch_calls_for_each_request_or_once(per_request: bool, rows: list[int]) -> None:
    models = {"caller": BATCHING, "net": PLAIN}
    services: Services = {"caller": tnb.calling(["net"], per_request=per_request), "net": tnb.fixed(1)}
    rec = tnb.simulate(models, [(0, 8), (1, 2), (2, 3)], services)
    assert sorted(batch.size for batch in rec.batches if batch.model == "net") == [*rows, 8]
    assert [len(request.steps) for request in rec.pipelines["caller"].requests] == [1, len(rows), len(rows)]


def test_number_of_calls_is_drawn() -> None:
    models = {"caller": PLAIN, "net": PLAIN}
    services: Services = {"caller": tnb.calling([tnb.Call("net", count=(0, 2, 5), rows=3)]), "net": tnb.fixed(1)}
    arrivals = tnb.constant(10, 30)
    rec = tnb.simulate(models, arrivals, services)
    calls = Counter(len(request.steps) for request in rec.pipelines["caller"].requests)
    assert calls.keys() == {2, 5}
    assert 160 < sum(calls.values()) < 240  # of 300: a third makes no call, and is no request of the pipeline
    assert {request.size for request in rec.requests if request.model == "net"} == {3}
    assert tnb.simulate(models, arrivals, services, seed=1, keep="summary") != tnb.simulate(
        models, arrivals, services, keep="summary"
    )


def test_failed_call_counts_as_answered() -> None:
    full = f"{PLAIN} dynamic_batching {{ default_queue_policy {{ max_queue_size: 1 }} }}"
    models = {"caller": PLAIN, "net": full}
    services: Services = {"caller": tnb.calling([[("net", 8)]]), "net": tnb.fixed(10)}
    rec = tnb.simulate(models, [(0, 1)], services)
    [request] = rec.pipelines["caller"].requests
    assert {bool(step.failed) for step in request.steps} == {True, False}
    assert request.complete
    assert not request.failed


entries: st.SearchStrategy[Any] = st.sampled_from(
    ["net", ("net", 2), ["net", "post"], [("post", 3)], "both", tnb.Call("net", (0, 1, 2), 2)]
)


@st.composite
def recordings(draw: st.DrawFn) -> tnb.Recording:
    """A caller of models and an ensemble, or an ensemble with the caller as a step, under random traffic."""
    configs = st.sampled_from([PLAIN, BATCHING, f"{BATCHING} instance_group {{ count: 2 }}"])
    models = {name: draw(configs) for name in ("caller", "net", "post")}
    models |= {"both": ensemble("net", "post"), "outer": ensemble("post", "caller")}
    times = st.floats(0.01, 5)
    caller = tnb.calling(
        draw(st.lists(entries, min_size=1, max_size=4)),
        before_ms=draw(times),
        between_ms=draw(times),
        after_ms=draw(times),
        per_request=draw(st.booleans()),
    )
    services: Services = {"caller": caller, "net": tnb.linear(1, draw(times)), "post": tnb.fixed(draw(times))}
    rng = random.Random(draw(st.integers(0, 99)))
    arrivals = sorted((rng.uniform(0, 200_000), rng.randint(1, 2)) for _ in range(20))
    return tnb.simulate(models, arrivals, services, model=draw(st.sampled_from(["caller", "outer"])))


@given(recordings())
def test_every_call_ends_within_the_execution_that_made_it(rec: tnb.Recording) -> None:
    [pipeline] = rec.pipelines.values()
    for root in pipeline.requests:
        for one in root.walk():
            assert one.complete
            for step in one.steps:
                if step.kind == "call":
                    assert one.record is not None
                    assert one.record.exec_start_ns <= step.received_ns <= step.ended_ns <= one.record.exec_end_ns
        blame = rec.blame(root)
        assert sum(blame.steps.values()) == root.latency_ns


@given(recordings())
def test_recorded_calls_reproduce_the_recording(rec: tnb.Recording) -> None:
    assert trees(rec.what_if({}).before) == trees(rec)


def trees(rec: tnb.Recording) -> list[Any]:
    [pipeline] = rec.pipelines.values()
    begin_ns = min(root.received_ns for root in pipeline.requests)
    roots = sorted(pipeline.requests, key=lambda root: root.serial)
    return [[(one.model, one.received_ns - begin_ns, one.ended_ns - begin_ns) for one in root.walk()] for root in roots]


def test_rows_of_each_step_are_those_of_the_request() -> None:
    """The lines of text in an image: a step of an ensemble that does not batch has rows of its own."""
    models = {"ocr": ensemble("crop", "read", 0), "crop": "max_batch_size: 0", "read": BATCHING}
    services: Services = {"crop": tnb.fixed(1), "read": tnb.linear(2, 1)}
    arrivals = [tnb.Arrival(ms=5 * number, step_rows={"read": 1 + number % 4}) for number in range(8)]
    rec = tnb.simulate(models, arrivals, services)
    assert [request.size for request in rec.requests if request.model == "read"] == [1, 2, 3, 4] * 2
    assert {request.size for request in rec.requests if request.model == "crop"} == {1}
    assert trees(rec.what_if({}).before) == trees(rec)
    keyed = [tnb.Arrival(0, step_rows={"read": 1}, step_keys={"read": number}) for number in range(2)]
    assert [batch.size for batch in tnb.simulate(models, keyed, services).for_model("read").batches] == [1, 1]


@pytest.mark.parametrize(
    ("caller", "text"),
    [
        (lambda: tnb.calling([]), "calling expected at least one call, got none"),
        (lambda: tnb.calling("net"), "calling expected a list of calls, such as ['net', ('net', 2)], got 'net'"),
        (lambda: tnb.calling([("net", -1)]),
         "calling expected the name of a model, or a tuple of name, number of calls, and rows, got ('net', -1)"),
        (lambda: tnb.calling(["net", cast(Any, 3)]),
         "calling expected the name of a model, or a tuple of name, number of calls, and rows, got 3"),
        (lambda: tnb.calling([("net", ())]),
         "calling expected the name of a model, or a tuple of name, number of calls, and rows, got ('net', ())"),
        (lambda: tnb.calling(["net"], before_ms=-1), "calling: before_ms expected a time in ms of at least 0, got -1"),
        (lambda: tnb.calling(["net"], after_ms=cast(Any, "1")),
         "calling: after_ms expected a time in ms of at least 0, got '1'"),
        (lambda: tnb.calling(["other"]),
         "model 'caller': simulation expected the configuration of its step 'other', got none"),
        (lambda: tnb.calling(["caller"]),
         "circular dependency between models that call others: caller -> ... -> caller -> caller"),
        (lambda: tnb.calling([("net", 1, 9)]), "inference request batch-size must be <= 8 for 'net', got 9"),
    ],
)  # fmt: skip
def test_mistake_is_named(caller: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        tnb.simulate(
            {"caller": PLAIN, "net": PLAIN}, [(0, 1)], {"caller": caller(), "net": tnb.fixed(1)}, model="caller"
        )
    assert str(refusal.value) == text


def test_single_configuration_of_a_caller_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="expected the configuration of its step 'net', got none"):
        tnb.simulate(PLAIN, [(0, 1)], tnb.calling(["net"]))
