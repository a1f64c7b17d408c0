"""Changing how many instances a model has, and how it is scheduled, while it runs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tritonnb as tnb
from tests.server.conftest import python_model
from tritonnb.scheduling.resources import Resource
from tritonnb.server.server import Server

STATE = """
sequence_batching {
  direct { }
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
}
"""


def instance_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("tritonnb m_"))


def set_count(server: Server, count: int) -> str:
    config = server["m"].config
    config.instance_group[0].count = count
    return config.apply()


def ended(server: Server, instances: list[str]) -> None:
    """Wait until only these instances have threads."""
    for thread in threading.enumerate():
        if thread.name.startswith("tritonnb m_") and thread.name.removeprefix("tritonnb ") not in instances:
            thread.join(60)
    assert instance_threads() == [f"tritonnb {instance}" for instance in instances]


def test_instances_are_added_and_removed_without_loading_the_model_again(write_model: Callable[..., Path]) -> None:
    loads = 'import os\nos.environ["LOADS"] = str(int(os.environ.get("LOADS", 0)) + 1)\n'
    repository = write_model(
        "m", loads + python_model("x + 1"), "dynamic_batching { } instance_group { count: 1 kind: KIND_CPU }"
    )
    with Server(repository, port=0) as server:
        assert set_count(server, 3) == "in place"
        assert instance_threads() == ["tritonnb m_0_0", "tritonnb m_0_1", "tritonnb m_0_2"]
        assert set_count(server, 1) == "in place"
        ended(server, ["m_0_0"])
        assert server["m"](X=[[1.0]])["Y"].tolist() == [[2.0]]
        assert server["m"].stats()["execution_count"] == 1
        assert set_count(server, 2) == "in place"
        assert server["m"](X=[[1.0]])["Y"].tolist() == [[2.0]]


def test_more_instances_run_more_batches_in_parallel() -> None:
    together = threading.Barrier(2)
    with Server(port=0) as server:

        @server.model(name="m", max_batch_size=1, instance_group=[{"count": 1, "kind": "KIND_CPU"}])
        def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
            together.wait(60)
            return X

        async def ask() -> None:
            waiting = [asyncio.ensure_future(server["m"].infer_async(X=[[1.0]])) for _ in range(2)]
            await asyncio.get_running_loop().run_in_executor(None, set_count, server, 2)
            await asyncio.gather(*waiting)

        asyncio.run(ask())


def test_no_request_is_lost_while_instances_are_added_and_removed(write_model: Callable[..., Path]) -> None:
    repository = write_model(
        "m", python_model("x + 1"), "dynamic_batching { } instance_group { count: 1 kind: KIND_CPU }"
    )
    with Server(repository, port=0) as server:

        async def ask_while(change: Callable[[], None]) -> None:
            changing = asyncio.get_running_loop().run_in_executor(None, change)
            while not changing.done():
                answers = await asyncio.gather(*(server["m"].infer_async(X=[[float(n)]]) for n in range(20)))
                assert [answer["Y"].item() for answer in answers] == [n + 1 for n in range(20)]
            await changing

        def change() -> None:
            for count in (4, 1, 3, 2, 1):
                assert set_count(server, count) == "in place"

        asyncio.run(ask_while(change))
        ended(server, ["m_0_0"])


def test_batch_delayed_by_the_rate_limiter_runs_on_its_removed_instance() -> None:
    running, gate = threading.Semaphore(0), threading.Event()
    group = {"count": 2, "kind": "KIND_CPU", "rate_limiter": {"resources": [{"name": "R", "count": 1}]}}
    with Server(port=0, rate_limit="execution_count", rate_limit_resources=[Resource("R", 1)]) as server:

        @server.model(name="m", max_batch_size=1, instance_group=[group])
        def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
            running.release()
            gate.wait(60)
            return X

        async def ask() -> None:
            waiting = [asyncio.ensure_future(server["m"].infer_async(X=[[1.0]])) for _ in range(2)]
            await asyncio.get_running_loop().run_in_executor(None, running.acquire)
            assert await asyncio.get_running_loop().run_in_executor(None, set_count, server, 1) == "in place"
            gate.set()
            await asyncio.gather(*waiting)

        asyncio.run(ask())


def test_removed_instance_stays_until_its_sequences_have_ended(write_model: Callable[..., Path]) -> None:
    total = python_model("x").replace(
        "answers = []",
        'answers = []\n        self.total = getattr(self, "total", {})',
    )
    total = total.replace(
        'pb_utils.Tensor("Y", x)',
        'pb_utils.Tensor("Y", self.add(request, x))',
    )
    total += """
    def add(self, request, x):
        start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()
        key = request.correlation_id()
        self.total[key] = x if start.any() else self.total[key] + x
        return self.total[key]
