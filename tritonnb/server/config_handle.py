"""``server["digits"].config``: the configuration of a model, to change and apply."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format

from tritonnb.core.failures import with_short_traceback
from tritonnb.core.json_types import JsonDict
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import did_you_mean
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.parse import ConfigSyntaxError, parse_text
from tritonnb.model_config.read import read_config
from tritonnb.model_config.to_json import config_to_dict
from tritonnb.runtime.repository.load_log import raised_here

if TYPE_CHECKING:
    from tritonnb.server.server import Server


class ConfigHandle:
    """An editable copy of a model's configuration, or of its file if the model failed to load.

    The attributes are the fields of ``inference.ModelConfig``. Changes take effect with `apply`.

    Examples
    --------
    >>> config = server["dense"].config  # doctest: +SKIP
    >>> config.dynamic_batching.max_queue_delay_microseconds = 5000  # doctest: +SKIP
    >>> print(config.diff())  # doctest: +SKIP
    >>> config.apply()  # doctest: +SKIP
    'in place'
    """

    _server: Server
    _name: str
    _message: pb.ModelConfig

    def __init__(self, server: Server, name: str) -> None:
        object.__setattr__(self, "_server", server)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_message", self._running())

    def __getattr__(self, field: str) -> Any:
        self._must_have(field)
        return getattr(self._message, field)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(field.name for field in pb.ModelConfig.DESCRIPTOR.fields)]

    def __setattr__(self, field: str, value: object) -> None:
        if field in vars(type(self)):
            object.__setattr__(self, field, value)
            return
        self._must_have(field)
        changed = _copy(self._message)  # an error leaves the message unchanged
        _assign(changed, field, value)
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

    @with_short_traceback
    def apply(self) -> str:
        """Apply this configuration to the running model; no accepted request is lost.

        Returns
        -------
        str
            ``"unchanged"``; ``"in place"`` if only the scheduling changed, so that the model was not loaded again;
            ``"reloaded"`` if a new copy of the model replaced it; ``"loaded"`` if it had failed to load before.

        Raises
        ------
        TritonError
            If the configuration is invalid; the model continues unchanged. The `problems` of the error have lines of
            `text`.
        """
        config = _copy(self._message)
        with ProblemContext(config, self.text), raised_here():
            outcome: str = self._server.run(self._server.engine.apply(self._name, config))
        return outcome

    def __repr__(self) -> str:
        return self.text

    def _must_have(self, field: str) -> None:
        if field.startswith("_") or not hasattr(self._message, field):
            raise AttributeError(
                f"model configuration: expected a field of ModelConfig, got '{field}'{did_you_mean(field, dir(self))}"
            )

    def _running(self) -> pb.ModelConfig:
        engine = self._server.engine
        if not self._server.call(engine.failure, self._name):
            return _copy(self._server.call(engine.model, self._name).config)
        path = self._server.call(engine.config_path, self._name)
        try:
            return parse_text(path.read_bytes()).config if path is not None else pb.ModelConfig()
        except (OSError, ConfigSyntaxError):  # the file is invalid: start with an empty configuration
            return pb.ModelConfig()


def _assign(message: pb.ModelConfig, field: str, value: object) -> None:
    """Set a field to a value in its JSON form, or to messages of another configuration."""
    message.ClearField(field)
    set_fields(message, {field: value})


def _copy(message: pb.ModelConfig) -> pb.ModelConfig:
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    return copy


def _to_text(message: pb.ModelConfig) -> str:
    text: str = text_format.MessageToString(message)
    return text
