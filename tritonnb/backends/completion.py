"""What Triton's core accepts of a configuration that a backend has completed (``TRITONBACKEND_ModelSetConfig``)."""

from __future__ import annotations

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diff import replaced


def merge_completed(config: pb.ModelConfig, completed: pb.ModelConfig) -> pb.ModelConfig | None:
    """The configuration with the accepted fields of the completed one; the others are discarded.

    None if the completed one has another scheduler: Triton then ignores it and reports no error.
    """
    merged = replaced(config, completed, {"max_batch_size", "input", "output"})
    scheduler, completed_scheduler = config.WhichOneof("scheduling_choice"), completed.WhichOneof("scheduling_choice")
    if scheduler is None and completed_scheduler is not None:
        merged = replaced(merged, completed, {completed_scheduler})
    elif scheduler != completed_scheduler:
        return None
    if completed.HasField("model_transaction_policy"):
        merged.model_transaction_policy.decoupled = completed.model_transaction_policy.decoupled
    return merged