"""
    config = STATE + "instance_group { count: 2 kind: KIND_CPU }"
    repository = write_model("m", total, config)
    (repository / "m" / "config.pbtxt").write_text(
        (repository / "m" / "config.pbtxt").read_text().replace("max_batch_size: 8", "max_batch_size: 1")
    )
    with Server(repository, port=0) as server:
        model = server["m"]
        for name in (1, 2):
            model(X=[[1.0]], sequence_id=name, sequence_start=True)
        assert set_count(server, 1) == "in place"
        assert len(instance_threads()) == 2
        for name in (1, 2):
            assert model(X=[[1.0]], sequence_id=name)["Y"].tolist() == [[2.0]]
        for name in (1, 2):
            assert model(X=[[1.0]], sequence_id=name, sequence_end=True)["Y"].tolist() == [[3.0]]
        ended(server, ["m_0_0"])
        assert model(X=[[5.0]], sequence_id=3, sequence_start=True, sequence_end=True)["Y"].tolist() == [[5.0]]


def test_idle_time_of_sequences_is_changed_in_place(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", python_model("x"), STATE)
    with Server(repository, port=0) as server:
        server["m"](X=[[1.0]], sequence_id=1, sequence_start=True)
        config = server["m"].config
        config.sequence_batching.max_sequence_idle_microseconds = 5_000_000
        assert config.apply() == "in place"
        server["m"](X=[[1.0]], sequence_id=1, sequence_end=True)


def test_dynamic_batcher_is_added_changed_and_removed_without_reloading(
    write_model: Callable[..., Path],
) -> None:
    repository = write_model("m", python_model("x + 1"), "instance_group { count: 2 kind: KIND_CPU }")
    batchers = (
        "dynamic_batching { }",
        "dynamic_batching { max_queue_delay_microseconds: 500 preferred_batch_size: 4 }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 }",
        "dynamic_batching { default_queue_policy { max_queue_size: 500 } }",
        "",
    )
    with Server(repository, port=0) as server:
        served = server["m"].served
        written = (repository / "m" / "config.pbtxt").read_text()

        def change() -> None:
            for text in batchers * 3:
                config = server["m"].config
                config.text = written + text
                assert config.apply() in ("in place", "unchanged")

        async def ask() -> None:
            changing = asyncio.get_running_loop().run_in_executor(None, change)
            while not changing.done():
                answers = await asyncio.gather(*(server["m"].infer_async(X=[[float(n)]]) for n in range(20)))
                assert [answer["Y"].item() for answer in answers] == [n + 1 for n in range(20)]
            await changing

        asyncio.run(ask())
        assert server["m"].served is served
        assert server["m"].stats()["inference_stats"]["fail"]["count"] == 0


def test_sequences_continue_while_their_strategy_changes(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", python_model("x + 1"), STATE + "instance_group { count: 1 kind: KIND_CPU }")
    written = (repository / "m" / "config.pbtxt").read_text()
    strategies = ("oldest { max_candidate_sequences: 3 }", "oldest { max_candidate_sequences: 6 }", "direct { }")
    with Server(repository, port=0) as server:
        served = server["m"].served

        async def talk(sequence: int) -> None:
            for step in range(5):
                answer = await server["m"].infer_async(
                    X=[[float(step)]], sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 4
                )
                assert answer["Y"].item() == step + 1

        def change() -> None:
            for strategy in strategies * 3:
                config = server["m"].config
                config.text = written.replace("direct { }", strategy)
                assert config.apply() == "in place"

        async def ask() -> None:
            changing = asyncio.get_running_loop().run_in_executor(None, change)
            first = 1
            while not changing.done():
                await asyncio.gather(*(talk(first + n) for n in range(12)))
                first += 12
            await changing

        asyncio.run(ask())
        assert server["m"].served is served
        assert server["m"].stats()["inference_stats"]["fail"]["count"] == 0


ASKS = """
    @staticmethod
    def auto_complete_config(config):
        if {condition}:
            config.set_dynamic_batching()
        return config
"""


def without_batcher(server: Server) -> str:
    config = server["m"].config
    config.ClearField("dynamic_batching")
    return config.apply()


def test_removed_batcher_stays_removed_after_a_reload(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", python_model("x"), "dynamic_batching { }")
    with Server(repository, port=0, model_control_mode="explicit", load_models=["m"]) as server:
        assert without_batcher(server) == "in place"
        file = repository / "m" / "config.pbtxt"
        file.write_text(file.read_text().replace("dynamic_batching { }", ""))
        server.load("m", force=True)
        assert not server["m"].config.HasField("dynamic_batching")
        assert without_batcher(server) == "unchanged"


def test_batcher_that_the_model_auto_completes_cannot_be_removed(write_model: Callable[..., Path]) -> None:
    model = python_model("x") + ASKS.format(condition="True")
    for fields in ("dynamic_batching { }", ""):
        with Server(write_model("m", model, fields), port=0) as server:
            assert without_batcher(server) == "unchanged"
            assert server["m"].config.HasField("dynamic_batching")


def test_auto_completed_batcher_can_be_removed_unless_the_model_enables_it(
    write_model: Callable[..., Path],
) -> None:
    model = python_model("x") + ASKS.format(condition='config.as_dict()["instance_group"][0]["count"] == 1')
    with Server(write_model("m", model, ""), port=0) as server:
        config = server["m"].config
        assert config.HasField("dynamic_batching")
        config.ClearField("dynamic_batching")
        config.instance_group[0].count = 2
        assert config.apply() == "in place"
        assert not server["m"].config.HasField("dynamic_batching")
        config.instance_group[0].count = 1
        assert config.apply() == "in place"
        assert server["m"].config.HasField("dynamic_batching")


TOGETHER = """
import os, threading

class TritonPythonModel:
    def initialize(self, args):
        self.append("(", ")")

    def execute(self, requests):
        pass

    def finalize(self):
        self.append("[", "]")

    def append(self, begin, end):
        os.environ["CALLS"] += begin
        threading.Event().wait(0.05)  # long enough for another call to begin, if it may
        os.environ["CALLS"] += end
"""


def test_instances_of_a_python_model_start_and_end_one_after_the_other(
    write_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLS", "")
    with Server(write_model("m", TOGETHER, "instance_group { count: 5 kind: KIND_CPU }"), port=0) as server:
        assert list(server) == ["m"]
        assert os.environ["CALLS"] == "()()()()()"
        assert set_count(server, 2) == "in place"
        ended(server, ["m_0_0", "m_0_1"])
    assert os.environ["CALLS"] == "()()()()()" + "[]" * 5
