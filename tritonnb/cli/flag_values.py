"""Parsers for the values of tritonserver's flags.

Formats and error messages are those of Triton's command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from tritonnb.endpoints.grpc.rpcs import PROTOCOLS
from tritonnb.scheduling.resources import Resource
from tritonnb.telemetry.log_settings import FORMATS

T = TypeVar("T")
First = TypeVar("First")
Second = TypeVar("Second")
_TRUE, _FALSE = ("true", "on", "1"), ("false", "off", "0")


def boolean(text: str) -> bool:
    """Parse ``true``, ``on``, ``1``, or ``false``, ``off``, ``0``, in upper or lower case."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"invalid value for bool option: {text}")


def only(wanted: bool, reason: str) -> Callable[[str], bool]:
    """Return a boolean flag that supports only one of its values."""

    def parsed(text: str) -> bool:
        if boolean(text) is not wanted:
            raise argparse.ArgumentTypeError(reason)
        return wanted

    return parsed


def integer(text: str) -> int:
    """Return an integer."""
    return _number(int, text)


def positive(flag: str) -> Callable[[str], int]:
    """Return an integer above 0."""

    def parsed(text: str) -> int:
        value = integer(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"Error: --{flag} must be greater than 0.")
        return value

    return parsed


def grpc_infer_thread_count(text: str) -> int:
    """Return the number of threads of ``--grpc-infer-thread-count``."""
    count = integer(text)
    if not 2 <= count <= 128:
        # The underscores are Triton's.
        raise argparse.ArgumentTypeError(
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."
        )
    return count


def number(text: str) -> float:
    """Return a number."""
    return _number(float, text)


def verbosity(text: str) -> int:
    """Return a level, or ``true`` or ``false``."""
    return integer({"true": "1", "false": "0"}.get(text.lower(), text))


def choice(flag: str, *values: str) -> Callable[[str], str]:
    """Return one of several values, in upper or lower case."""

    def chosen(text: str) -> str:
        if text.lower() not in values:
            raise argparse.ArgumentTypeError(f"invalid argument for --{flag}")
        return text.lower()

    return chosen


def log_format(text: str) -> str:
    """Parse ``default`` or ``ISO8601``."""
    if text not in FORMATS:
        raise argparse.ArgumentTypeError("invalid argument for --log-format")
    return text


def config_name(text: str) -> str:
    """Return the name of a custom configuration."""
    if not text:
        raise argparse.ArgumentTypeError("Error: empty argument for --model-config-name")
    return text


def names(text: str) -> list[str]:
    """Parse names that are separated by commas."""
    values = text.split(",")
    if not all(values):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got '{text}'")
    return values


def pair(first: Callable[[str], First], second: Callable[[str], Second]) -> Callable[[str], tuple[First, Second]]:
    """Parse ``<first>:<second>``."""

    def parsed(text: str) -> tuple[First, Second]:
        left, colon, right = text.partition(":")
        if not colon:
            raise argparse.ArgumentTypeError(
                "Cannot parse pair option due to incorrect number of inputs."
                f"--<pair option> argument requires format <first>:<second>. Found: {text}"
            )
        return first(left), second(right)

    return parsed


def gpu_limit(text: str) -> tuple[int, float]:
    """Parse ``<device>:<fraction>`` of ``--model-load-gpu-limit``."""
    device, fraction = pair(integer, number)(text)
    if device < 0:
        raise argparse.ArgumentTypeError(f"expects device ID >= 0, got {device}")
    if not 0 <= fraction <= 1:
        raise argparse.ArgumentTypeError(f"expects limit fraction to be in range [0.0, 1.0], got {fraction:f}")
    return device, fraction


def metrics_setting(text: str) -> tuple[str, str]:
    """Parse ``<setting>=<value>``."""
    name, _, value = text.partition("=")
    if not name or not value or "," in name:
        raise argparse.ArgumentTypeError(f"--metrics-config option format is <setting>=<value>. Got {text}")
    return name, value


