"""The scheduler of a model in a few words."""

from __future__ import annotations

from typing import Any

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.scheduling.reasons import pluralize


def describe_scheduling(config: pb.ModelConfig) -> str:
    """Return a short description of a model's scheduler."""
    if config.HasField("ensemble_scheduling"):
        return "ensemble"
    parts = [f"batches up to {config.max_batch_size}" if config.max_batch_size else "no batching"]
    if config.HasField("dynamic_batching"):
        parts.append(f"dynamic batcher{_delay(config.dynamic_batching)}")
    if config.HasField("sequence_batching"):
        choice = config.sequence_batching.WhichOneof("strategy_choice") or "direct"
        parts.append(f"sequence batcher, {choice}{_delay(getattr(config.sequence_batching, choice))}")
    instances = sum(max(1, group.count) for group in config.instance_group)
    parts.append(pluralize(instances, "instance"))
    return ", ".join(parts)


def _delay(batching: Any) -> str:
    delay = batching.max_queue_delay_microseconds
    return f" with a delay of up to {delay / 1000:g} ms" if delay else ""
