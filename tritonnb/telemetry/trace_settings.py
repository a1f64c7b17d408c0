"""The settings of the trace extension, for the server and for single models.

A setting that is not set for a model is that of the server, and a setting that is not set for the server is that of
the command line. Every update starts a new `TraceSetting`, whose counts start at 0; traces in progress end under the
one that sampled them.

Implements the trace extension and the ``--trace-config`` of Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.strtol import leading_number

LEVELS = ("TIMESTAMPS", "TENSORS")
OPENTELEMETRY = "opentelemetry"
_MAX_INT32 = 2**31 - 1
_UNLIMITED = -1
#: The value of a setting that a client changes; None restores the setting of the level above.
TraceValue = frozenset[str] | int | None
#: Fields of `TraceOptions` by name.
TraceChanges = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The requests and activities that are traced.

    Attributes
    ----------
    file : str
        Path of the trace file; with a log frequency or a count, the prefix of the paths.
    levels : frozenset of str
        ``TIMESTAMPS``, ``TENSORS``, or both; empty for ``OFF``.
    rate : int
        One of this many requests is traced.
    count : int
        Number of requests that are still to be traced; -1 for no limit.
    log_frequency : int
        Number of traces per file; 0 for one file, written at the end.
    mode : str
        ``triton`` writes files, ``opentelemetry`` sends spans to a collector.
    exporting : tuple of (setting, value)
        The settings of the mode ``opentelemetry``: `tritonnb.telemetry.spans`.

    Examples
    --------
    >>> TraceOptions(file="trace.json", levels=frozenset({"TIMESTAMPS"}), rate=1).mode
    'triton'
    >>> options = TraceOptions(file="trace.json", levels=frozenset({"TIMESTAMPS"}), rate=1)
    >>> options.check()
    >>> options.to_dict()["trace_level"], options.to_dict()["trace_rate"]
    (['TIMESTAMPS'], '1')
    """

    file: str = ""
    levels: frozenset[str] = frozenset()
    rate: int = 1000
    count: int = _UNLIMITED
    log_frequency: int = 0
    mode: str = "triton"
    exporting: tuple[tuple[str, str], ...] = ()

    def check(self) -> None:
        """Check that requests can be traced with these settings.

        Raises
        ------
        InvalidArgumentError
            If a level is set, but nothing can be traced.
        """
        reason = ""
        if not self.rate:
            reason = "sample rate must be non-zero"
        elif not self.file and self.mode != OPENTELEMETRY:
            reason = "trace file name is not given"
        if self.levels and (reason or not self.count):
            raise InvalidArgumentError(f"Attempting to set invalid trace setting :{reason}")

    def to_dict(self) -> dict[str, str | list[str]]:
        """Return the settings as the extension returns them: numbers are strings."""
        files = {"log_frequency": str(self.log_frequency), "trace_file": self.file}
        return {
            "trace_level": [level for level in LEVELS if level in self.levels] or ["OFF"],
            "trace_rate": str(self.rate),
            "trace_count": str(self.count),
            **({} if self.mode == OPENTELEMETRY else files),
            "trace_mode": self.mode,
            **dict(self.exporting),
        }


@dataclass(slots=True)
class TraceSetting:
    """Current options, and the traces taken with them.

    Attributes
    ----------
    options : TraceOptions
        Its ``count`` is the number of remaining traces.
    seen, sampled : int
        Number of requests, and of those that were traced.
    written : list of str
        Traces that have not been written to a file, as JSON without the brackets of the list.
    collected : int
        Number of traces that have ended.
    """

    options: TraceOptions
    seen: int = 0
    sampled: int = 0
    collected: int = 0
    written: list[str] = field(default_factory=list)

    def sample(self, requested: bool = False) -> bool:
        """Return whether to trace the next request; always if its client ``requested`` it."""
        options = self.options
        if not options.levels or not (options.count or requested):
            return False
        self.seen += 1
        in_turn = bool(options.rate and options.count and not self.seen % options.rate)
        if in_turn and options.count > 0:
            self.options = replace(options, count=options.count - 1)
        self.sampled += in_turn or requested
        return in_turn or requested

    @property
    def due(self) -> bool:
        """True if the collected traces are due to be written to a file."""
        complete = not self.options.count and self.collected == self.sampled
        frequency = self.options.log_frequency
        return bool(self.written) and (complete or (frequency > 0 and len(self.written) >= frequency))


