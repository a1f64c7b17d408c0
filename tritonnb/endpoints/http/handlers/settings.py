"""The routes of the trace and logging extensions: settings can be read, and changed while the server runs."""

from __future__ import annotations

from collections.abc import Mapping

from tritonnb.core.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from tritonnb.endpoints.http import json_fields
from tritonnb.endpoints.http.handlers.metadata import Handler
from tritonnb.telemetry.log_settings import FORMATS
from tritonnb.telemetry.trace_settings import TraceValue, levels_of, number_of


class TraceSettingHandler(Handler):
    """``/v2/trace/setting`` and ``/v2/models/M/trace/setting``."""

    def get(self, model: str = "") -> None:
        """Return the current settings."""
        self._check(model)
        self.respond_json(self.engine.tracer.settings.for_model(model).options.to_dict())

    async def post(self, model: str = "") -> None:
        """Change settings."""
        self._check(model)
        changes = await self.json_body(lambda body: _trace_changes(body if isinstance(body, dict) else {}))
        self.engine.tracer.update(model, changes)
        self.get(model)

    def _check(self, model: str) -> None:
        if model and not self.engine.is_loaded(model):
            raise InvalidArgumentError(f"Request for unknown model : {model}")


class LoggingHandler(Handler):
    """``/v2/logging``."""

    def get(self) -> None:
        """Return the current settings."""
        self.respond_json(self.engine.options.log.to_dict())

    async def post(self) -> None:
        """Change settings, one after the other: settings before an invalid setting stay changed."""
        changes = await self.json_body(
            lambda body: (
                {name: value for name, value in body.items() if value is not None} if isinstance(body, dict) else {}
            )
        )
        settings = self.engine.options.log
        # A client that may write a file of its choice would have the rights of the server.
        if "log_file" in changes:
            raise UnsupportedError("log file location can not be updated through network protocol")
        for name in ("log_info", "log_warning", "log_error"):
            if name in changes:
                setattr(settings, name, json_fields.boolean(changes[name]))
        if "log_verbose_level" in changes:
            settings.set_verbose_level(json_fields.unsigned(changes["log_verbose_level"]))
        if "log_format" in changes:
            log_format = json_fields.string(changes["log_format"])
            if log_format not in FORMATS:
                # 503 and two dashes, as recorded: Triton probably reuses the check of its command line. gRPC has
                # another text and status.
                raise UnavailableError(f"invalid argument for --log_format, got: {log_format}")
            settings.log_format = log_format
        self.get()


def _trace_changes(body: Mapping[str, object]) -> dict[str, TraceValue]:
    """Return the options that a request changes; None for an option that it clears."""
    if "trace_file" in body:
        raise UnsupportedError("trace file location can not be updated through network protocol")
    changes: dict[str, TraceValue] = {}
    if "trace_level" in body:
        names = body["trace_level"]
        levels = None if names is None else levels_of(map(json_fields.string, json_fields.array(names)))
        if names is None or levels is not None:
            changes["levels"] = levels
    for name, field in (("trace_rate", "rate"), ("trace_count", "count"), ("log_frequency", "log_frequency")):
        if name in body:
            text = body[name]
            # Over HTTP, Triton's text about a low count has no space before the number.
            changes[field] = None if text is None else number_of(name, json_fields.string(text), separator="")
    return changes
