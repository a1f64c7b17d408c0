"""Objects that the models of a server share: the response cache and the rate limiter's resources."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient

import tritonnb as tnb
from tests.server.conftest import python_model
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.scheduling.resources import Resource
from tritonnb.server.server import Server
from tritonnb.telemetry.statistics_entry import StatisticsEntry

Write = Callable[..., Path]
CACHED = "response_cache { enable: true }"
CACHE = {"local": {"size": "1000000"}}
COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        self.count += 1
        answers = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            if (x < 0).any():
                error = pb_utils.TritonError("negative", pb_utils.TritonError.INVALID_ARG)
                answers.append(pb_utils.InferenceResponse(error=error))
            else:
                y = np.full(x.shape, self.count, np.float32)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
        return answers
"""


def ask(server: Server, *rows: float, model: str = "m", **options: Any) -> list[float]:
    return server[model](X=np.array(rows, np.float32).reshape(-1, 1), **options)["Y"].ravel().tolist()


def stats(server: Server, model: str = "m") -> tuple[StatisticsEntry, dict[str, int]]:
    (entry,) = server.stats(model)["model_stats"]
    durations: Mapping[str, Any] = entry["inference_stats"]
    return entry, {name: duration["count"] for name, duration in durations.items()}


def test_repeated_request_is_answered_from_the_cache(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config=CACHE) as server:
        assert [ask(server, 3), ask(server, 3), ask(server, 4), ask(server, 3)] == [[1], [1], [2], [1]]
        entry, counts = stats(server)
        assert (entry["inference_count"], entry["execution_count"]) == (2, 2)
        assert (counts["success"], counts["queue"], counts["compute_infer"]) == (4, 4, 2)
        assert (counts["cache_hit"], counts["cache_miss"]) == (2, 2)


def test_cached_response_is_sent_over_http(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config=CACHE) as server:
        client = httpclient.InferenceServerClient(f"127.0.0.1:{server.port}")
        x = httpclient.InferInput("X", [1, 1], "FP32")
        x.set_data_from_numpy(np.ones((1, 1), np.float32))
        answers = [client.infer("m", [x], request_id=str(number)) for number in range(2)]
        assert [answer.get_response()["id"] for answer in answers] == ["0", "1"]
        assert [answer.as_numpy("Y").item() for answer in answers] == [1.0, 1.0]
        assert stats(server)[1]["cache_hit"] == 1


def test_equal_bytes_with_another_shape_have_another_cache_key(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config=CACHE) as server:
        assert ask(server, 3, 3) == [1, 1]
        assert ask(server, 3) == [2]


def test_request_parameters_are_part_of_the_cache_key(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config=CACHE) as server:
        assert ask(server, 3) == [1]
        assert ask(server, 3, parameters={"p": 1}) == [2]


def test_ordered_model_answers_from_the_cache_only_while_nothing_runs(write_model: Write) -> None:
    calls, release = [], threading.Event()
    with Server(write_model("m", COUNTING), port=0, cache_config=CACHE) as server:
        ordered: dict[str, Any] = {"dynamic_batching": {"preserve_ordering": True}, "response_cache": {"enable": True}}

        @server.model(max_batch_size=1, **ordered)  # type: ignore[untyped-decorator]
        def slow(X: tnb.FP32[1]) -> tnb.FP32[1]:
            calls.append(float(X[0, 0]))  # type: ignore[index]
            if X[0, 0] == 2:  # type: ignore[index]
                release.wait()
            return X

        async def both() -> None:
            tasks = [asyncio.create_task(server["slow"].infer_async(X=np.array([[x]], np.float32))) for x in (2, 1)]
            await asyncio.sleep(0)
            await asyncio.to_thread(server.stats, "slow")  # both requests are there
            release.set()
            await asyncio.gather(*tasks)

        for _ in range(2):
            server["slow"](X=np.array([[1]], np.float32))
        asyncio.run(both())
    assert calls == [1, 2, 1]


def test_errors_are_not_cached(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config=CACHE) as server:
        for _ in range(2):
            with pytest.raises(TritonError, match="negative"):
                ask(server, -1)
        assert stats(server)[0]["execution_count"] == 2


def test_reloaded_model_does_not_return_cached_responses_of_the_old_one(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config=CACHE) as server:
        ask(server, 3)
        write_model("m", python_model("x * 0 + 77"), CACHED)
        server.load("m")
        assert ask(server, 3) == [77]


def test_changing_a_response_does_not_change_the_cache(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config=CACHE) as server:
        for _ in range(3):
            answer = server["m"](X=np.ones((1, 1), np.float32))["Y"]
            assert answer.item() == 1
            if answer.flags.writeable:
                answer[:] = 9


def test_least_recently_used_response_is_evicted_first(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config={"local": {"size": "120"}}) as server:
        assert [ask(server, number) for number in (1, 2, 1, 3)] == [[1], [2], [1], [3]]
        assert [ask(server, number) for number in (1, 2)] == [[1], [4]]
        assert server.engine.cache.evictions == 2
        assert server.engine.cache.used == 2 * 57