def cache_setting(text: str) -> tuple[str, str, str]:
    """Parse ``<cache name>,<setting>=<value>``."""
    cache, comma, rest = text.partition(",")
    name, _, value = rest.partition("=")
    form = f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}"
    if not comma or not cache:
        raise argparse.ArgumentTypeError(f"No cache specified. {form}".replace("'", ""))
    if not name or not value:
        raise argparse.ArgumentTypeError(form)
    return cache, name, value


def backend_setting(text: str) -> tuple[str, str, str]:
    """Parse ``<backend name>,<setting>=<value>``, or ``<setting>=<value>`` for all backends."""
    return _optionally_named("backend-config", "backend", "backend name", text)


def trace_level(text: str) -> str:
    """Parse ``OFF``, ``TIMESTAMPS`` or ``TENSORS``, or a deprecated name of one of them."""
    word = text.lower()
    if word in ("off", "false"):
        return "OFF"
    if word in ("timestamps", "true", "on", "min", "max"):
        return "TIMESTAMPS"
    if word == "tensors":
        return "TENSORS"
    raise argparse.ArgumentTypeError(f"invalid value for trace level option: {text}")


def trace_mode(text: str) -> str:
    """Parse ``triton`` or ``opentelemetry``."""
    if text.lower() not in ("triton", "opentelemetry"):
        raise argparse.ArgumentTypeError(
            f'invalid value for trace mode option: {text.lower()}. Available options are "triton" and "opentelemetry"'
        )
    return text.lower()


def trace_setting(text: str) -> tuple[str, str, str]:
    """Parse ``<trace mode>,<setting>=<value>``, or ``<setting>=<value>`` for all modes."""
    return _optionally_named("trace-config", "trace mode", "trace mode", text)


def host_policy(text: str) -> tuple[str, str, str]:
    """Parse ``<policy name>,<setting>=<value>``."""
    policy, name, value = _three("host-policy", "policy name", ",", text)
    if name not in ("numa-node", "cpu-cores"):
        raise argparse.ArgumentTypeError(
            f"Unsupported host policy setting '{name}' is specified, supported settings are 'numa-node', 'cpu-cores'"
        )
    return policy, name, value


def restriction(flag: str, kind: str) -> Callable[[str], list[tuple[str, str, str]]]:
    """Parse ``<protocol>[,<protocol>...]:<key>=<value>``."""

    def parsed(text: str) -> list[tuple[str, str, str]]:
        names, key, value = _three(flag, "config name", ":", text)
        for protocol in names.split(","):
            if protocol not in PROTOCOLS:
                raise argparse.ArgumentTypeError(f"unknown restricted {kind} '{protocol}' ")
        return [(protocol, key, value) for protocol in names.split(",")]

    return parsed


def resource(text: str) -> Resource:
    """Parse ``<resource name>:<count>[:<device>]``."""
    name, *numbers = text.split(":")
    if len(numbers) not in (1, 2):
        raise argparse.ArgumentTypeError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}"
        )
    return Resource(name, *map(integer, numbers))


def _optionally_named(flag: str, what: str, first: str, text: str) -> tuple[str, str, str]:
    """Parse ``<first>,<setting>=<value>``, or ``<setting>=<value>``, of which the first is empty."""
    group, comma, rest = text.partition(",")
    if not comma:
        group, rest = "", text
    elif not group:
        raise argparse.ArgumentTypeError(
            f"No {what} specified. --{flag} option format is <{first}>,<setting>=<value> or <setting>=<value>. "
            f"Got {text}"
        )
    name, _, value = rest.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"--{flag} option format is '<{first}>,<setting>=<value>'. Got {text}")
    return group, name, value


def _three(flag: str, what: str, separator: str, text: str) -> tuple[str, str, str]:
    first, _, rest = text.partition(separator)
    second, _, third = rest.partition("=")
    if not (first and second and third):
        raise argparse.ArgumentTypeError(
            f"--{flag} option format is '<{what}>{separator}<setting>=<value>'. Got {text}"
        )
    return first, second, third


def _number(kind: Callable[[str], T], text: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text}") from None
