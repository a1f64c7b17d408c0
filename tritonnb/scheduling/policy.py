"""What is configured of waiting: who may wait, how long, who goes first, and what batches are made of them.

Mirrors ``ModelQueuePolicy`` and ``ModelDynamicBatching`` in *model_config.proto*. A smaller level
number goes earlier; level 0 exists only where ``priority_levels`` is 0.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class TimeoutAction(enum.Enum):
    """What becomes of a request whose timeout has passed while it waited."""

    REJECT = 0
    DELAY = 1


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How one priority level treats the requests that wait in it.

    Attributes
    ----------
    timeout_action : TimeoutAction
        REJECT answers an expired request with an error; DELAY serves it after all others of its
        level, without a deadline.
    default_timeout_ns : int
        0 for never.
    allow_timeout_override : bool
        A request may ask for a shorter timeout than the default, never for a longer one.
    max_queue_size : int
        Requests that may wait at once; 0 for no limit.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def timeout_ns(self, requested_us: int) -> int:
        """The timeout of a request that asks for ``requested_us`` microseconds; 0 for never."""
        requested_ns = requested_us * 1000
        if self.allow_timeout_override and 0 < requested_ns < self.default_timeout_ns:
            return requested_ns
        return self.default_timeout_ns

    @property
    def supports_prefetching(self) -> bool:
        """A payload may be built before an instance is free only where waiting has no rules."""
        return not (self.default_timeout_ns or self.allow_timeout_override or self.max_queue_size)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Priority levels and the policy of each.

    Attributes
    ----------
    priority_levels : int
        0 for a single queue without priorities.
    default_priority_level : int
        Level of requests that ask for none, or for one that does not exist.
    default_queue_policy : QueuePolicy
    priority_queue_policy : mapping of int to QueuePolicy
        Levels with a policy of their own.
    """

    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def level_of(self, priority: int) -> int:
        """The level that serves requests of a priority."""
        if not self.priority_levels:
            return 0
        if 0 < priority <= self.priority_levels:
            return priority
        return self.default_priority_level

    def policy_of(self, level: int) -> QueuePolicy:
        """The queue policy of a level."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)

    @property
    def supports_prefetching(self) -> bool:
        """Payloads may be built while all instances are busy."""
        return not self.priority_levels and self.default_queue_policy.supports_prefetching

    @property
    def has_timeouts(self) -> bool:
        """Some request may expire while it waits."""
        policies = (self.default_queue_policy, *self.priority_queue_policy.values())
        return any(policy.default_timeout_ns for policy in policies)


@dataclass(frozen=True, slots=True)
class DynamicBatcherSettings:
    """What ``dynamic_batching`` configures.

    Attributes
    ----------
    max_batch_size : int
        Rows that one execution may have.
    preferred_batch_sizes : tuple of int
        In rising order; ``(max_batch_size,)`` unless configured.
    max_queue_delay_ns : int
        How long a request may be held back so that others can join it; 0 for not at all.
    preserve_ordering : bool
        Responses leave in the order in which their requests were placed in batches.
    queue : QueueSettings
        Priority levels and queue policies.
    enforce_equal_shape : bool
        Some input's shape may vary between requests and must not within a batch. Every arrival
        is then examined at once; otherwise only when enough rows have come for a preferred size.
    min_requests_to_start : int
        Nothing is batched before this many requests wait (``TRITONSERVER_DELAY_SCHEDULER``).
    rate_limited : bool
        Payloads are staged, any number of them is formed ahead, and none is merged with another.
    instance_bound : bool
        The batcher of one instance (strategy oldest): any number of payloads is formed ahead, since Triton
        compares the limit with the length of the queue that all instances of the model share.
    """

    max_batch_size: int
    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_ns: int = 0
    preserve_ordering: bool = False
    queue: QueueSettings = field(default_factory=QueueSettings)
    enforce_equal_shape: bool = False
    min_requests_to_start: int = 0
    rate_limited: bool = False
    instance_bound: bool = False
