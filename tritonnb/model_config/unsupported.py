"""Settings of a configuration that this server, or one of its backends, does not support.

They raise an error when the model is loaded; none is silently ignored.
"""

from __future__ import annotations

from tritonnb.core.errors import UnsupportedError
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
