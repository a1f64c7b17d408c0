"""Creating the scheduler for a model's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.normalize import DEFAULT_SEQUENCE_IDLE_US
from tritonnb.scheduling.decisions import Decision, Scheduler
from tritonnb.scheduling.default_scheduler import DefaultScheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.ensemble import EnsembleGraph, EnsembleStep
from tritonnb.scheduling.policy import DynamicBatcherSettings, QueuePolicy, QueueSettings, TimeoutAction
from tritonnb.scheduling.reasons import pluralize
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import DirectSettings, OldestSettings, SequenceBatcherSettings

#: The schedulers of models. A protocol, such as `Scheduler`, would make compiled code look up methods by their names.
ModelScheduler = DefaultScheduler | DynamicBatcher | SequenceBatcher


def make_scheduler(
    config: pb.ModelConfig,
    instance_count: int,
    environ: Mapping[str, str],
    dispatch_key: Callable[[int], int] | None = None,
) -> ModelScheduler:
    """Create the scheduler that a model's configuration selects.

    Parameters
    ----------
    config : inference.ModelConfig
        Normalised and valid.
    instance_count : int
    environ : mapping of str to str
        ``TRITONSERVER_DELAY_SCHEDULER`` and ``TRITONSERVER_BACKLOG_DELAY_SCHEDULER`` are read from it.
    dispatch_key : callable, optional
        Given if a rate limiter starts batches: it uses the idle instance with the lowest ``dispatch_key(instance)``
        first.
    """
    if config.HasField("sequence_batching"):
        # First, as on Triton, and without `dispatch_key`: a sequence stays with its instance, whatever the limiter
        # prefers.
        return SequenceBatcher(sequence_batcher_settings(config, environ, dispatch_key is not None), instance_count)
    scheduler: DynamicBatcher | DefaultScheduler
    if config.HasField("dynamic_batching"):
        scheduler = DynamicBatcher(dynamic_batcher_settings(config, environ, dispatch_key is not None), instance_count)
    else:
        scheduler = DefaultScheduler(instance_count)
    scheduler.instances.dispatch_key = dispatch_key
    return scheduler


def ensemble_graph(config: pb.ModelConfig, is_decoupled: Callable[[str, int], bool]) -> EnsembleGraph:
    """Return the graph of an ensemble.

    Parameters
    ----------
    config : inference.ModelConfig
        Valid together with the models of its steps.
    is_decoupled : callable
        Takes a model's name and version; -1 is the newest version.
    """
    ensemble = config.ensemble_scheduling
    steps = [
        EnsembleStep(
            index,
            step.model_name,
            step.model_version,
            dict(step.input_map),
            dict(step.output_map),
            is_decoupled(step.model_name, step.model_version),
        )
        for index, step in enumerate(ensemble.step)
    ]
    return EnsembleGraph(
        config.name,
        steps,
        [tensor.name for tensor in config.input],
        [tensor.name for tensor in config.output],
        [tensor.name for tensor in config.input if tensor.optional],
        ensemble.max_inflight_requests,
    )


def reconfigure_scheduler(
    scheduler: Scheduler, config: pb.ModelConfig, now: int, rate_limited: bool = False
) -> tuple[ModelScheduler, Sequence[Decision]]:
    """Apply a changed configuration; queued requests are kept.

    ``max_batch_size`` must be unchanged, and ``sequence_batching`` must not be added or removed.

    Returns
    -------
    Scheduler
        The scheduler to use: a new scheduler if ``dynamic_batching`` was added or removed.
    sequence of Decision
        The resulting decisions.
    """
    if isinstance(scheduler, SequenceBatcher):
        # No environment: the thresholds hold back the start of a model, and this model has started.
        return scheduler, scheduler.reconfigure(sequence_batcher_settings(config, {}, rate_limited), now)
    if isinstance(scheduler, DynamicBatcher) and config.HasField("dynamic_batching"):
        return scheduler, scheduler.reconfigure(dynamic_batcher_settings(config, {}, rate_limited), now)
    successor: DynamicBatcher | DefaultScheduler
    if config.HasField("dynamic_batching"):
        # Without instances of its own: it takes over the instances of its predecessor, even while they are busy.
        successor = DynamicBatcher(dynamic_batcher_settings(config, {}, rate_limited), 0)
    elif isinstance(scheduler, DefaultScheduler):
        return scheduler, ()
    else:
        successor = DefaultScheduler(0)
    assert isinstance(scheduler, DefaultScheduler | DynamicBatcher)
    if scheduler.stopping:
        successor.stop()
    refused, waiting = scheduler.export_waiting(now)
    return successor, refused + successor.import_waiting(waiting, scheduler.instances, now)


def dynamic_batcher_settings(
    config: pb.ModelConfig, environ: Mapping[str, str], rate_limited: bool
) -> DynamicBatcherSettings:
    """Return the settings in ``dynamic_batching``."""
    batching = config.dynamic_batching
    return DynamicBatcherSettings(
        # 0 means that the tensors have no batch dimension, so that a batch is one request.
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
        min_requests_to_start=_count(environ, "TRITONSERVER_DELAY_SCHEDULER"),
        rate_limited=rate_limited,
    )


def sequence_batcher_settings(
    config: pb.ModelConfig, environ: Mapping[str, str], rate_limited: bool = False
) -> SequenceBatcherSettings:
    """Return the settings in ``sequence_batching``; the strategy is direct unless ``oldest`` is set."""
    batching = config.sequence_batching
    max_batch_size = max(1, config.max_batch_size)
    min_requests_to_start = _count(environ, "TRITONSERVER_DELAY_SCHEDULER")
    strategy: DirectSettings | OldestSettings
    if batching.HasField("oldest"):
        oldest = batching.oldest
        # As in Triton, the threshold applies to the batcher of each instance here.
        batcher = DynamicBatcherSettings(
            max_batch_size=max_batch_size,
            preferred_batch_sizes=_preferred(oldest.preferred_batch_size, config),
            max_queue_delay_ns=oldest.max_queue_delay_microseconds * 1000,
            preserve_ordering=oldest.preserve_ordering,
            enforce_equal_shape=_enforces_equal_shape(config),
            min_requests_to_start=min_requests_to_start,
            rate_limited=rate_limited,
            instance_bound=True,
        )
        # 0 is Triton's default: as many candidates as a batch has rows.
        strategy = OldestSettings(oldest.max_candidate_sequences or max_batch_size, batcher)
        min_requests_to_start = 0
    else:
        strategy = DirectSettings(
            max_batch_size,
            batching.direct.max_queue_delay_microseconds * 1000,
            batching.direct.minimum_slot_utilization,
        )
    return SequenceBatcherSettings(
        model_name=config.name,
        strategy=strategy,
        # 0 is the default of one second here, and not "never" as in the other timeouts.
        max_sequence_idle_ns=(batching.max_sequence_idle_microseconds or DEFAULT_SEQUENCE_IDLE_US) * 1000,
        iterative=batching.iterative_sequence,
        min_requests_to_start=min_requests_to_start,
        min_backlog_to_start=_count(environ, "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"),
    )


def _preferred(sizes: Sequence[int], config: pb.ModelConfig) -> tuple[int, ...]:
    # Triton writes max_batch_size into an empty list, which the config endpoint then shows. Without a batch dimension
    # nothing is preferred, and every request is a full batch.
    return tuple(sorted(set(sizes))) or ((config.max_batch_size,) if config.max_batch_size else ())


def _queue_policy(policy: pb.ModelQueuePolicy) -> QueuePolicy:
    delays = policy.timeout_action == pb.ModelQueuePolicy.DELAY  # an unknown number is not an error
    return QueuePolicy(
        timeout_action=TimeoutAction.DELAY if delays else TimeoutAction.REJECT,
        default_timeout_ns=policy.default_timeout_microseconds * 1000,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _enforces_equal_shape(config: pb.ModelConfig) -> bool:
    return any(
        # Fixed shapes were validated at the door. Optional inputs are missing here on purpose: see
        # `DynamicBatcher.submit`.
        tensor.is_shape_tensor or (-1 in tensor.dims and not tensor.allow_ragged_batch)
        for tensor in config.input
    )


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else 0


def queue_delay_ns(config: pb.ModelConfig) -> int:
    """Return the ``max_queue_delay_microseconds`` of the batcher that a configuration selects, in ns."""
    batching: Any = config.dynamic_batching
    if config.HasField("sequence_batching"):
        sequences = config.sequence_batching
        batching = sequences.oldest if sequences.HasField("oldest") else sequences.direct
    return int(batching.max_queue_delay_microseconds) * 1000


def describe_scheduling(config: pb.ModelConfig) -> str:
    """Return a short description of a model's scheduler."""
    if config.HasField("ensemble_scheduling"):
        return "ensemble"
    parts = [f"batches up to {config.max_batch_size}" if config.max_batch_size else "no batching"]
    delay_ns = queue_delay_ns(config)
    delay = f" with a delay of up to {delay_ns / 1e6:g} ms" if delay_ns else ""
    if config.HasField("dynamic_batching"):
        parts.append(f"dynamic batcher{delay}")
    if config.HasField("sequence_batching"):
        choice = config.sequence_batching.WhichOneof("strategy_choice") or "direct"
        parts.append(f"sequence batcher, {choice}{delay}")
    instances = sum(max(1, group.count) for group in config.instance_group)
    parts.append(pluralize(instances, "instance"))
    return ", ".join(parts)
