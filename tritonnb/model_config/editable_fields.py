"""The fields of a configuration as attributes that can be set to Python values, at every depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, overload

from google.protobuf.message import Message

from tritonnb.core.suggestions import did_you_mean
from tritonnb.model_config.json_config import set_fields


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

    def __eq__(self, other: object) -> bool:
        return bool(self._messages == raw(other))

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return repr(self._messages)


def raw(value: Any) -> Any:
    """The message, or the list of messages, behind an editable one; other values themselves."""
    if isinstance(value, EditableFields):
        return value._message
    if isinstance(value, EditableList):
        return value._messages
    return [raw(element) for element in value] if isinstance(value, list) else value
