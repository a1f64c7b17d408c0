"""The rules of a scheduler as a table: which one decides, and what each of them compares."""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.scheduling import reasons
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import WAIT, Facts, pluralize

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
        Whether the rule decides.
    """

    rule: str
    meaning: str
    numbers: str
    applies: bool


def rule_table(verdict: Reason | None) -> list[RuleRow]:
    """Return the rules of a scheduler in the order of the scheduler; one of them applies.

    Parameters
    ----------
    verdict : Reason or None
        The verdict of `Scheduler.verdict`; without a verdict there are no rows.

    Examples
    --------
    >>> facts = {"rows": 3, "next_rows": 0, "waited_ns": 3_100_000, "delay_ns": 5_000_000, "wait_ns": 1_900_000}
    >>> verdict = Reason(WAIT, {**facts, "preferred": (8,), "max_batch_size": 8})
    >>> [(row.rule, row.numbers) for row in rule_table(verdict) if row.applies]
    [('wait', '3 rows, another 1.900 ms')]
    """
    if verdict is None:
        return []
    facts = verdict.facts
    if "ready" in facts:
        numbers = _direct(facts)
    elif "preferred" in facts:
        numbers = _batcher(verdict.rule, facts)
    elif verdict.rule == WAIT:
        numbers = {WAIT: f"{pluralize(facts['requests'], 'request')}, for a slot or for the one before"}
    else:
        numbers = {verdict.rule: f"{pluralize(facts['rows'], 'row')} of the first request"}
    return [
        RuleRow(rule, reasons.RULES.get(rule, _WAIT_MEANING), text, rule == verdict.rule)
        for rule, text in numbers.items()
    ]


def _batcher(rule: str, facts: Facts) -> dict[str, str]:
    rows, following, delay_ns, preferred = (facts[name] for name in ("rows", "next_rows", "delay_ns", "preferred"))
    largest = max(preferred, default=0)
    delay_rule = reasons.DELAY_EXCEEDED if delay_ns else reasons.NO_DELAY
    numbers = {
        reasons.PREFERRED_SIZE: f"{rows} of exactly {' or '.join(map(str, preferred))} rows",
        reasons.OVERSHOOTS_PREFERRED: _with_next(rows, following, largest),
        reasons.FULL: f"{rows} of {largest} rows",
        reasons.DOES_NOT_FIT: _with_next(rows, following, facts["max_batch_size"]),
        reasons.DIFFERENT_INPUTS: "yes" if rule == reasons.DIFFERENT_INPUTS else "no",
        delay_rule: f"{_ms(facts['waited_ns'])} of {_ms(delay_ns)} ms" if delay_ns else "0 ms",
    }
    numbers.setdefault(rule, pluralize(rows, "row"))  # `GROWN`, and `EXCLUDED` by custom batching
    return {**numbers, WAIT: f"{pluralize(rows, 'row')}{_another(facts)}"}


def _with_next(rows: int, following: int, limit: int) -> str:
    return f"{rows} + {following} of {limit} rows" if following else f"{pluralize(rows, 'row')}, no next request"


def _direct(facts: Facts) -> dict[str, str]:
    delay_ms, share = _ms(facts["delay_ns"]), facts["minimum_slot_utilization"]
    return {
        reasons.NO_SLOT_WAIT: f"max_queue_delay {delay_ms} ms, minimum_slot_utilization {share:g}",
        reasons.SLOT_UTILIZATION: f"{facts['ready']} of {facts['slots']} slots, at least {share:g}",
        reasons.DELAY_EXCEEDED: f"{_ms(facts['waited_ns'])} of {delay_ms} ms",
        WAIT: f"{pluralize(facts['ready'], 'slot')} ready{_another(facts)}",
    }


def _another(facts: Facts) -> str:
    return f", another {_ms(facts['wait_ns'])} ms" if "wait_ns" in facts else ""


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"