def test_response_too_large_for_the_cache_is_always_a_miss_and_is_logged(
    write_model: Write, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config={"local": {"size": "56"}}) as server:
        assert [ask(server, 1), ask(server, 1)] == [[1], [2]]
        counts = stats(server)[1]
    assert (counts["cache_hit"], counts["cache_miss"]) == (0, 2)
    assert [message.startswith("Failed to insert key [") for message in caplog.messages] == [True, True]


def test_cache_holds_only_responses_and_a_too_large_one_evicts_none(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0, cache_config={"local": {"size": "80"}}) as server:
        cache = server.engine.cache
        assert cache is not None
        assert cache.used == 0
        assert ask(server, 3) == [1]
        assert ask(server, *range(8)) == [2] * 8  # is too large
        assert len(cache) == 1
        assert ask(server, 3) == [1]


def test_ensemble_and_its_steps_are_cached(write_model: Write) -> None:
    repository = write_model("m", COUNTING, CACHED)
    (repository / "e" / "1").mkdir(parents=True)
    tensors = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
    step = 'model_name: "m" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    config = f'platform: "ensemble" max_batch_size: 8 {tensors} ensemble_scheduling {{ step {{ {step} }} }}'
    (repository / "e" / "config.pbtxt").write_text(config)
    with Server(repository, port=0, cache_config=CACHE) as server:
        assert [ask(server, 5, model="e"), ask(server, 5, model="e")] == [[1], [1]]
        assert stats(server)[1]["cache_hit"] == 1
        assert stats(server, "e")[0]["inference_count"] == 2


def test_cache_switch_without_a_cache_has_no_effect(write_model: Write) -> None:
    with Server(write_model("m", COUNTING, CACHED), port=0) as server:
        assert [ask(server, 3), ask(server, 3)] == [[1], [2]]


@pytest.mark.parametrize(
    "config", [{"redis": {}}, {"local": {}}, {"local": {"size": "many"}}, CACHE | {"redis": {"host": "h"}}]
)
def test_unknown_cache_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="cache"):
        Server(port=0, cache_config=config)


BLOCKING = """
import triton_python_backend_utils as pb_utils
import {gate} as gate

class TritonPythonModel:
    def execute(self, requests):
        gate.enter()
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
"""


