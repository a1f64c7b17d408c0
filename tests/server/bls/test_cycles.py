"""Models that call one another, and instances that wait for one another."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tritonnb.core.errors import TritonError


def test_model_with_an_idle_instance_can_call_itself(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted('return 0 if x <= 0 else 1 + value(ask("caller", x - 1).exec())', count=3)
    assert ask(2) == [2]


def test_call_that_closes_a_cycle_of_waiting_instances_fails(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted('return 0 if x <= 0 else 1 + value(ask("caller", x - 1).exec())', count=2)
    assert ask(1) == [1]
    with pytest.raises(TritonError, match="all instances of model 'caller' wait for one another"):
        ask(2)
    assert ask(1) == [1]


def test_call_cycle_over_several_models_is_detected(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    scripted('return value(ask("first", x).exec())', name="second")
    ask = scripted('return value(ask("second", x).exec())', name="first")
    with pytest.raises(TritonError, match="wait for one another"):
        ask(1)


def test_all_instances_of_a_model_can_wait_for_another_model(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted('return value(ask("double", x).exec())', count=2)
    with ThreadPoolExecutor(8) as pool:
        assert [value for (value,) in pool.map(ask, range(50))] == [2.0 * number for number in range(50)]
