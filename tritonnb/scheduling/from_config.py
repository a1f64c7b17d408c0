"""From a model's configuration to its scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.scheduling.decisions import Scheduler
from tritonnb.scheduling.default_scheduler import DefaultScheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher, DynamicBatcherSettings
from tritonnb.scheduling.policy import QueuePolicy, QueueSettings, TimeoutAction


def make_scheduler(config: pb.ModelConfig, instance_count: int, environ: Mapping[str, str]) -> Scheduler:
    """The scheduler that a model's configuration asks for.

    Parameters
    ----------
    config : inference.ModelConfig
        Normalised and valid.
    instance_count : int
    environ : mapping of str to str
        ``TRITONSERVER_DELAY_SCHEDULER`` and ``TRITONSERVER_BACKLOG_DELAY_SCHEDULER`` are looked up here.
    """
    if config.HasField("dynamic_batching"):
        return DynamicBatcher(dynamic_batcher_settings(config, environ), instance_count)
    return DefaultScheduler(instance_count)


def dynamic_batcher_settings(config: pb.ModelConfig, environ: Mapping[str, str]) -> DynamicBatcherSettings:
    """What ``dynamic_batching`` says."""
    batching = config.dynamic_batching
    return DynamicBatcherSettings(
        max_batch_size=max(1, config.max_batch_size),
        preferred_batch_sizes=_preferred(batching.preferred_batch_size, config),
        max_queue_delay_ns=batching.max_queue_delay_microseconds * 1000,
        preserve_ordering=batching.preserve_ordering,
        queue=QueueSettings(
            priority_levels=batching.priority_levels,
            default_priority_level=batching.default_priority_level,
            default_queue_policy=_queue_policy(batching.default_queue_policy),
            priority_queue_policy={
                level: _queue_policy(policy) for level, policy in batching.priority_queue_policy.items()
            },
        ),
        enforce_equal_shape=_enforces_equal_shape(config),
        hold_until=_count(environ, "TRITONSERVER_DELAY_SCHEDULER"),
    )


def _preferred(sizes: Sequence[int], config: pb.ModelConfig) -> tuple[int, ...]:
    return tuple(sorted(set(sizes))) or ((config.max_batch_size,) if config.max_batch_size else ())


def _queue_policy(policy: pb.ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction(policy.timeout_action),
        default_timeout_ns=policy.default_timeout_microseconds * 1000,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _enforces_equal_shape(config: pb.ModelConfig) -> bool:
    return any(
        each.is_shape_tensor or (-1 in each.dims and not each.allow_ragged_batch) for each in config.input
    )


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else 0
