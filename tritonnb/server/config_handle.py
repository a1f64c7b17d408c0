"""``server["digits"].config``: a model's configuration in code, to change and apply live."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format

from tritonnb.core.failures import with_short_traceback
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
    """An editable copy of a model's configuration; of one that failed to load, of what its file says.

    Its attributes are the fields of ``inference.ModelConfig``; nothing happens until `apply`.

    Examples
    --------
    >>> config = server["dense"].config  # doctest: +SKIP
    >>> config.dynamic_batching.max_queue_delay_microseconds = 5000  # doctest: +SKIP
    >>> print(config.diff())  # doctest: +SKIP
    >>> config.apply()  # doctest: +SKIP
    'in place'
    """

    def __init__(self, server: Server, name: str) -> None:
        object.__setattr__(self, "_server", server)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_message", self._running())

    def __getattr__(self, field: str) -> Any:
        self._must_have(field)
        return getattr(self._message, field)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(each.name for each in pb.ModelConfig.DESCRIPTOR.fields)]

    def __setattr__(self, field: str, value: Any) -> None:
        if field in vars(type(self)):
            object.__setattr__(self, field, value)
            return
        self._must_have(field)
        changed = _copy(self._message)  # what fails half-way changes nothing
        _assign(changed, field, value)
        self._message.CopyFrom(changed)

    @property
    def text(self) -> str:
        """The configuration as *config.pbtxt*; set it to any form that `simulate` takes."""
        return _to_text(self._message)

    @text.setter
    def text(self, text: str) -> None:
        self._message.CopyFrom(read_config(text, name=""))

    def to_dict(self) -> dict[str, Any]:
        """The configuration as the config endpoint shows it, defaults included."""
        return config_to_dict(self._message)

    @with_short_traceback
    def diff(self) -> str:
        """What `apply` would change, as a unified diff of *config.pbtxt*; empty for nothing."""
        before, after = _to_text(self._running()), self.text
        return "".join(
            difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), "running", "edited")
        )

    def revert(self) -> None:
        """Forget the changes that were not applied."""
        self._message.CopyFrom(self._running())

    @with_short_traceback
    def apply(self) -> str:
        """Make the running model use this configuration; no request in flight is lost.

        Returns
        -------
        str
            ``"unchanged"``; ``"in place"`` when only the scheduling changed, so that the model was
            not loaded again; ``"reloaded"`` when a new copy of the model took over; ``"loaded"`` when it had
            failed to load.

        Raises
        ------
        TritonError
            If the configuration is refused; the model goes on as it was. The error's `problems` have the lines of
            `text`.
        """
        config = _copy(self._message)
        with ProblemContext(config, self.text), raised_here():
            done: str = self._server.run(self._server.engine.apply(self._name, config))
        return done

    def __repr__(self) -> str:
        return self.text

    def _must_have(self, field: str) -> None:
        if field.startswith("_") or not hasattr(self._message, field):
            raise AttributeError(f"a model configuration has no field '{field}'{did_you_mean(field, dir(self))}")

    def _running(self) -> pb.ModelConfig:
        engine = self._server.engine
        if not self._server.call(engine.failure, self._name):
            return _copy(self._server.call(engine.model, self._name).config)
        path = self._server.call(engine.config_path, self._name)
        try:
            return parse_text(path.read_bytes()).config
        except (OSError, ConfigSyntaxError):  # whatever is wrong with it, another text can take its place
            return pb.ModelConfig()


def _assign(message: pb.ModelConfig, field: str, value: Any) -> None:
    """Set a field to a value as JSON has it, or to messages, as they are read from another configuration."""
    message.ClearField(field)
    set_fields(message, {field: value})


def _copy(message: pb.ModelConfig) -> pb.ModelConfig:
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    return copy


def _to_text(message: pb.ModelConfig) -> str:
    text: str = text_format.MessageToString(message)
    return text
