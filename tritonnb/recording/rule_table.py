"""The rules of a scheduler with the numbers that they would compare at one moment.

For the dynamic batcher the scheduler's own functions are asked, with the requests that wait: what they would decide if
a payload were formed now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritonnb.core.events import RequestArrived
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.sequence_flags import SEQUENCE_START
from tritonnb.recording.sequences import slot_count
from tritonnb.scheduling import reasons
from tritonnb.scheduling.batch_pass import SEND, Pass, decide
from tritonnb.scheduling.direct import DirectSettings
from tritonnb.scheduling.from_config import dynamic_batcher_settings, sequence_batcher_settings
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.queue import PriorityQueue
from tritonnb.scheduling.reasons import pluralize
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.run import SimulatedRequest

#: The name of the row that says that the scheduler waits.
WAIT = "wait"
_WAIT_MEANING = "no rule applies: the batcher waits for more requests, or for the delay"


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule with its numbers.

    Attributes
    ----------
    rule : str
        A rule of `tritonnb.scheduling.reasons.RULES`, or ``wait``.
    meaning : str
    numbers : str
        What the rule compares, such as ``3.1 of 5.0 ms``.
    applies : bool
        Whether the rule would decide.
    """

    rule: str
    meaning: str
    numbers: str
    applies: bool


def rule_table(config: pb.ModelConfig, waiting: Sequence[RequestArrived], now_ns: int) -> list[RuleRow]:
    """The rules of the configured scheduler for the requests that wait, in the order in which they are tried.

    Empty if no request waits.

    Examples
    --------
    >>> config = pb.ModelConfig(max_batch_size=8, dynamic_batching={"max_queue_delay_microseconds": 5000})
    >>> request = RequestArrived(0, "m", 1, 1, 3, 0, 0, "", 0, 0, 0)
    >>> [(row.rule, row.numbers) for row in rule_table(config, [request], 3_100_000) if row.applies]
    [('wait', '3 rows, another 1.900 ms')]
    """
    if not waiting:
        return []
    if config.HasField("sequence_batching"):
        settings = sequence_batcher_settings(config, {}).strategy
        heads = list({request.correlation_id: request for request in reversed(waiting)}.values())[::-1]
        heads = heads[: slot_count(config)]
        if isinstance(settings, DirectSettings):
            return _direct_rules(settings, heads, now_ns)
        return _batcher_rules(settings.batcher, heads, now_ns)
    if config.HasField("dynamic_batching"):
        return _batcher_rules(dynamic_batcher_settings(config, {}, False), waiting, now_ns)
    return [_row(reasons.ONE_REQUEST, f"{pluralize(waiting[0].size, 'row')} of the first request", applies=True)]


def _row(rule: str, numbers: str, *, applies: bool) -> RuleRow:
    return RuleRow(rule, reasons.RULES.get(rule, _WAIT_MEANING), numbers, applies)


def _batcher_rules(settings: DynamicBatcherSettings, waiting: Sequence[RequestArrived], now_ns: int) -> list[RuleRow]:
    queue = PriorityQueue(settings.queue)
    for event in waiting:
        queue.put(_request(event), event.time_ns, now_ns)
    result = decide(queue, None, settings, now_ns)
    rows, candidate = queue.pending_rows, queue.candidate()
    following = candidate.batch_size if candidate is not None else 0
    sizes = ", ".join(map(str, settings.preferred_batch_sizes))
    largest, delay_ns = max(settings.preferred_batch_sizes, default=0), settings.max_queue_delay_ns
    delay_rule = reasons.DELAY_EXCEEDED if delay_ns else reasons.NO_DELAY
    numbers = {
        reasons.PREFERRED_SIZE: f"{rows} of {sizes} rows",
        reasons.OVERSHOOTS_PREFERRED: _with_next(rows, following, largest),
        reasons.FULL: f"{rows} of {largest} rows",
        reasons.DOES_NOT_FIT: _with_next(rows, following, settings.max_batch_size),
        reasons.DIFFERENT_INPUTS: "yes" if result.scan.blocked_by == reasons.DIFFERENT_INPUTS else "no",
        delay_rule: f"{_ms(result.waited_ns)} of {_ms(delay_ns)} ms" if delay_ns else "0 ms",
        WAIT: f"{pluralize(rows, 'row')}, another {_ms(max(0, delay_ns - result.waited_ns))} ms" if delay_ns else "-",
    }
    deciding = _deciding(result)
    return [_row(rule, text, applies=rule == deciding) for rule, text in numbers.items()]


def _with_next(rows: int, following: int, limit: int) -> str:
    return f"{rows} + {following} of {limit} rows" if following else f"{pluralize(rows, 'row')}, no next request"


def _deciding(result: Pass) -> str:
    return result.rule if result.action == SEND else WAIT


def _direct_rules(settings: DirectSettings, heads: Sequence[RequestArrived], now_ns: int) -> list[RuleRow]:
    ready, slots = len(heads), settings.max_batch_size
    waited_ns, delay_ns = now_ns - heads[0].time_ns, settings.max_queue_delay_ns
    share = settings.minimum_slot_utilization
    if not delay_ns or not share:
        deciding = reasons.NO_SLOT_WAIT
    elif ready / slots >= share:
        deciding = reasons.SLOT_UTILIZATION
    else:
        deciding = reasons.DELAY_EXCEEDED if waited_ns >= delay_ns else WAIT
    numbers = {
        reasons.NO_SLOT_WAIT: f"max_queue_delay {_ms(delay_ns)} ms, minimum_slot_utilization {share:g}",
        reasons.SLOT_UTILIZATION: f"{ready} of {slots} slots, at least {share:g}",
        reasons.DELAY_EXCEEDED: f"{_ms(waited_ns)} of {_ms(delay_ns)} ms",
        WAIT: f"{pluralize(ready, 'slot')} ready, another {_ms(max(0, delay_ns - waited_ns))} ms",
    }
    return [_row(rule, text, applies=rule == deciding) for rule, text in numbers.items()]


def _request(event: RequestArrived) -> SimulatedRequest:
    arrival = Arrival(
        us=event.time_ns / 1000,
        rows=event.size,
        priority=event.priority,
        timeout_us=event.timeout_us,
        sequence_id=event.correlation_id,
        sequence_start=bool(event.flags & SEQUENCE_START),
        batch_key=event.shape_key or None,
    )
    return SimulatedRequest(arrival, event.serial)


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"
