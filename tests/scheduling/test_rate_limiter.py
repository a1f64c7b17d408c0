"""The rate limiter, fed with batches by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.scheduling.instances import InstanceKey, RateLimiter
from tritonnb.scheduling.resources import Resource

R = Resource("R", 1)
A, B, C = (1, 0), (2, 0), (3, 0)


def stage(limiter: RateLimiter, instance: InstanceKey, batch: object) -> list[Any]:
    limiter.stage(instance, batch)
    return limiter.grant()


def release(limiter: RateLimiter, instance: InstanceKey) -> list[Any]:
    limiter.released(instance)
    return limiter.grant()


def test_lower_priority_number_is_served_more_often_as_on_triton() -> None:
    """Models a (priority 1) and b (priority 3) share one resource; eight batches of each wait behind a0."""
    limiter = RateLimiter()
    limiter.add(A, [R], 1)
    limiter.add(B, [R], 3)
    waiting = {name: [f"{name}{number}" for number in range(1, 9)] for name in "ab"}
    running = stage(limiter, A, "a0")
    assert stage(limiter, B, waiting["b"].pop(0)) == []
    order = []
    while running:
        order += running
        name = running[0][0]
        key = {"a": A, "b": B}[name]
        limiter.released(key)
        if waiting[name]:
            limiter.stage(key, waiting[name].pop(0))
        running = limiter.grant()
    assert " ".join(order) == "a0 a1 a2 a3 b1 a4 a5 a6 b2 a7 a8 b3 b4 b5 b6 b7 b8"


def test_default_resources_suffice_for_the_most_demanding_instance() -> None:
    limiter = RateLimiter()
    limiter.add(A, [Resource("R", 3)], 0)
    limiter.add(B, [Resource("R", 1)], 0)
    assert stage(limiter, B, "s") == ["s"]
    assert stage(limiter, A, "l") == []
    assert release(limiter, B) == ["l"]


def test_limiter_says_what_a_batch_had_to_wait_for() -> None:
    limiter = RateLimiter([Resource("R", 2)])
    for name, count in ((A, 1), (B, 2), (C, 0)):
        limiter.add(name, [Resource("R", count)], 0, {A: "a_0", B: "b_0", C: "c_0"}[name])
    assert stage(limiter, A, 1) == [1]
    assert [stage(limiter, B, 2), stage(limiter, C, 3)] == [[], []]
    assert limiter.take_wait(A) == ""
    assert release(limiter, A) == [2, 3]
    assert limiter.take_wait(B) == "resource R, held by a_0"
    assert limiter.take_wait(C) == "its turn after b_0, which waits for resource R, held by a_0"
    assert limiter.take_wait(C) == ""


def test_batch_that_lacks_resources_blocks_later_ones() -> None:
    limiter = RateLimiter([Resource("R", 2)])
    for name, count in ((A, 1), (B, 2), (C, 1)):
        limiter.add(name, [Resource("R", count)], 0)
    assert stage(limiter, A, 1) == [1]
    assert stage(limiter, B, 2) == []
    assert stage(limiter, C, 3) == []
    assert release(limiter, A) == [2]
    assert release(limiter, B) == [3]


def test_instances_without_resources_are_not_delayed() -> None:
    limiter = RateLimiter()
    limiter.add(A, [], 0)
    limiter.add(B, [], 0)
    assert stage(limiter, A, 1) == [1]
    assert stage(limiter, B, 2) == [2]


def test_each_device_has_separate_resources() -> None:
    limiter = RateLimiter([Resource("R", 1)])
    limiter.add(A, [Resource("R", 1, 0)], 0)
    limiter.add(B, [Resource("R", 1, 1)], 0)
    assert stage(limiter, A, 1) == [1]
    assert stage(limiter, B, 2) == [2]


@pytest.mark.parametrize("limits", [[Resource("R", 1)], [Resource("other", 9)]])
def test_instance_with_unsatisfiable_resources_is_refused(limits: list[Resource]) -> None:
    available = sum(limit.count for limit in limits if limit.name == "R")
    with pytest.raises(InvalidArgumentError) as caught:
        RateLimiter(limits).add(A, [Resource("R", 2)], 0)
    assert str(caught.value) == (
        f'Resource count for "R" is limited to {available} which will prevent scheduling of one or more model '
        "instances, the minimum required count is 2"
    )


def test_resource_belongs_to_the_server_or_to_devices() -> None:
    limiter = RateLimiter()
    limiter.add(A, [R], 0)
    with pytest.raises(InvalidArgumentError, match='"R" is present as both global and device-specific'):
        limiter.add(B, [Resource("R", 1, 0)], 0)
    limiter.forget([A])
    limiter.add(B, [Resource("R", 1, 0)], 0)


def test_resource_map_has_the_texts_that_triton_2_51_logged() -> None:
    limiter = RateLimiter()
    limiter.add(A, [Resource("R1", 3, 0), Resource("G", 2)], 0)
    assert limiter.resource_map() == (
        "\nMax Resource Map===>\n"
        "\tDevice: GLOBAL\n\t\tResource: G\t Count: 2\n"
        "\tDevice: 0\n\t\tResource: R1\t Count: 3\n"
    )
    limiter.forget([A])
    assert limiter.resource_map() == "\nMax Resource Map===>\n"