class TraceSettings:
    """All settings of a server.

    Parameters
    ----------
    startup : TraceOptions
    retired : callable
        ``retired(setting)`` is called when a setting is replaced.
    """

    def __init__(self, startup: TraceOptions, retired: Callable[[TraceSetting], None]) -> None:
        self._startup = startup
        self._retired = retired
        self._changes: dict[str, TraceChanges] = {}  # by model; those of the server have an empty name
        self._settings = {"": TraceSetting(startup)}

    def for_model(self, model: str = "") -> TraceSetting:
        """Return the current setting of a model; of the server if the name is empty."""
        return self._settings.get(model, self._settings[""])

    def all(self) -> Iterable[TraceSetting]:
        """Return all current settings."""
        return self._settings.values()

    def update(self, model: str, changes: TraceChanges) -> None:
        """Change some settings of a model, or of the server with an empty name.

        Parameters
        ----------
        model : str
        changes : mapping
            Fields of `TraceOptions`; None restores the setting of the level above.

        Raises
        ------
        InvalidArgumentError
            If nothing could be traced; nothing is changed then.
        """
        after = {name: value for name, value in {**self._specified(model), **changes}.items() if value is not None}
        self._options(model, after).check()
        self._put(model, after)
        for name in [] if model else [name for name in self._settings if name]:
            self._put(name, self._specified(name))

    def _options(self, model: str, specified: TraceChanges) -> TraceOptions:
        return replace(self._settings[""].options if model else self._startup, **specified)

    def _specified(self, model: str) -> TraceChanges:
        """Return the settings of a model or of the server; ``count`` is the remaining number."""
        before = self._changes.get(model, {})
        return {**before, "count": self.for_model(model).options.count} if "count" in before else before

    def _put(self, model: str, specified: TraceChanges) -> None:
        if model in self._settings:
            self._retired(self._settings[model])
        if model and not specified:
            self._changes.pop(model, None)
            self._settings.pop(model, None)
        else:
            self._changes[model] = specified
            self._settings[model] = TraceSetting(self._options(model, specified))


def levels_of(names: Iterable[str]) -> frozenset[str] | None:
    """Return the levels that a client names; None if none of them exists.

    Raises
    ------
    InvalidArgumentError
        If ``OFF`` is combined with other levels.
    """
    listed = list(names)
    if "OFF" in listed:
        if len(listed) > 1:
            raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
        return frozenset()
    return frozenset(entry for entry in listed if entry in LEVELS) or None


def number_of(setting: str, text: str, separator: str = " ") -> int:
    """Parse a number that a client sent.

    Parameters
    ----------
    setting : str
        ``trace_rate``, ``trace_count`` or ``log_frequency``.
    text : str
        Characters after the digits are ignored.
    separator : str
        Precedes the value in one of the messages, which differ between the protocols.

    Raises
    ------
    InvalidArgumentError
        If it is not a number, or out of the setting's range.
    """
    number = leading_number(text)
    if number is None:
        raise InvalidArgumentError(f"Unable to parse '{setting}', got: {text}")
    signed = setting == "trace_count"
    if not -_MAX_INT32 - 1 <= number <= _MAX_INT32:
        lowest, highest = (_UNLIMITED, _MAX_INT32) if signed else (0, 2**32 - 1)
        raise InvalidArgumentError(
            f"Unable to parse '{setting}', value is out of range [ {lowest}, {highest} ], got: {text}"
        )
    if signed and number < _UNLIMITED:
        raise InvalidArgumentError(
            f"Unable to parse '{setting}'. Expecting value >= {_UNLIMITED}, got:{separator}{text}"
        )
    return number if signed else number % 2**32
