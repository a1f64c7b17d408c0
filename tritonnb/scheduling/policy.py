"""Settings of queues and of the dynamic batcher.

They correspond to ``ModelQueuePolicy`` and ``ModelDynamicBatching`` in *model_config.proto*. Lower priority levels are
scheduled first; level 0 exists only if ``priority_levels`` is 0.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class TimeoutAction(enum.Enum):
    """The action on a request whose timeout passes in the queue."""

    REJECT = 0
    DELAY = 1


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The queue policy of a priority level.

    Attributes
    ----------
    timeout_action : TimeoutAction
        REJECT responds to an expired request with an error; DELAY schedules it after all others of its level, without
        a timeout.
    default_timeout_ns : int
        0 for no timeout.
    allow_timeout_override : bool
        Requests may set a shorter timeout than the default, but not a longer timeout.
    max_queue_size : int
        Maximum number of queued requests; 0 for no limit.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def timeout_ns(self, requested_us: int) -> int:
        """Return the timeout in ns of a request that sets ``requested_us``, in microseconds; 0 for none."""
        requested_ns = requested_us * 1000
        # A request can only shorten its timeout, so with the default of 0, which is "never", an override has no effect
        # at all. Surprising, but measured on Triton 2.51.
        if self.allow_timeout_override and 0 < requested_ns < self.default_timeout_ns:
            return requested_ns
        return self.default_timeout_ns


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Priority levels and the policy of each.

    Attributes
    ----------
    priority_levels : int
        0 for a single queue without priorities.
    default_priority_level : int
        Level of requests with no priority, or with a priority that does not exist.
    default_queue_policy : QueuePolicy
    priority_queue_policy : mapping of int to QueuePolicy
        Policies of levels that do not use the default.
    """

    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def level_of(self, priority: int) -> int:
        """Return the level of requests with a priority."""
        if not self.priority_levels:
            return 0
        if 0 < priority <= self.priority_levels:
            return priority
        # Triton does not refuse a priority that does not exist.
        return self.default_priority_level

    def policy_of(self, level: int) -> QueuePolicy:
        """Return the queue policy of a level."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)

    @property
    def supports_prefetching(self) -> bool:
        """True if payloads may be formed ahead: only if queued requests cannot expire and are not limited in number."""
        # Triton asks the default policy alone: policies of other levels need priorities, which exclude prefetching
        # anyway.
        policy = self.default_queue_policy
        # An override counts even without a default timeout, where it has no effect.
        is_limited = policy.default_timeout_ns or policy.allow_timeout_override or policy.max_queue_size
        return not (self.priority_levels or is_limited)

    @property
    def has_timeouts(self) -> bool:
        """True if queued requests may expire."""
        policies = (self.default_queue_policy, *self.priority_queue_policy.values())
        return any(policy.default_timeout_ns for policy in policies)


@dataclass(frozen=True, slots=True)
class DynamicBatcherSettings:
    """The settings of a `DynamicBatcher`.

    Attributes
    ----------
    max_batch_size : int
        Maximum number of rows of a batch.
    preferred_batch_sizes : tuple of int
        In ascending order; ``(max_batch_size,)`` if not configured.
    max_queue_delay_ns : int
        How long a request may wait for others to join its batch, in ns; 0 not to wait.
    preserve_ordering : bool
        Send responses in the order in which their requests were batched.
    queue : QueueSettings
        Priority levels and queue policies.
    enforce_equal_shape : bool
        Shapes of some input may differ between requests but not within a batch. Then every arrival triggers a pass,
        otherwise only when enough rows for a preferred size are queued.
    min_requests_to_start : int
        Batching starts when this many requests are queued (``TRITONSERVER_DELAY_SCHEDULER``).
    rate_limited : bool
        Payloads are staged, formed ahead without limit, and not merged.
    instance_bound : bool
        The batcher of one instance (oldest strategy): payloads are formed ahead without limit, since Triton compares
        the limit with the length of a queue that all instances of the model share.
    largest_preferred_size : int
        0 if there is none.
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
    largest_preferred_size: int = field(init=False)

    def __post_init__(self) -> None:
        # Computed once, since every pass compares it with every request.
        largest = self.preferred_batch_sizes[-1] if self.preferred_batch_sizes else 0
        object.__setattr__(self, "largest_preferred_size", largest)
