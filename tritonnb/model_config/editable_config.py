"""A configuration whose fields are attributes, to change it and compare it with the running one."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod

from google.protobuf import text_format

from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.json_types import JsonDict
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.editable_fields import EditableFields
from tritonnb.model_config.normalize import without_outdated_sizes
from tritonnb.model_config.read import read_config
from tritonnb.model_config.to_json import config_to_dict


@with_short_tracebacks
class EditableConfig(EditableFields, ABC):
    """An editable copy of a model's configuration; its attributes are the fields of ``inference.ModelConfig``.

    A subclass sets its own attributes with ``object.__setattr__`` and then calls this constructor.
    """

    _message: pb.ModelConfig

    def __init__(self) -> None:
        super().__init__(self._running(), "")

    @abstractmethod
    def _running(self) -> pb.ModelConfig:
        """A copy of the running configuration."""

    def __setattr__(self, field: str, value: object) -> None:
        if isinstance(getattr(type(self), field, None), property):
            object.__setattr__(self, field, value)
        else:
            super().__setattr__(field, value)

    def edited(self) -> pb.ModelConfig:
        """The configuration to apply; preferred sizes that were derived from a larger batch size are derived again."""
        return without_outdated_sizes(self._message, self._running())

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


def copy_of(message: pb.ModelConfig) -> pb.ModelConfig:
    """A copy of a configuration."""
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    return copy


def _to_text(message: pb.ModelConfig) -> str:
    text: str = text_format.MessageToString(message)
    return text
