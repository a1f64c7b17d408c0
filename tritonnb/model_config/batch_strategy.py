"""Where the library for custom batching is: ``TRITON_BATCH_STRATEGY_PATH``, or a file *batchstrategy.so*."""

from __future__ import annotations

import os
from pathlib import Path

from tritonnb.core.errors import InvalidArgumentError, NotFoundError
from tritonnb.core.protobuf import model_config_pb2 as pb

_PARAMETER = "TRITON_BATCH_STRATEGY_PATH"
_FILE = "batchstrategy.so"


def check_batch_strategy(config: pb.ModelConfig, directory: Path) -> None:
    """Check the parameter of custom batching.

    Raises
    ------
    InvalidArgumentError, NotFoundError
        If the model has a sequence batcher, or the file does not exist or is not in the model's directory.
    """
    if _PARAMETER not in config.parameters:
        return
    if config.HasField("sequence_batching"):
        raise InvalidArgumentError(
            "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy"
        )
    text = config.parameters[_PARAMETER].string_value
    if not (text and os.path.exists(text)):
        raise NotFoundError(f"Batching library path not found: {text}")
    if not Path(text).resolve().is_relative_to(directory.resolve()):
        raise InvalidArgumentError("Batching library path escapes model repository.")


def find_batch_strategy(config: pb.ModelConfig, directory: Path, version: int, backends: Path) -> Path | None:
    """The library for custom batching, in Triton's search order; None if there is none.

    Parameters
    ----------
    config : inference.ModelConfig
        It passes `check_batch_strategy`.
    directory : pathlib.Path
        The model's directory.
    version : int
    backends : pathlib.Path
        The backend directory.
    """
    if config.HasField("sequence_batching"):
        return None
    if _PARAMETER in config.parameters:
        return Path(config.parameters[_PARAMETER].string_value)
    places = (directory / str(version), directory, backends / config.backend)
    return next((place / _FILE for place in places if (place / _FILE).is_file()), None)
