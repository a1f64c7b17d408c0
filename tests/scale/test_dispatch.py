"""Sequences and replicas that come, drain and die: no sequence goes on with another's state, or with none."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scale.local import LocalPool, ask_of
from tritonnb.core.errors import UnavailableError
from tritonnb.scale.coordinator import Coordinator, ReplicaReport
from tritonnb.scale.dispatch import Dispatcher, is_unknown_sequence
from tritonnb.scale.replica import RpcReply
from tritonnb.scale.sequences import SequenceKey, SequenceRequest

UNKNOWN = RpcReply(
    b"",
    "inference request for sequence 1 to model 'm' must specify the START flag on the first request of the sequence",
    "INVALID_ARG",
)


class Accumulator:
    """A stateful model: adds up the values of each sequence."""

    def __init__(self) -> None:
        self.sums: dict[SequenceKey, int] = {}
        self.calls = 0

    async def add(self, sequence: SequenceRequest, value: int) -> RpcReply:
        await asyncio.sleep(0)
        self.calls += 1
        key = sequence.key
        if sequence.start:
            self.sums[key] = 0
        elif key not in self.sums:
            return UNKNOWN
        self.sums[key] += value
        return RpcReply(str(self.sums.pop(key) if sequence.end else self.sums[key]).encode())


class Cluster:
    """Replicas of the accumulator, and two ingress replicas that see the same pool."""

    def __init__(self, *names: str) -> None:
        self.pool = LocalPool()
        self.coordinator = Coordinator()
        for name in names:
            self.pool.running[name] = Accumulator()
        self.ingresses = [Dispatcher(self.pool, ask_of(self.coordinator)) for _ in range(2)]

    async def send(self, ingress: int, id: int, value: int, *, start: bool = False, end: bool = False) -> RpcReply:
        request = SequenceRequest(SequenceKey("m", id), start, end)
        reply = await self.ingresses[ingress].call(request, "add", request, value)
        assert isinstance(reply, RpcReply)
        return reply


def test_both_ingresses_send_a_sequence_to_one_replica_while_others_are_added() -> None:
    async def scenario() -> None:
        cluster = Cluster("a")
        assert (await cluster.send(0, 1, 1, start=True)).message == b"1"
        for name in "bcdefgh":
            cluster.pool.running[name] = Accumulator()
            assert not (await cluster.send(1, 1, 1)).status
        assert (await cluster.send(0, 1, 1, end=True)).message == b"9"
        assert cluster.pool.running["a"].calls == 9
        assert is_unknown_sequence(await cluster.send(0, 1, 1))
        assert len(cluster.coordinator.sequences) == 0

    asyncio.run(scenario())


def test_draining_replica_serves_its_sequences_and_gets_no_new_ones() -> None:
    async def scenario() -> None:
        cluster = Cluster("a")
        await cluster.send(0, 1, 5, start=True)
        leaving = cluster.pool.running["a"]
        cluster.pool.running["b"] = Accumulator()
        cluster.pool.drain("a")
        for id in range(2, 40):
            await cluster.send(id % 2, id, 1, start=True, end=True)
        assert leaving.calls == 1
        assert (await cluster.send(1, 1, 5, end=True)).message == b"10"

    asyncio.run(scenario())


def test_sequences_of_a_lost_replica_end_with_the_error_of_an_unknown_sequence() -> None:
    async def scenario() -> None:
        cluster = Cluster("a")
        await cluster.send(0, 1, 5, start=True)
        await cluster.send(1, 1, 5)
        cluster.pool.running["b"] = Accumulator()
        cluster.pool.remove("a")
        for ingress in (0, 1):
            assert is_unknown_sequence(await cluster.send(ingress, 1, 5))
        assert (await cluster.send(0, 1, 5, start=True)).message == b"5"

    asyncio.run(scenario())


def test_sequence_request_lost_with_its_replica_fails_and_is_not_retried() -> None:
    async def scenario() -> None:
        cluster = Cluster("a")
        await cluster.send(0, 1, 5, start=True)
        cluster.pool.running["b"] = Accumulator()
        cluster.pool.dying = {"a"}
        with pytest.raises(UnavailableError, match="sequence 1 of model 'm' has ended: its replica was lost"):
            await cluster.send(0, 1, 5)
        assert cluster.pool.running["b"].calls == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(("retries", "succeeds"), [(0, False), (1, True)])
def test_request_without_a_sequence_is_retried_as_configured(retries: int, succeeds: bool) -> None:
    async def scenario() -> None:
        pool = LocalPool()
        pool.running = {"a": Accumulator(), "b": Accumulator()}
        pool.dying = {"b"}
        dispatcher = Dispatcher(pool, ask_of(Coordinator()), retries)
        request = SequenceRequest(SequenceKey("m", 1), True, True)
        if succeeds:
            assert (await dispatcher.call(None, "add", request, 3)).message == b"3"
        else:
            with pytest.raises(UnavailableError, match="the replica of 'engine' that had the request was lost"):
                await dispatcher.call(None, "add", request, 3)

    asyncio.run(scenario())


def test_ingress_with_an_old_placement_follows_a_restarted_sequence() -> None:
    async def scenario() -> None:
        cluster = Cluster("a")
        await cluster.send(0, 1, 5, start=True)
        await cluster.send(1, 1, 5, end=True)  # ingress 0 still remembers a
        cluster.pool.running["b"] = Accumulator()
        cluster.pool.drain("a")
        await cluster.send(1, 1, 7, start=True)
        assert (await cluster.send(0, 1, 1)).message == b"8"

    asyncio.run(scenario())


@given(st.randoms(use_true_random=False))
def test_sums_are_correct_despite_lost_replicas(choices: random.Random) -> None:
    async def sequence(cluster: Cluster, id: int) -> None:
        total = 0
        for step in range(6):
            try:
                reply = await cluster.send(choices.randrange(2), id, step, start=step == 0, end=step == 5)
            except UnavailableError:
                return  # the documented error of a sequence whose replica was lost
            if is_unknown_sequence(reply):
                assert step > 0
                return
            total += step
            assert reply.message == str(total).encode()

    async def disturb(cluster: Cluster) -> None:
        pool = cluster.pool
        for number in range(12):
            await asyncio.sleep(0)
            action = choices.choice(["add", "drain", "remove", "die", "report"])
            victim = choices.choice(sorted(pool.running) or [""])
            if action == "add" or not victim:
                pool.running[f"new {number}"] = Accumulator()
            elif action == "report":
                cluster.coordinator.report(ReplicaReport(victim, "engine", live=tuple(pool.running[victim].sums)))
            elif len(pool.running) > 1:
                {"drain": pool.drain, "remove": pool.remove, "die": pool.dying.add}[action](victim)

    async def scenario() -> None:
        cluster = Cluster("a", "b")
        await asyncio.gather(disturb(cluster), *(sequence(cluster, id) for id in range(1, 9)))

    asyncio.run(scenario())
