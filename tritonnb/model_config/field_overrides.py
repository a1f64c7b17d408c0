"""Setting fields of a configuration by their names alone.

``max_queue_delay_microseconds`` identifies a field without its path: the name is searched for in the configuration,
then in the messages below it, among the scheduling settings only in those that the configuration has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf.message import Message

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import did_you_mean
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.normalize import without_defaults

_CHOICES = ("dynamic_batching", "sequence_batching")
_STRATEGIES = ("direct", "oldest")


def with_overrides(config: pb.ModelConfig, fields: Mapping[str, object]) -> pb.ModelConfig:
    """A copy of a configuration with some fields changed, without the defaults that normalising adds.

    Parameters
    ----------
    config : ModelConfig
    fields : mapping of str to object
        Fields of the configuration itself, of its ``dynamic_batching`` or ``sequence_batching``, of the
        latter's strategy, of the default queue policy, or (``count``, ``kind``) of every instance
        group. Values are numbers, strings, lists, or dicts of fields.

    Raises
    ------
    InvalidArgumentError
        If the configuration has no such field, the value has the wrong type, or ``count`` is less than 1.

    Examples
    --------
    >>> text = with_overrides(pb.ModelConfig(dynamic_batching={}), {"max_queue_delay_microseconds": 5})
    >>> text.dynamic_batching.max_queue_delay_microseconds
    5
    """
    # Defaults derived from an edited field, such as preferred sizes from max_batch_size, must be derived again.
    changed = without_defaults(config)
    for name, value in fields.items():
        places = _places_of(name, changed)
        if not places:
            model = f"model '{config.name}': " if config.name else ""
            raise InvalidArgumentError(f"{model}{_missing(name, changed)}")
        for message in places:
            message.ClearField(name)
            set_fields(message, {name: value})
            if isinstance(message, pb.ModelInstanceGroup) and name == "count" and message.count < 1:
                raise InvalidArgumentError(f"count expected a number of instances of at least 1, got {value!r}")
    return changed


def _missing(name: str, config: pb.ModelConfig) -> str:
    """Say why a configuration has no place for a field."""
    for choice in _CHOICES:
        if name in pb.ModelConfig.DESCRIPTOR.fields_by_name[choice].message_type.fields_by_name:
            return f"field '{name}' expected a configuration with {choice}, got one without it"
    known = {field for part, _ in _places(config) for field in part.DESCRIPTOR.fields_by_name}
    known.update(pb.ModelInstanceGroup.DESCRIPTOR.fields_by_name)
    return f"the configuration has no field '{name}'{did_you_mean(name, known)}"


def _places_of(name: str, config: pb.ModelConfig) -> list[Message]:
    """The outermost messages that have a field; an instance group is added if only such a group can have it."""
    places = [(part, depth) for part, depth in _places(config) if name in part.DESCRIPTOR.fields_by_name]
    if places:
        return [part for part, depth in places if depth == places[0][1]]
    if config.instance_group or name not in pb.ModelInstanceGroup.DESCRIPTOR.fields_by_name:
        return []
    return [config.instance_group.add(count=1)]


def _places(config: pb.ModelConfig) -> Iterator[tuple[Message, int]]:
    """The messages that may have a field, with their depth; all instance groups have the same depth."""
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
    for group in config.instance_group:
        yield group, 4
