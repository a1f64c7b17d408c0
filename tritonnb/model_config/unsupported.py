"""Settings of a configuration that this server, or one of its backends, does not support.

They raise an error when the model is loaded; none is silently ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tritonnb.core.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb


def check_batch_tensors(config: pb.ModelConfig, takes_batch_tensors: bool) -> None:
    """Reject ``batch_input`` and ``batch_output`` for a backend that does not support them.

    Raises
    ------
    UnsupportedError
        If the configuration has them.
    """
    if not takes_batch_tensors and (config.batch_input or config.batch_output):
        raise UnsupportedError(
            f"model '{config.name}': the backend '{config.backend}' does not support 'batch_input' and 'batch_output'"
        )


def check_batch_strategy(config: pb.ModelConfig, directory: Path) -> None:
    """Reject custom batching: Triton loads it from a C++ library, which cannot be used here.

    Raises
    ------
    InvalidArgumentError, NotFoundError, UnsupportedError
        If it is configured; Triton's own errors take precedence.
    """
    parameter = config.parameters.get("TRITON_BATCH_STRATEGY_PATH")
    if config.HasField("sequence_batching"):
        if parameter is not None:
            raise InvalidArgumentError(
                "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy"
            )
        return
    if parameter is not None and not (parameter.string_value and Path(parameter.string_value).exists()):
        raise NotFoundError(f"Batching library path not found: {parameter.string_value}")
    library = parameter.string_value if parameter is not None else next(_strategy_libraries(directory), None)
    if library is not None:
        raise UnsupportedError(
            f"model '{config.name}': custom batching is not supported, and {library} is a C++ library"
        )


def _strategy_libraries(directory: Path) -> Iterator[Path]:
    yield from directory.glob("batchstrategy.so")
    yield from directory.glob("*/batchstrategy.so")
