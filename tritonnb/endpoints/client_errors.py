"""Errors as clients see them, and as the log shows them."""

from __future__ import annotations

import logging

from tritonnb.core.errors import TritonError
from tritonnb.model_config.load import ConfigError

logger = logging.getLogger(__name__)


def client_text(error: TritonError) -> str:
    """What a client is told; of a configuration that cannot be read, not the cause."""
    return error.client_message if isinstance(error, ConfigError) else error.message


def log_failed(request_id: str, error: TritonError) -> None:
    """Say in a verbose log that an inference request was refused, or failed."""
    logger.debug("[request id: %s] Infer failed: %s", request_id or "<id_unknown>", error.message)
