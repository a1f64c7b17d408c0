"""Exceptions that a backend raises while it executes a batch: as errors for clients, and in the log."""

from __future__ import annotations

import logging
import traceback

from tritonnb.backends.execution import Execution
from tritonnb.core.errors import InternalError
from tritonnb.core.failures import frames_to_notes, location_suffix


class FailureLog:
    """Logs where an instance failed, once for each place, so that not every batch is logged.

    Parameters
    ----------
    name : str
        Name of the instance.
    logger : logging.Logger
    """

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self._name = name
        self._logger = logger
        self._places: set[tuple[object, ...]] = set()

    def convert(self, error: BaseException, execution: Execution) -> InternalError:
        """Log an exception that is not a `TritonError`, and return the error for the requests of the batch."""
        place = type(error), *(line for _, line in traceback.walk_tb(error.__traceback__))
        if place in self._places:
            self._logger.debug("instance '%s' failed again: %s: %s", self._name, type(error).__name__, error)
        else:
            self._places.add(place)
            self._logger.error("instance '%s' failed", self._name, exc_info=error)
        model = next(request.model_name for request in execution.requests if not request.is_null)
        text = f"model '{model}': {type(error).__name__}: {error}{location_suffix(error)}"
        return InternalError(text, model_error=frames_to_notes(error))
