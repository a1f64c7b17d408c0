"""What Triton's configuration can say that this server, or a backend of it, cannot do.

Such fields are refused when the model is loaded; none is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError, NotFoundError, UnsupportedError


def check_batch_tensors(config: Any, supports_batch_tensors: bool) -> None:
    """Refuse ``batch_input`` and ``batch_output`` where the backend would not look at them.

    Raises
    ------
    UnsupportedError
        If there are some.
    """
    if not supports_batch_tensors and (config.batch_input or config.batch_output):
        raise UnsupportedError(
            f"'batch_input' and 'batch_output' of model '{config.name}' are not supported by the backend "
            f"'{config.backend}'"
        )


def check_batch_strategy(config: Any, directory: Path) -> None:
    """Refuse custom batching: Triton loads it from a C++ library, which cannot be run here.

    Raises
    ------
    InvalidArgumentError, NotFoundError, UnsupportedError
        If it is asked for, in the way that Triton would complain of it first.
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
