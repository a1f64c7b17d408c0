"""`Recording.debug`: step through the events of a recording as if the future were not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tritonnb.core.accessors import extensible
from tritonnb.core.copies import OfThisProcess
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestArrived, RequestCancelled, RequestRefused
from tritonnb.core.failures import with_short_traceback, with_short_tracebacks
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.conditions import Condition, Value
from tritonnb.lab.analysis.rule_table import RuleRow, rule_table
from tritonnb.lab.analysis.scheduler_replay import scheduler_replays
from tritonnb.lab.simulation.run import instance_count
from tritonnb.model_config.backend_selection import ENSEMBLE
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import RULES, explain, pluralize

#: The quantities that conditions may use, with their meanings.
QUANTITIES: Mapping[str, str] = {
    "time_ms": "milliseconds since the beginning of the recording",
    "event": "'arrived', 'sent', 'executed', 'refused' or 'cancelled'",
    "queue": "requests that wait",
    "rows": "rows that wait",
    "oldest_ms": "milliseconds that the oldest waiting request has waited; undefined if none waits",
    "idle": "idle instances",
    "busy": "busy instances",
    "batch": "rows of the batch that is sent or was executed; undefined at other events",
    "requests": "requests of that batch",
    "waited_ms": "milliseconds that the oldest request of the batch had waited; undefined at other events",
    "rule": "the rule that sent the batch, such as 'delay_exceeded'; undefined at other events",
    "refused": "requests that were refused so far",
}
_NAMES = {
    RequestArrived: "arrived", BatchSent: "sent", BatchExecuted: "executed", RequestRefused: "refused",
    RequestCancelled: "cancelled",
}  # fmt: skip
#: The quantities that are texts, and the texts that they may be.
_TEXTS = {"event": [*_NAMES.values()], "rule": [*RULES]}


@dataclass(frozen=True, slots=True)
class State:
    """The knowledge of the scheduler when an event happened, the event included.

    Attributes
    ----------
    quantities : dict
        By name: see `QUANTITIES`.
    waiting : tuple of RequestArrived
        In the order of their arrival.
    rules : list of RuleRow
        The rules of the scheduler with their numbers; empty if no request waits.
    running : tuple of BatchSent
    """

    quantities: Mapping[str, Value]
    waiting: tuple[RequestArrived, ...]
    rules: list[RuleRow]
    running: tuple[BatchSent, ...]


@with_short_traceback
def debug(rec: Recording) -> Debugger:
    """Step through the events, forwards and backwards, with the future hidden and with breakpoints.

    Returns
    -------
    Debugger
        A notebook shows it as a widget.

    Raises
    ------
    InvalidArgumentError
        If the recording is not of exactly one model with its configuration.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> debugger = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10)).debug()
    >>> debugger.step()
    True
    """
    return Debugger(rec)


@extensible
@with_short_tracebacks
class Debugger(OfThisProcess):
    """A debugger that steps through a model's events, forwards and backwards; displayed as a widget by a notebook.

    Parameters
    ----------
    rec : Recording
        Of one model, with its configuration.

    Attributes
    ----------
    position : int
        Number of events that have happened, from 0.
    events : list of Event
    begin_ns : int
        The time (monotonic clock, ns) that is shown as 0.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> rec = simulate("max_batch_size: 4 dynamic_batching { }", [(0, 1), (1000, 1), (2000, 1), (3000, 4)], fixed(5))
    >>> debugger = rec.debug()
    >>> debugger.add_breakpoint("batch > 1 and queue > 0")
    >>> debugger.resume()
    True
    >>> print(debugger.description)
    5.000 ms: batch 2 of 2 rows sent to simulated_0_0: 2 requests, 2 rows: the next request's 4 rows would go beyond \
max_batch_size 4; instance 0 just became free
    >>> debugger.remove_breakpoint("batch > 1 and queue > 0")
    >>> position = debugger.position
    >>> debugger.step(), debugger.position - position
    (True, 1)
    >>> debugger.reverse(), debugger.position
    (False, 0)
    >>> debugger.restart()
    >>> debugger.step(-1)
    False
    """

    view: ClassVar[Callable[..., Any]]

    def _not_copied(self) -> tuple[str, str]:
        return f"debugger of model '{self.model}'", "copy its recording, and open another one (recording.debug())"

    def __init__(self, rec: Recording) -> None:
        models = sorted({event.model for event in rec.events if type(event) in _NAMES})
        if len(models) != 1 or models[0] not in rec.configs:
            ensembles = [f"'{name}'" for name, config in rec.configs.items() if config.platform == ENSEMBLE]
            names = ", ".join(models) or ", ".join([f"the ensemble {name}" for name in ensembles]) or "none"
            remedy = "rec.for_model()" if models or not ensembles else "the recording of one of its steps"
            raise InvalidArgumentError(
                f"debug expected a recording of one model with its configuration, got {names}: use {remedy}"
            )
        self._rec = rec
        self.model = models[0]
        self.config: pb.ModelConfig = rec.configs[self.model]
        self.events: list[Event] = [event for event in rec.events if type(event) in _NAMES]
        self.begin_ns = rec.origin_ns
        self.position = 0
        self._conditions: list[Condition] = []
        self._replays = scheduler_replays(self.config, self.events)
        self._verdicts: list[Reason | None] = []  # after each event that the replays have followed

    # --- moving -------------------------------------------------------------------------------

    def step(self, count: int = 1) -> bool:
        """Go to the next event, or to the previous event (-1); return False at the end and the beginning.

        Parameters
        ----------
        count : int, optional
            Number of events; backwards if negative.
        """
        position = min(len(self.events), max(0, self.position + count))
        moved, self.position = position != self.position, position
        return moved

    def restart(self) -> None:
        """Go to the beginning, before the first event."""
        self.position = 0

    def resume(self, condition: str = "") -> bool:
        """Go forwards to the next event at which a breakpoint, or the given condition, is true.

        Returns
        -------
        bool
            False at the end: no further event satisfies one.

        Raises
        ------
        InvalidArgumentError
            If the condition is invalid.
        """
        return self._search(range(self.position + 1, len(self.events) + 1), condition, len(self.events))

    def reverse(self, condition: str = "") -> bool:
        """Like `resume`, backwards; False at the beginning.

        Parameters
        ----------
        condition : str, optional
            As for `resume`.
        """
        return self._search(range(self.position - 1, 0, -1), condition, 0)

    @property
    def breakpoints(self) -> list[str]:
        """The conditions of `add_breakpoint`."""
        return [condition.text for condition in self._conditions]

    @property
    def reached(self) -> list[tuple[int, str]]:
        """The breakpoints that the event satisfies: their numbers, from 1, and their conditions."""
        quantities = self._quantities[self.position - 1] if self.position else {}
        return [(number, holds.text) for number, holds in enumerate(self._conditions, 1) if holds(quantities)]

    def add_breakpoint(self, condition: str) -> None:
        """Stop `resume` and `reverse` at events that satisfy a condition.

        Parameters
        ----------
        condition : str
            Such as ``batch < 4 and queue > 2``: comparisons of `QUANTITIES`, numbers and quoted texts, combined by
            ``and``, ``or``, ``not`` and parentheses. A condition on a quantity that is undefined is not satisfied.

        Raises
        ------
        InvalidArgumentError
            If the condition is invalid.
        """
        parsed = Condition(condition, QUANTITIES.keys(), _TEXTS)
        if parsed not in self._conditions:
            self._conditions.append(parsed)

    def remove_breakpoint(self, condition: str) -> None:
        """Remove a condition; one that is not there is ignored.

        Parameters
        ----------
        condition : str
        """
        self._conditions = [known for known in self._conditions if known.text != condition]

    def _search(self, positions: range, condition: str, otherwise: int) -> bool:
        conditions = [Condition(condition, QUANTITIES.keys(), _TEXTS)] if condition else self._conditions
        for position in positions:
            quantities = self._quantities[position - 1]
            if any(holds(quantities) for holds in conditions):
                self.position = position
                return True
        self.position = otherwise
        return False

    # --- what is known ------------------------------------------------------------------------

    @property
    def event(self) -> Event | None:
        """The last event that happened; None at the beginning."""
        return self.events[self.position - 1] if self.position else None

    @property
    def description(self) -> str:
        """The event with its time, in one line."""
        event = self.event
        if event is None:
            return "Nothing has happened yet."
        return f"{(event.time_ns - self.begin_ns) / 1e6:.3f} ms: {_describe(event)}"

    @property
    def state(self) -> State:
        """The state at the event."""
        waiting: dict[int, RequestArrived] = {}
        running: dict[int, BatchSent] = {}
        for event in self.events[: self.position]:
            _advance(event, waiting, running)
        requests = tuple(waiting.values())
        quantities = self._quantities[self.position - 1] if self.position else {}
        return State(quantities, requests, rule_table(self.verdict), tuple(running.values()))

    @property
    def verdict(self) -> Reason | None:
        """The reason for the next batch if an instance is idle, or ``wait``; None if no request waits."""
        for position in range(len(self._verdicts), self.position):
            event, replay = self.events[position], self._replays[position]
            replay.follow(event)
            self._verdicts.append(replay.verdict(event.time_ns))
        return self._verdicts[self.position - 1] if self.position else None

    @property
    def simulated(self) -> bool:
        """True if the events come from a simulation."""
        return self._rec.simulated

    @property
    def past(self) -> Recording:
        """The events until now, as a recording."""
        return Recording(self.events[: self.position], {self.model: self.config}, simulated=self._rec.simulated)

    @cached_property
    def _quantities(self) -> list[dict[str, Value]]:
        return list(self._all_quantities())

    def _all_quantities(self) -> Iterator[dict[str, Value]]:
        """Yield the quantities at each event."""
        waiting: dict[int, RequestArrived] = {}
        running: dict[int, BatchSent] = {}
        sent: dict[int, BatchSent] = {}
        rows = refused = 0
        instances = max(len(self._rec.instances), instance_count(self.config))
        for event in self.events:
            left = _advance(event, waiting, running)
            rows += event.size if isinstance(event, RequestArrived) else -left
            refused += isinstance(event, RequestRefused)
            if isinstance(event, BatchSent):
                sent[event.batch] = event
            batch = sent.get(event.batch) if isinstance(event, BatchSent | BatchExecuted) else None
            oldest = next(iter(waiting.values()), None)
            yield {
                "time_ms": (event.time_ns - self.begin_ns) / 1e6,
                "event": _NAMES[type(event)],
                "queue": len(waiting),
                "rows": rows,
                "oldest_ms": None if oldest is None else (event.time_ns - oldest.time_ns) / 1e6,
                "idle": instances - len(running),
                "busy": len(running),
                "batch": None if batch is None else batch.size,
                "requests": None if batch is None else len(batch.members) - batch.members.count(None),
                "waited_ms": None if batch is None else batch.facts.get("waited_ns", 0) / 1e6,
                "rule": None if batch is None else batch.rule,
                "refused": refused,
            }

    # --- display ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        state = self.state
        lines = [f"event {self.position} of {len(self.events)}; {self.description}"]
        known = [f"{name} {value:g}" for name, value in state.quantities.items() if isinstance(value, int | float)]
        lines += [f"  {', '.join(known[1:])}"] if known else []
        for row in state.rules:
            lines.append(f"  {'>' if row.applies else ' '} {row.rule:<22}{row.numbers}")
        return "\n".join(lines)

    def _display_(self) -> object:
        return self.view()  # marimo shows this

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.view())


def _advance(event: Event, waiting: dict[int, RequestArrived], running: dict[int, BatchSent]) -> int:
    """Apply an event to the waiting requests and the running batches; return the rows that have left the queue."""
    if isinstance(event, RequestArrived):
        waiting[event.serial] = event
    elif isinstance(event, RequestRefused):
        request = waiting.pop(event.serial, None)
        return request.size if request else 0
    elif isinstance(event, BatchExecuted):
        running.pop(event.batch, None)
    elif isinstance(event, BatchSent):
        running[event.batch] = event
        left = [waiting.pop(serial, None) for serial in event.members if serial is not None]
        return sum(request.size for request in left if request)
    return 0


def _describe(event: Event) -> str:
    if isinstance(event, RequestArrived):
        priority = f", priority {event.priority}" if event.priority else ""
        of = f" of sequence {event.correlation_id}" if event.correlation_id else ""
        return f"request {event.id or event.serial}{of} arrives ({pluralize(event.size, 'row')}{priority})"
    if isinstance(event, BatchSent):
        why = explain(Reason(event.rule, event.facts))
        return f"batch {event.batch} of {pluralize(event.size, 'row')} sent to {event.instance}: {why}"
    if isinstance(event, BatchExecuted):
        duration = (event.exec_end_ns - event.exec_start_ns) / 1e6
        return f"batch {event.batch} executed on {event.instance} in {duration:.3f} ms"
    if isinstance(event, RequestRefused):
        return f"request {event.serial} refused: {event.message or 'cancelled'}"
    return f"request {event.serial} cancelled" if isinstance(event, RequestCancelled) else type(event).__name__
