"""A configuration that is applied over the network contains the model's previous configuration.

A server reports the configuration that a model runs, but not the one in its repository. The previous configuration is
therefore kept in a parameter of the applied one, where every connection finds it, even after the process that applied
it was killed. Backends ignore parameters that they do not know.
"""

from __future__ import annotations

import copy

from google.protobuf import json_format

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.normalize import without_defaults
from tritonnb.model_config.read import config_json

PARAMETER = "tritonnb.configuration_before"


def with_previous(config: pb.ModelConfig, previous: pb.ModelConfig) -> pb.ModelConfig:
    """Return a copy of a configuration that contains the model's previous configuration."""
    applied = copy.deepcopy(config)
    applied.parameters[PARAMETER].string_value = config_json(previous)
    return applied


def split(applied: pb.ModelConfig) -> tuple[pb.ModelConfig, pb.ModelConfig | None]:
    """Split a configuration into the part that the model runs, and the previous configuration if it was applied.

    Examples
    --------
    >>> running, previous = split(with_previous(pb.ModelConfig(name="b"), pb.ModelConfig(name="a")))
    >>> running.name, previous.name, len(running.parameters)
    ('b', 'a', 0)
    >>> split(pb.ModelConfig(name="b"))[1] is None
    True
    """
    if PARAMETER not in applied.parameters:
        return applied, None
    running = copy.deepcopy(applied)
    text = running.parameters.pop(PARAMETER).string_value
    try:
        previous: pb.ModelConfig = json_format.Parse(text, pb.ModelConfig(), ignore_unknown_fields=True)
    except json_format.ParseError:  # of another program
        return running, None
    return running, previous


def is_same(config: pb.ModelConfig, other: pb.ModelConfig) -> bool:
    """Return whether a server would run both in the same way, whichever defaults are written out."""
    return bool(without_defaults(config) == without_defaults(other))
