"""What Triton's configuration can say that this server cannot do yet.

Such fields are refused when the model is loaded; none is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tritonnb.core.errors import UnsupportedError

_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "ensemble_scheduling": lambda config: config.HasField("ensemble_scheduling"),
    "model_warmup": lambda config: any(each.batch_size for each in config.model_warmup),
    "batch_input": lambda config: bool(config.batch_input),
    "batch_output": lambda config: bool(config.batch_output),
    "model_metrics": lambda config: config.HasField("model_metrics"),
    "model_repository_agents": lambda config: config.HasField("model_repository_agents"),
    "model_operations.op_library_filename": lambda config: bool(config.model_operations.op_library_filename),
    "instance_group.secondary_devices": lambda config: any(
        each.secondary_devices for each in config.instance_group
    ),
    "sequence_batching.state.use_growable_memory": lambda config: any(
        each.use_growable_memory for each in config.sequence_batching.state
    ),
}


def check_supported(config: Any) -> None:
    """Refuse what is not built yet.

    Raises
    ------
    UnsupportedError
    """
    for field, is_used in _UNSUPPORTED.items():
        if is_used(config):
            raise UnsupportedError(f"'{field}' of model '{config.name}' is not supported yet")