class Crowd:
    """A counter of simultaneous executions; each waits until the test releases all of them."""

    def __init__(self) -> None:
        self.most = self._now = 0
        self._lock = threading.Lock()
        self.go_on = threading.Event()

    def enter(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        assert self.go_on.wait(60)
        with self._lock:
            self._now -= 1


@pytest.mark.parametrize(("limit", "most"), [("execution_count", 1), ("off", 2)])
def test_instances_that_share_a_resource_take_turns(
    write_model: Write, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    crowd = Crowd()
    monkeypatch.setitem(__import__("sys").modules, "tests_crowd", crowd)
    group = "instance_group { kind: KIND_CPU rate_limiter { resources { name: 'R' global: true count: 1 } } }"
    for name in ("one", "two"):
        repository = write_model(name, BLOCKING.format(gate="tests_crowd"), group.replace("'", '"'))
    with Server(repository, port=0, rate_limit=limit) as server:
        threads = [threading.Thread(target=ask, args=(server, 1), kwargs={"model": name}) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        while crowd.most < most:
            pass
        crowd.go_on.set()
        for thread in threads:
            thread.join()
        assert crowd.most == most


def test_cancelled_batch_that_waits_for_resources_is_not_executed_and_returns_them() -> None:
    running, gate, executed = threading.Event(), threading.Event(), []
    group = {"kind": "KIND_CPU", "rate_limiter": {"resources": [{"name": "R", "count": 1, "global": True}]}}
    with Server(port=0, rate_limit="execution_count") as server:

        @server.model(name="hog", instance_group=[group])
        def hog(X: tnb.FP32[1]) -> tnb.FP32[1]:
            running.set()
            gate.wait(60)
            return X

        @server.model(name="m", max_batch_size=4, dynamic_batching={}, instance_group=[group])
        def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
            executed.append(X.ravel().tolist())  # type: ignore[attr-defined]
            return X

        async def ask() -> None:
            first = asyncio.ensure_future(server["hog"].infer_async(X=[1.0]))
            await asyncio.to_thread(running.wait)
            waiting = asyncio.ensure_future(server["m"].infer_async(X=[[1.0]]))
            await asyncio.sleep(0)
            await asyncio.to_thread(server.call, int)  # all that was handed over is there
            waiting.cancel()
            await asyncio.wait([waiting])
            await asyncio.to_thread(server.call, int)
            gate.set()
            await first
            await asyncio.gather(*(server[name].infer_async(X=x) for name, x in (("m", [[2.0]]), ("hog", [3.0]))))

        asyncio.run(ask())
    assert executed == [[2.0]]


@pytest.mark.parametrize("batcher_goes", [False, True])
def test_batch_that_waits_for_resources_grows_even_if_the_batcher_is_removed(batcher_goes: bool) -> None:
    running, gate, sizes = threading.Event(), threading.Event(), []
    group = {"kind": "KIND_CPU", "rate_limiter": {"resources": [{"name": "R", "count": 1, "global": True}]}}
    with Server(port=0, rate_limit="execution_count") as server:

        @server.model(name="hog", instance_group=[group])
        def hog(X: tnb.FP32[1]) -> tnb.FP32[1]:
            running.set()
            gate.wait(60)
            return X

        @server.model(name="m", max_batch_size=4, dynamic_batching={}, instance_group=[group])
        def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
            sizes.append(len(X))
            return X

        async def ask() -> None:
            first = asyncio.ensure_future(server["hog"].infer_async(X=[1.0]))
            await asyncio.to_thread(running.wait)
            waiting = []
            for number in range(1, 4):
                waiting.append(asyncio.ensure_future(server["m"].infer_async(X=[[float(number)]])))
                await asyncio.sleep(0)
            await asyncio.to_thread(server.call, int)  # all that was handed over is there
            assert server["m"].served.driver.queue_depth() == 3
            if batcher_goes:
                config = server["m"].config
                config.ClearField("dynamic_batching")
                assert await asyncio.to_thread(config.apply) == "in place"
            gate.set()
            answers = [next(iter(result.values())) for result in await asyncio.gather(*waiting)]
            assert np.concatenate(answers).ravel().tolist() == [1, 2, 3]
            await first

        asyncio.run(ask())
    assert sizes == [3]


@pytest.mark.parametrize("batcher", ["", "dynamic_batching { }"])
def test_instance_with_higher_priority_number_runs_less_often_as_on_triton(write_model: Write, batcher: str) -> None:
    named = python_model("x + self.number").replace(
        "    def execute",
        """    def initialize(self, args):
        self.number = int(args["model_instance_name"].split("_")[1])

    def execute""",
    )
    group = 'instance_group {{ name: "m_{}" kind: KIND_CPU rate_limiter {{ priority: {} }} }}'
    groups = [group.format(0, 1), group.format(1, 5)]
    with Server(write_model("m", named, " ".join([*groups, batcher])), port=0, rate_limit="execution_count") as server:
        taken = "".join(str(int(ask(server, 0)[0])) for _ in range(30))
    assert taken == "000000001000001000001000001000"


def test_model_that_needs_too_many_resources_fails_to_load(write_model: Write) -> None:
    group = 'instance_group { rate_limiter { resources { name: "R" count: 2 } } }'
    repository = write_model("m", COUNTING, group)
    options: dict[str, Any] = {"rate_limit": "execution_count", "rate_limit_resources": [Resource("R", 1)]}
    with Server(repository, port=0, **options) as server:
        assert 'Resource count for "R" is limited to 1' in str(server.load_errors["m"])
    with Server(repository, port=0, rate_limit_resources=[Resource("R", 1)]) as server:
        assert ask(server, 1) == [1]


def test_failed_instances_are_removed_from_the_rate_limiter(
    write_model: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = python_model("x").replace(
        "    def execute",
        """    def initialize(self, args):
        import os
        assert args["model_version"] not in os.environ.get("TESTS_FAIL", "")

    def execute""",
    )
    group = "instance_group { kind: KIND_CPU rate_limiter { resources { name: 'R' global: %s count: 1 } } }"
    limited = {value: (group % value).replace("'", '"') for value in ("true", "false")}
    both = "version_policy { all { } }"
    repository = write_model("m", fails, both)
    shutil.copytree(repository / "m" / "1", repository / "m" / "2")
    with Server(repository, port=0, rate_limit="execution_count") as server:
        monkeypatch.setenv("TESTS_FAIL", "2")
        config = repository / "m" / "config.pbtxt"
        config.write_text(f"{config.read_text()} {limited['true']}")  # nothing else: versions are not created again
        with pytest.raises(TritonError, match="version 2 is at UNAVAILABLE state"):
            server.load("m")
        write_model("other", python_model("x"), limited["false"])
        server.load("other")
        assert ask(server, 1, model="other") == [1]


@pytest.mark.parametrize(("extra", "cache", "warned"), [(CACHED, {}, True), (CACHED, CACHE, False), ("", {}, False)])
def test_response_cache_without_a_cache_has_a_warning(
    write_model: Callable[..., Path], caplog: pytest.LogCaptureFixture, extra: str, cache: Any, warned: bool
) -> None:
    with Server(write_model("m", COUNTING, extra), port=0, cache_config=cache):
        pass
    text = (
        "model 'm': response_cache has no effect, since the server has no cache: add --cache-config=local,size=BYTES "
        "(cache_config={'local': {'size': 'BYTES'}})"
    )
    assert (text in caplog.messages) == warned
