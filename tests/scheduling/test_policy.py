"""Queue policies for one request, and for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tritonnb.scheduling.policy import QueuePolicy, QueueSettings

ONE_MS = 1_000_000
LEVELS = QueueSettings(
    priority_levels=3, default_priority_level=2, priority_queue_policy={1: QueuePolicy(max_queue_size=7)}
)


@pytest.mark.parametrize(
    ("allowed", "requested_us", "timeout_ns"),
    [(False, 400, ONE_MS), (True, 400, 400_000), (True, 1_000, ONE_MS), (True, 2_000, ONE_MS), (True, 0, ONE_MS)],
)
def test_request_may_shorten_its_timeout_if_allowed(allowed: bool, requested_us: int, timeout_ns: int) -> None:
    policy = QueuePolicy(default_timeout_ns=ONE_MS, allow_timeout_override=allowed)
    assert policy.timeout_ns(requested_us) == timeout_ns


@pytest.mark.parametrize("rule", [{"default_timeout_ns": 1}, {"allow_timeout_override": True}, {"max_queue_size": 1}])
def test_every_rule_for_waiting_keeps_payloads_from_being_built_ahead(rule: dict[str, Any]) -> None:
    assert QueueSettings().supports_prefetching
    assert not QueueSettings(default_queue_policy=QueuePolicy(**rule)).supports_prefetching


def test_priorities_keep_payloads_from_being_built_ahead() -> None:
    assert not QueueSettings(priority_levels=1, default_priority_level=1).supports_prefetching


def test_timeout_applies_on_every_priority_level() -> None:
    timed = QueuePolicy(default_timeout_ns=1)
    assert not LEVELS.has_timeouts
    assert QueueSettings(default_queue_policy=timed).has_timeouts
    assert QueueSettings(priority_levels=1, default_priority_level=1, priority_queue_policy={1: timed}).has_timeouts


@pytest.mark.parametrize(("priority", "level"), [(0, 2), (1, 1), (3, 3), (4, 2)])
def test_unknown_priority_uses_the_default_level(priority: int, level: int) -> None:
    assert LEVELS.level_of(priority) == level


def test_default_level_is_ignored_without_priority_levels() -> None:
    settings = QueueSettings(priority_levels=0, default_priority_level=2)
    assert {settings.level_of(priority) for priority in range(4)} == {0}


def test_level_without_a_policy_uses_the_default_policy() -> None:
    assert LEVELS.policy_of(1).max_queue_size == 7
    assert LEVELS.policy_of(2) is LEVELS.default_queue_policy
