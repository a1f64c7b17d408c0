"""What Triton's configuration can say that this server cannot do yet.

Such fields are refused when the model is loaded; none is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError, NotFoundError, UnsupportedError

_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    # Triton's Python backend reads these two and passes nothing on to the model.
    "batch_input": lambda config: bool(config.batch_input) and config.backend != "python",
    "batch_output": lambda config: bool(config.batch_output) and config.backend != "python",
    "model_metrics": lambda config: config.HasField("model_metrics"),
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


def check_batch_strategy(config: Any, directory: Path) -> None:
    """Refuse custom batching: Triton loads it from a C++ library, which cannot be run here.

    Raises
    ------
    InvalidArgumentError, NotFoundError, UnsupportedError
    """
    given = config.parameters.get("TRITON_BATCH_STRATEGY_PATH")
    if config.HasField("sequence_batching"):
        if given is not None:
            raise InvalidArgumentError(
                "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy"
            )
        return
    if given is not None and not (given.string_value and Path(given.string_value).exists()):
        raise NotFoundError(f"Batching library path not found: {given.string_value}")
    library = given.string_value if given is not None else next(_strategy_libraries(directory), None)
    if library is not None:
        raise UnsupportedError(f"custom batching of model '{config.name}' is not supported: {library} is a C++ library")


def _strategy_libraries(directory: Path) -> Iterator[Path]:
    yield from directory.glob("batchstrategy.so")
    yield from directory.glob("*/batchstrategy.so")
