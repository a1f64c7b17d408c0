"""What Triton's configuration can say that this server cannot do yet.

Such fields are refused when the model is loaded; none is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tritonnb.core.errors import NotFoundError, UnsupportedError

_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "ensemble_scheduling": lambda config: config.HasField("ensemble_scheduling"),
    "model_warmup": lambda config: any(each.batch_size for each in config.model_warmup),
    # Triton's Python backend reads these two and passes nothing on to the model.
    "batch_input": lambda config: bool(config.batch_input) and config.backend != "python",
    "batch_output": lambda config: bool(config.batch_output) and config.backend != "python",
    "model_metrics": lambda config: config.HasField("model_metrics"),
}


def check_supported(config: Any) -> None:
    """Refuse what is not built yet.

    Raises
    ------
    UnsupportedError, NotFoundError
    """
    for field, is_used in _UNSUPPORTED.items():
        if is_used(config):
            raise UnsupportedError(f"'{field}' of model '{config.name}' is not supported yet")
    strategy = config.parameters["TRITON_BATCH_STRATEGY_PATH"].string_value if _has_strategy(config) else ""
    if strategy and not Path(strategy).exists():
        raise NotFoundError(f"Batching library path not found: {strategy}")
    if strategy:
        raise UnsupportedError(f"custom batching of model '{config.name}' is not supported: {strategy} is a C library")


def _has_strategy(config: Any) -> bool:
    return config.HasField("dynamic_batching") and "TRITON_BATCH_STRATEGY_PATH" in config.parameters
