"""The start of a child process: which models have a process, its limits, and the commands that create the instance."""

from __future__ import annotations

import dataclasses
import logging
import math
import sys
from collections.abc import Sequence
from typing import Any

from tritonnb.backends.contract import ModelContext
from tritonnb.backends.isolation.channel import Header
from tritonnb.backends.location import BackendLocation
from tritonnb.backends.model_checks import integer_parameter, read_parameter
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb

PROCESS = "EXECUTION_PROCESS"
TIMEOUT = "EXECUTION_TIMEOUT"
MEMORY_LIMIT = "EXECUTION_MEMORY_LIMIT"

ISOLATED = "isolated"
IN_PROCESS = "in_process"


def is_isolated(config: pb.ModelConfig, isolate: bool | Sequence[str], is_native: bool = False) -> bool:
    """Return whether the instances of a model run in their own processes.

    Parameters
    ----------
    config : inference.ModelConfig
        Its parameter ``EXECUTION_PROCESS`` decides, if the model has it.
    isolate : bool or sequence of str
        The option of the server: all models of repositories, none, or models by name.
    is_native : bool, optional
        Whether the backend is a C++ library. Its models are also isolated, unless the option is False: a crash in C++
        ends the process.

    Raises
    ------
    InvalidArgumentError
        If the parameter has another value than ``isolated`` or ``in_process``.
    """
    if PROCESS not in config.parameters:
        # False is an explicit wish, and applies to C++ backends as well; the default is a list without names.
        return isolate if isinstance(isolate, bool) else is_native or config.name in isolate
    value = config.parameters[PROCESS].string_value
    if value not in (ISOLATED, IN_PROCESS):
        raise InvalidArgumentError(
            f"model '{config.name}': parameter '{PROCESS}' expected '{ISOLATED}' or '{IN_PROCESS}', got '{value}'"
        )
    return bool(value == ISOLATED)


def read_limits(context: ModelContext) -> tuple[float | None, int | None]:
    """Return the limits in a model's configuration: ``EXECUTION_TIMEOUT`` and ``EXECUTION_MEMORY_LIMIT``.

    Returns
    -------
    timeout_s : float or None
        An execution that takes longer ends the process.
    memory_bytes : int or None
        The size of the address space.

    Raises
    ------
    InvalidArgumentError
        If a limit is not a positive number.
    """
    memory = integer_parameter(context, MEMORY_LIMIT, None)
    if memory is not None and memory <= 0:
        raise InvalidArgumentError(
            f"model '{context.name}': parameter '{MEMORY_LIMIT}' expected a number of bytes > 0, got '{memory}'"
        )
    timeout = read_parameter(context, TIMEOUT, None, _positive_seconds, "a number of seconds > 0")
    return timeout, memory


def _positive_seconds(text: str) -> float:
    if not 0 < (seconds := float(text)) < math.inf:
        raise ValueError
    return seconds


#: A child takes over the levels of these loggers: the root, and the logger of this package.
_LOGGERS = ("", "tritonnb")


def open_command(location: BackendLocation, context: ModelContext) -> Header:
    """Return the command that creates the backend of a model."""
    # A notebook may have extended the path, and the model imports from there. Other entries could not be sent.
    path = [entry for entry in sys.path if isinstance(entry, str)]
    levels = {name: logging.getLogger(name or None).getEffectiveLevel() for name in _LOGGERS}
    _, memory_bytes = read_limits(context)
    return ["open", path, dataclasses.astuple(location), dict(context.settings), levels, memory_bytes]


def context_command(kind: str, context: ModelContext, *arguments: Any) -> Header:
    """Return a command for a model."""
    config = context.config.SerializeToString()
    return [kind, context.name, context.version, config, str(context.directory), dict(context.settings), *arguments]
