"""Parsers for the values of tritonserver's flags; the text is the last argument.

Formats and error messages are the same as Triton's.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Container, Sequence
from typing import Any, TypeVar

from tritonnb.endpoints.grpc.rpcs import PROTOCOLS
from tritonnb.scheduling.resources import Resource
from tritonnb.telemetry.log_settings import FORMATS

T = TypeVar("T")
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_TRACE_LEVELS = {
    **dict.fromkeys(("off", "false"), "OFF"),
    **dict.fromkeys(("timestamps", "true", "on", "min", "max"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}
#: The settings of ``--metrics-config`` with an effect, and those that are the default.
_METRICS_SWITCHES = {("counter_latencies", "false"), ("summary_latencies", "true"), ("histogram_latencies", "true")}
_METRICS_DEFAULTS = {("counter_latencies", "true"), ("summary_latencies", "false"), ("histogram_latencies", "false")}
#: The numbers of a pair ``<quantile>:<error>``: C++ reads one as far as the text is a number, so `0.0.1` is 0.
_QUANTILE = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[^:]*:\s*\.?\d")


def boolean(text: str) -> bool:
    """Parse ``true``, ``on``, ``1``, or ``false``, ``off``, ``0``, in upper or lower case."""
    _require(text.lower() in _BOOLEANS, f"invalid value for bool option: {text}")
    return _BOOLEANS[text.lower()]


def only_false(reason: str, text: str) -> bool:
    """Parse a boolean flag that supports only the value false."""
    _require(not boolean(text), reason)
    return False


def integer(text: str) -> int:
    """Return an integer."""
    return _number(int, text)


def positive(flag: str, text: str) -> int:
    """Return an integer above 0."""
    value = integer(text)
    _require(value > 0, f"Error: --{flag} must be greater than 0.")
    return value


def grpc_infer_thread_count(text: str) -> int:
    """Return the number of threads of ``--grpc-infer-thread-count``."""
    count = integer(text)
    # The underscores are Triton's.
    _require(2 <= count <= 128, "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.")
    return count


def number(text: str) -> float:
    """Return a number."""
    return _number(float, text)


def verbosity(text: str) -> int:
    """Return a level, or ``true`` or ``false``."""
    return integer({"true": "1", "false": "0"}.get(text.lower(), text))


def choice(flag: str, values: Container[str], text: str) -> str:
    """Return one of several values, in upper or lower case."""
    _require(text.lower() in values, f"invalid argument for --{flag}")
    return text.lower()


def log_format(text: str) -> str:
    """Parse ``default`` or ``ISO8601``."""
    _require(text in FORMATS, "invalid argument for --log-format")
    return text


def config_name(text: str) -> str:
    """Return the name of a custom configuration."""
    _require(bool(text), "Error: empty argument for --model-config-name")
    return text


def names(text: str) -> list[str]:
    """Parse names that are separated by commas."""
    values = text.split(",")
    _require(all(values), f"expected names separated by commas, got '{text}'")
    return values


def pair(second: Callable[[str], T], text: str) -> tuple[int, T]:
    """Parse ``<first>:<second>``; the first is an integer."""
    left, colon, right = text.partition(":")
    _require(
        bool(colon),
        "Cannot parse pair option due to incorrect number of inputs."
        f"--<pair option> argument requires format <first>:<second>. Found: {text}",
    )
    return integer(left), second(right)


def gpu_limit(text: str) -> tuple[int, float]:
    """Parse ``<device>:<fraction>`` of ``--model-load-gpu-limit``."""
    device, fraction = pair(number, text)
    _require(device >= 0, f"expects device ID >= 0, got {device}")
    _require(0 <= fraction <= 1, f"expects limit fraction to be in range [0.0, 1.0], got {fraction:f}")
    return device, fraction


def metrics_setting(text: str) -> tuple[str, str]:
    """Parse ``<setting>=<value>``."""
    name, _, value = text.partition("=")
    is_setting = bool(name and value) and "," not in name
    _require(is_setting, f"--metrics-config option format is <setting>=<value>. Got {text}")
    return name, value


def metrics_choices(settings: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], list[str]]:
    """Return the options that settings of ``--metrics-config`` change, and the settings that Triton also ignores.

    Triton compares with ``true`` and ``false``, in lower case only, and each setting has one value with an effect.
    """
    chosen: dict[str, Any] = {}
    ignored = []
    for name, value in settings:
        if (name, value) in _METRICS_SWITCHES:
            chosen[name] = value == "true"
        elif name == "summary_quantiles":
            quantiles = {pair: _quantile(pair) for pair in value.split(",")}
            if valid := tuple(quantile for quantile in quantiles.values() if quantile is not None):
                chosen["quantiles"] = valid
            ignored += [f"{name}={pair}" for pair, quantile in quantiles.items() if quantile is None]
        elif (name, value) not in _METRICS_DEFAULTS:
            ignored.append(f"{name}={value}")
    return chosen, ignored


def _quantile(pair: str) -> float | None:
    """Return the quantile of ``<quantile>:<error>``; None if it is invalid."""
    numbers = _QUANTILE.match(pair)
    quantile = float(numbers[1]) if numbers else math.inf
    return quantile if quantile <= 1 else None


def cache_setting(text: str) -> tuple[str, str, str]:
    """Parse ``<cache name>,<setting>=<value>``."""
    cache, comma, rest = text.partition(",")
    name, _, value = rest.partition("=")
    form = f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}"
    _require(bool(comma and cache), f"No cache specified. {form}".replace("'", ""))
    _require(bool(name and value), form)
    return cache, name, value


def optionally_named(flag: str, what: str, first: str, text: str) -> tuple[str, str, str]:
    """Parse ``<first>,<setting>=<value>``, or ``<setting>=<value>`` with an empty first."""
    group, comma, rest = text.partition(",") if "," in text else ("", "", text)
    _require(
        bool(group) or not comma,
        f"No {what} specified. --{flag} option format is <{first}>,<setting>=<value> or <setting>=<value>. Got {text}",
    )
    name, _, value = rest.partition("=")
    _require(bool(name and value), f"--{flag} option format is '<{first}>,<setting>=<value>'. Got {text}")
    return group, name, value


def trace_level(text: str) -> str:
    """Parse ``OFF``, ``TIMESTAMPS`` or ``TENSORS``, or a deprecated name of one of them."""
    _require(text.lower() in _TRACE_LEVELS, f"invalid value for trace level option: {text}")
    return _TRACE_LEVELS[text.lower()]


def trace_mode(text: str) -> str:
    """Parse ``triton`` or ``opentelemetry``."""
    mode, modes = text.lower(), 'Available options are "triton" and "opentelemetry"'
    _require(mode in ("triton", "opentelemetry"), f"invalid value for trace mode option: {mode}. {modes}")
    return mode


def host_policy(text: str) -> tuple[str, str, str]:
    """Parse ``<policy name>,<setting>=<value>``."""
    policy, name, value = _three("host-policy", "policy name", ",", text)
    _require(
        name in ("numa-node", "cpu-cores"),
        f"Unsupported host policy setting '{name}' is specified, supported settings are 'numa-node', 'cpu-cores'",
    )
    return policy, name, value


def restriction(flag: str, kind: str, text: str) -> list[tuple[str, str, str]]:
    """Parse ``<protocol>[,<protocol>...]:<key>=<value>``."""
    names, key, value = _three(flag, "config name", ":", text)
    for protocol in names.split(","):
        _require(protocol in PROTOCOLS, f"unknown restricted {kind} '{protocol}' ")
    return [(protocol, key, value) for protocol in names.split(",")]


def resource(text: str) -> Resource:
    """Parse ``<resource name>:<count>[:<device>]``."""
    name, *numbers = text.split(":")
    _require(
        len(numbers) in (1, 2),
        "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
        f"Got {text}",
    )
    return Resource(name, *map(integer, numbers))


def _three(flag: str, what: str, separator: str, text: str) -> tuple[str, str, str]:
    first, _, rest = text.partition(separator)
    second, _, third = rest.partition("=")
    is_complete = bool(first and second and third)
    _require(is_complete, f"--{flag} option format is '<{what}>{separator}<setting>=<value>'. Got {text}")
    return first, second, third


def _number(kind: Callable[[str], T], text: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text}") from None


def _require(holds: bool, failure: str) -> None:
    """Refuse a value unless a condition holds."""
    if not holds:
        raise argparse.ArgumentTypeError(failure)
