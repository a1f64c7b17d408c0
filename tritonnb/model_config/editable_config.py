"""A configuration whose fields are attributes, to change it and compare it with the running one."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from typing import Any

from google.protobuf import text_format

from tritonnb.core.failures import with_short_traceback
from tritonnb.core.json_types import JsonDict
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import did_you_mean
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.read import read_config
from tritonnb.model_config.to_json import config_to_dict


class EditableConfig(ABC):
    """An editable copy of a model's configuration; its attributes are the fields of ``inference.ModelConfig``.

    A subclass sets its own attributes with ``object.__setattr__`` and then calls this constructor.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "_message", self._running())

    @abstractmethod
    def _running(self) -> pb.ModelConfig:
        """A copy of the running configuration."""

    def __getattr__(self, field: str) -> Any:
        self._must_have(field)
        return getattr(self._message, field)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(field.name for field in pb.ModelConfig.DESCRIPTOR.fields)]

    def __setattr__(self, field: str, value: object) -> None:
        if isinstance(getattr(type(self), field, None), property):
            object.__setattr__(self, field, value)
            return
        self._must_have(field)
        changed = copy_of(self._message)  # an error leaves the message unchanged
        changed.ClearField(field)
        set_fields(changed, {field: value})  # a value in its JSON form, or messages of another configuration
        self._message.CopyFrom(changed)

    @property
    def text(self) -> str:
        """The configuration as *config.pbtxt*; can be set to any form that `simulate` accepts."""
        return _to_text(self._message)

    @text.setter
    def text(self, text: str) -> None:
        self._message.CopyFrom(read_config(text, name=""))

    def to_dict(self) -> JsonDict:
        """The configuration as the config endpoint returns it, with defaults."""
        return config_to_dict(self._message)

    @with_short_traceback
    def diff(self) -> str:
        """The changes that `apply` would make, as a unified diff of *config.pbtxt*; empty if there are none."""
        before, after = _to_text(self._running()), self.text
        return "".join(
            difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), "running", "edited")
        )

    def revert(self) -> None:
        """Discard the changes that were not applied."""
        self._message.CopyFrom(self._running())

    def __repr__(self) -> str:
        return self.text

    def _must_have(self, field: str) -> None:
        if field.startswith("_") or not hasattr(self._message, field):
            raise AttributeError(
                f"model configuration: expected a field of ModelConfig, got '{field}'{did_you_mean(field, dir(self))}"
            )


def copy_of(message: pb.ModelConfig) -> pb.ModelConfig:
    """A copy of a configuration."""
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    return copy


def _to_text(message: pb.ModelConfig) -> str:
    text: str = text_format.MessageToString(message)
    return text
