"""A configuration with some fields set, named as users name them.

``max_queue_delay_microseconds`` is enough to say which field is meant: a name is looked for where it
can stand, from the outside in, and only in the scheduling choice that the configuration has made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import Message

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import did_you_mean
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.normalize import without_defaults

_CHOICES = ("dynamic_batching", "sequence_batching")
_STRATEGIES = ("direct", "oldest")


def with_overrides(config: pb.ModelConfig, fields: Mapping[str, Any]) -> pb.ModelConfig:
    """A copy of a configuration with fields changed, as one would write it.

    Parameters
    ----------
    config : ModelConfig
    fields : mapping of str to Any
        Fields of the configuration itself, of its ``dynamic_batching`` or ``sequence_batching``, of the
        latter's strategy, of the default queue policy, or (``count``, ``kind``) of every instance
        group. Values are numbers, texts, lists, or dicts of fields.

    Raises
    ------
    InvalidArgumentError
        If no such field can stand in this configuration, or the value does not fit.

    Examples
    --------
    >>> text = with_overrides(pb.ModelConfig(dynamic_batching={}), {"max_queue_delay_microseconds": 5})
    >>> text.dynamic_batching.max_queue_delay_microseconds
    5
    """
    # A default that follows from another field, such as preferred sizes from max_batch_size, follows its edit.
    changed = without_defaults(config)
    for name, value in fields.items():
        places = [each for each in _places(changed) if name in each[0].DESCRIPTOR.fields_by_name]
        if not places:
            known = {each for place, _ in _places(changed) for each in place.DESCRIPTOR.fields_by_name}
            of = f" of model '{config.name}'" if config.name else ""
            raise InvalidArgumentError(
                f"the configuration{of} has no field '{name}' to edit{did_you_mean(name, known)}"
            )
        innermost = places[0][1]
        for message, depth in places:
            if depth == innermost:
                message.ClearField(name)
                set_fields(message, {name: value})
    return changed


def _places(config: pb.ModelConfig) -> Iterator[tuple[Message, int]]:
    """Where a field may stand, each with a depth that instance groups share."""
    yield config, 0
    for choice in _CHOICES:
        if not config.HasField(choice):
            continue
        batching = getattr(config, choice)
        yield batching, 1
        for strategy in _STRATEGIES:
            if choice == "sequence_batching" and batching.HasField(strategy):
                yield getattr(batching, strategy), 2
        if choice == "dynamic_batching":
            yield batching.default_queue_policy, 3
    if not config.instance_group:
        config.instance_group.add(count=1)
    for group in config.instance_group:
        yield group, 4
