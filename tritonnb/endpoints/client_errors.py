"""Errors as clients see them."""

from __future__ import annotations

from tritonnb.core.errors import TritonError
from tritonnb.model_config.load import ConfigError


def client_text(error: TritonError) -> str:
    """What a client is told; of a configuration that cannot be read, not the cause."""
    return error.client_message if isinstance(error, ConfigError) else error.message
