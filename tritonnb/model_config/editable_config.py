"""A configuration that Python code changes: its fields are attributes, or keyword arguments without their paths."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, overload

from google.protobuf import text_format
from google.protobuf.message import Message

from tritonnb.core.copies import OfThisProcess
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.json_types import JsonDict
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import did_you_mean
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.normalize import without_defaults, without_outdated_sizes
from tritonnb.model_config.read import read_config
from tritonnb.model_config.to_json import message_to_dict


class EditableFields:
    """A message of a configuration. Its attributes are its fields, and the methods of the message.

    A field can be set to a value in its JSON form, ``preferred_batch_size = [4, 8]``, or to messages; an error leaves
    it unchanged.

    Parameters
    ----------
    message : Message
    path : str
        Path of the message in the configuration, for error messages.

    Examples
    --------
    >>> from tritonnb.core.protobuf import model_config_pb2 as pb
    >>> config = EditableFields(pb.ModelConfig(instance_group=[{}]), "")
    >>> config.dynamic_batching.preferred_batch_size = [4, 8]
    >>> config.instance_group[0].gpus = [0, 1]
    >>> config.dynamic_batching.preferred_batch_size, config.instance_group[0].gpus
    ([4, 8], [0, 1])
    """

    _message: Message
    _path: str

    def __init__(self, message: Message, path: str) -> None:
        object.__setattr__(self, "_message", message)
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not hasattr(self._message, name):
            raise self._no_field(name)
        value = getattr(self._message, name)
        if callable(value):
            return lambda *arguments: value(*map(raw, arguments))
        path = f"{self._path}.{name}".lstrip(".")
        if isinstance(value, Message):
            return EditableFields(value, path)
        return EditableList(value, path) if hasattr(value, "add") else value

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._message.DESCRIPTOR.fields_by_name:
            raise self._no_field(name)
        changed = type(self._message)()
        set_fields(changed, {name: raw(value)}, self._path)  # an error leaves the message unchanged
        self._message.SetInParent()
        self._message.ClearField(name)
        self._message.MergeFrom(changed)

    def _no_field(self, name: str) -> AttributeError:
        kind = self._message.DESCRIPTOR.name
        where = f", field '{self._path}'" if self._path else ""
        return AttributeError(
            f"model configuration{where}: expected a field of {kind}, got '{name}'{did_you_mean(name, dir(self))}"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._message.DESCRIPTOR.fields_by_name]

    def __eq__(self, other: object) -> bool:
        return bool(self._message == raw(other))

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return str(self._message)


class EditableList:
    """A repeated field of messages, with the methods of protobuf's, such as ``append``, ``add`` and ``extend``.

    Parameters
    ----------
    messages : RepeatedCompositeContainer
    path : str
        Path of the field in the configuration, for error messages.
    """

    def __init__(self, messages: Any, path: str) -> None:
        self._messages = messages
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also of a copy that has no contents yet
            raise AttributeError(name)
        method = getattr(self._messages, name)
        return lambda *arguments, **fields: method(*map(raw, arguments), **fields)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> EditableFields: ...
    @overload
    def __getitem__(self, index: slice) -> list[EditableFields]: ...
    def __getitem__(self, index: int | slice) -> EditableFields | list[EditableFields]:
        if isinstance(index, slice):
            return list(self)[index]
        return EditableFields(self._messages[index], f"{self._path}[{index}]")

    def __delitem__(self, index: int | slice) -> None:
        del self._messages[index]

    def __iter__(self) -> Iterator[EditableFields]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # protobuf's container has no copies

    def __eq__(self, other: object) -> bool:
        return bool(self._messages == raw(other))

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return repr(self._messages)


def raw(value: Any) -> Any:
    """Return the message, or the list of messages, behind an editable wrapper; other values themselves."""
    if isinstance(value, EditableFields):
        return value._message
    if isinstance(value, EditableList):
        return value._messages
    return [raw(element) for element in value] if isinstance(value, list) else value


@with_short_tracebacks
class EditableConfig(EditableFields, OfThisProcess, ABC):
    """An editable copy of a model's configuration; its attributes are the fields of ``inference.ModelConfig``.

    A subclass sets its own attributes with ``object.__setattr__`` and then calls this constructor.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     config = server["double"].config
    ...     config.max_batch_size = 4
    ...     print([line for line in config.diff().splitlines() if line[0] in "+-"])
    ...     print(config.edited().max_batch_size, config.to_dict()["max_batch_size"])
    ...     config.revert()
    ...     print(config.max_batch_size, repr(config.diff()))
    ['--- running', '+++ edited', '-max_batch_size: 8', '+max_batch_size: 4']
    4 4
    8 ''
    """

    _message: pb.ModelConfig

    def __init__(self) -> None:
        super().__init__(self._running(), "")

    def _not_copied(self) -> tuple[str, str]:
        return f"configuration of model '{self._message.name}'", "copy its text (config.text)"

    @abstractmethod
    def _running(self) -> pb.ModelConfig:
        """Return a copy of the running configuration."""

    def __setattr__(self, field: str, value: object) -> None:
        if isinstance(getattr(type(self), field, None), property):
            object.__setattr__(self, field, value)
        else:
            super().__setattr__(field, value)

    def edited(self) -> pb.ModelConfig:
        """Return the configuration to apply; derived preferred sizes are derived again."""
        return without_outdated_sizes(self._message, self._running())

    @property
    def text(self) -> str:
        """The configuration as *config.pbtxt*; can be set to any form that `simulate` accepts."""
        return _to_text(self._message)

    @text.setter
    def text(self, text: str) -> None:
        self._message.CopyFrom(read_config(text, name=""))

    def to_dict(self) -> JsonDict:
        """Return the configuration as the config endpoint returns it, with defaults."""
        return message_to_dict(self._message)

    def diff(self) -> str:
        """Return the changes that `apply` would make, as a unified diff of *config.pbtxt*; empty if there are none."""
        before, after = _to_text(self._running()), self.text
        return "".join(
            difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), "running", "edited")
        )

    def revert(self) -> None:
        """Discard the changes that were not applied."""
        self._message.CopyFrom(self._running())

    def __repr__(self) -> str:
        return self.text


def _to_text(message: pb.ModelConfig) -> str:
    return str(text_format.MessageToString(message))


_CHOICES = ("dynamic_batching", "sequence_batching")
_STRATEGIES = ("direct", "oldest")


def with_overrides(config: pb.ModelConfig, fields: Mapping[str, object]) -> pb.ModelConfig:
    """Return a copy of a configuration with some fields changed, without the defaults that normalising adds.

    ``max_queue_delay_microseconds`` identifies a field without its path: the name is searched for in the configuration,
    then in the messages below it, among the scheduling settings only in those that the configuration has.

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
    """Explain why a configuration has no place for a field."""
    for choice in _CHOICES:
        if name in pb.ModelConfig.DESCRIPTOR.fields_by_name[choice].message_type.fields_by_name:
            return f"field '{name}' expected a configuration with {choice}, got one without it"
    known = {field for part, _ in _places(config) for field in part.DESCRIPTOR.fields_by_name}
    known.update(pb.ModelInstanceGroup.DESCRIPTOR.fields_by_name)
    return f"the configuration has no field '{name}'{did_you_mean(name, known)}"


def _places_of(name: str, config: pb.ModelConfig) -> list[Message]:
    """Return the outermost messages that have a field; an instance group is added if only such a group can have it."""
    places = [(part, depth) for part, depth in _places(config) if name in part.DESCRIPTOR.fields_by_name]
    if places:
        return [part for part, depth in places if depth == places[0][1]]
    if config.instance_group or name not in pb.ModelInstanceGroup.DESCRIPTOR.fields_by_name:
        return []
    return [config.instance_group.add(count=1)]


def _places(config: pb.ModelConfig) -> Iterator[tuple[Message, int]]:
    """Yield the messages that may have a field, with their depth; all instance groups have the same depth."""
    yield config, 0
    if config.HasField("dynamic_batching"):
        yield config.dynamic_batching, 1
        yield config.dynamic_batching.default_queue_policy, 3
    if config.HasField("sequence_batching"):
        yield config.sequence_batching, 1
        for strategy in _STRATEGIES:
            if config.sequence_batching.HasField(strategy):
                yield getattr(config.sequence_batching, strategy), 2
    for group in config.instance_group:
        yield group, 4
