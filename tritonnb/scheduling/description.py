"""The scheduler of a model in a few words."""

from __future__ import annotations

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.scheduling.from_config import queue_delay_ns
from tritonnb.scheduling.reasons import pluralize


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
