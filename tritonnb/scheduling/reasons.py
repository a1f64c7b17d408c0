"""The rules of decisions, and the sentence that explains each.

A scheduler attaches a `Reason` to its decisions: a rule of `RULES` and the values that the rule used. Creating a reason
is cheap; `explain` formats it only when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.payload import BY_INSTANCE, BY_POLL

# Executions
ONE_REQUEST: Final = "one_request"
PREFERRED_SIZE: Final = "preferred_size"
FULL: Final = "full"
OVERSHOOTS_PREFERRED: Final = "overshoots_preferred"
DOES_NOT_FIT: Final = "does_not_fit"
DIFFERENT_INPUTS: Final = "different_inputs"
EXCLUDED: Final = "excluded"
DELAY_EXCEEDED: Final = "delay_exceeded"
NO_DELAY: Final = "no_delay"
GROWN: Final = "grown"
NO_SLOT_WAIT: Final = "no_slot_wait"
SLOT_UTILIZATION: Final = "slot_utilization"
# Steps of an ensemble
INPUTS_READY: Final = "inputs_ready"
INFLIGHT_FREE: Final = "inflight_free"
# Refusals
TIMED_OUT: Final = "timed_out"
CANCELLED: Final = "cancelled"
SEQUENCE_CANCELLED: Final = "sequence_cancelled"
BACKLOG_TIMED_OUT: Final = "backlog_timed_out"
INSTANCE_LOST: Final = "instance_lost"
# Verdicts: nothing is sent yet
WAIT: Final = "wait"
# Recordings of traces
BLS_REQUEST: Final = "bls_request"
UNKNOWN: Final = "unknown"

RULES: Mapping[str, str] = {
    # `WAIT` is missing here and below: it is a verdict, and no batch is sent for it.
    ONE_REQUEST: "without a batcher, every request is executed alone",
    PREFERRED_SIZE: "a preferred batch size is reached",
    FULL: "the largest preferred batch size is reached",
    OVERSHOOTS_PREFERRED: "the next request would exceed every preferred batch size",
    DOES_NOT_FIT: "the next request would exceed max_batch_size",
    DIFFERENT_INPUTS: "the next request's inputs may not share the batch",
    EXCLUDED: "the model's batching library excludes the next request",
    DELAY_EXCEEDED: "the oldest request has waited for max_queue_delay",
    NO_DELAY: "max_queue_delay is 0: whatever waits is sent",
    GROWN: "a batch without a preferred size, which waits for an instance, takes what has come by then",
    NO_SLOT_WAIT: "max_queue_delay or minimum_slot_utilization is 0: ready slots do not wait for others",
    SLOT_UTILIZATION: "enough slots are ready for minimum_slot_utilization",
    INPUTS_READY: "every tensor that the step reads is there",
    INFLIGHT_FREE: "fewer requests of the step are in flight than max_inflight_requests",
    TIMED_OUT: "the request's timeout passed while it waited, and its queue policy is REJECT",
    CANCELLED: "the request was cancelled while it waited",
    SEQUENCE_CANCELLED: "a request of the same sequence was cancelled",
    BACKLOG_TIMED_OUT: "the sequence's timeout passed while it waited in the backlog",
    INSTANCE_LOST: "the instance with the state of its sequence failed",
    BLS_REQUEST: "a model sent the request while it ran",
    UNKNOWN: "the recording was made from a trace, which does not contain reasons",
}

#: Of each rule that sends batches: a sign for pictures, and what it means in a few words.
MARKS: Mapping[str, tuple[str, str]] = {
    ONE_REQUEST: ("①", "alone"),
    PREFERRED_SIZE: ("■", "size reached"),
    FULL: ("■", "size reached"),
    OVERSHOOTS_PREFERRED: ("◧", "the next did not fit"),
    DOES_NOT_FIT: ("◧", "the next did not fit"),
    DIFFERENT_INPUTS: ("◇", "the next has other inputs"),
    EXCLUDED: ("◇", "the next has other inputs"),
    DELAY_EXCEEDED: ("◔", "delay over"),
    NO_DELAY: ("▸", "no delay, whatever waited"),
    GROWN: ("▸", "no delay, whatever waited"),
    NO_SLOT_WAIT: ("▸", "no delay, whatever waited"),
    SLOT_UTILIZATION: ("■", "enough slots ready"),
    BLS_REQUEST: ("↳", "called by a model"),
    UNKNOWN: ("?", "not known"),
}


Facts = Mapping[str, Any]


def explain(reason: Reason) -> str:
    """Explain a reason in a sentence with its values.

    Parameters
    ----------
    reason : Reason
        With a rule of `RULES`. Names of requests are used where its facts have them: ``members``, ``oldest`` and
        ``last`` of the batch, ``next`` after the batch, and ``left_out``, which came while the batch waited.

    Returns
    -------
    str
        One line without a period.

    Examples
    --------
    >>> explain(Reason(TIMED_OUT, {"waited_ns": 200_000_001, "timeout_ns": 200_000_000}))
    'waited 200.0 ms, longer than its timeout of 200.0 ms'
    """
    facts = reason.facts
    cause = _CAUSES[reason.rule](facts)
    words = f"{_batch(facts)}: {cause}{_dispatch(facts)}{_lateness(facts)}" if "requests" in facts else cause
    # Set by the replay of a trace, which says what was batched and not why.
    return f"{words} (inferred)" if facts.get("inferred") else words


def _ms(ns: int) -> str:
    if ns >= 100_000 or ns == 0:
        return f"{ns / 1e6:.1f} ms"
    return f"{ns / 1e3:.1f} µs"


def pluralize(number: int, one: str, many: str = "") -> str:
    """Return a number with a noun in singular or plural, such as ``1 batch`` and ``2 batches``."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _batch(facts: Facts) -> str:
    members = facts.get("members") or pluralize(facts["requests"], "request")
    words = f"{members}, {pluralize(facts['rows'], 'row')}"
    nulls = facts.get("nulls", 0)
    return f"{words} ({nulls} null)" if nulls else words


def _dispatch(facts: Facts) -> str:
    """Describe the time when the batch was formed, and the time that it or its instance waited."""
    merged, ready, idle, missed = (facts.get(name, 0) for name in ("merged", "ready_ns", "idle_ns", "missed"))
    words = _FORMED.get(facts.get("woken_by", ""), "") if facts.get("delay_ns") else ""
    words += f"; joined by {pluralize(merged, 'later batch', 'later batches')}" if merged else ""
    instance = f"instance {facts['instance']}"
    if limited := facts.get("limited_ns", 0):  # the instance was free: neither it nor the batcher made the batch wait
        return f"{words}; {instance} waited {_ms(limited)} for {facts['limited_by']} (rate limiter)"
    # The surprise of Triton's batcher that users meet first: a batch that waits does not take what comes meanwhile.
    if ready and missed:
        came = pluralize(missed, "request that came later was", "requests that came later were")
        if "left_out" in facts:
            came = f"{facts['left_out']} came later and {'was' if missed == 1 else 'were'}"
        return (
            f"{words}; ready for {_ms(ready)} before {instance} was free; {came} not added, "
            f"because the batcher looked again only when {instance} took this batch"
        )
    if ready:
        return f"{words}; ready for {_ms(ready)} before {instance} was free"
    if idle:
        return f"{words}; {instance} idle for {_ms(idle)}"
    return f"{words}; {instance} {'just became free' if facts.get('has_run', True) else 'idle from the start'}"


def _lateness(facts: Facts) -> str:
    """Describe by how much the server's event loop carried out a decision later than it was due."""
    late = facts.get("late_ns", 0)
    return f"; sent {_ms(late)} later: the server's own work" if late else ""


#: Descriptions of passes that were not triggered by an arrival or the delay.
_FORMED = {
    BY_INSTANCE: "; formed when an instance took the batch before it",
    BY_POLL: "; formed when the batcher looked again after 500 ms",
}


def _delay_exceeded(facts: Facts) -> str:
    oldest = facts.get("oldest", "the oldest")
    words = f"{oldest} had waited {_ms(facts['waited_ns'])} >= max_queue_delay {_ms(facts['delay_ns'])}"
    unreached = [size for size in facts.get("preferred", ()) if size > facts["rows"]]
    if not unreached:
        return words
    limit = "max_batch_size" if unreached[0] == facts.get("max_batch_size") else "preferred"
    return f"{words}; {limit} {unreached[0]} not reached"


def _next_goes_beyond(limit: str, size: int, facts: Facts) -> str:
    following = facts.get("next", "the next request")
    return f"{following}'s {pluralize(facts['next_rows'], 'row')} would go beyond {limit} {size}"


def _sizes(facts: Facts) -> str:
    return ", ".join(map(str, facts["preferred"]))


def _size_reached(which: str, facts: Facts) -> str:
    """Return the cause; without preferred sizes ``max_batch_size`` is the only size."""
    if tuple(facts["preferred"]) == (facts["max_batch_size"],):
        return f"max_batch_size {facts['max_batch_size']} reached"
    return which


def _full(facts: Facts) -> str:
    largest = max(facts["preferred"])
    if facts["rows"] <= largest:
        return _size_reached(f"largest preferred batch size {largest} reached", facts)
    last = facts.get("last", "its last request")
    return f"{last} took it beyond preferred {largest}: only max_batch_size limits a batch that has waited"


_CAUSES: Mapping[str, Callable[[Facts], str]] = {
    ONE_REQUEST: lambda facts: f"executed alone, without a batcher; had waited {_ms(facts['waited_ns'])}",
    PREFERRED_SIZE: lambda facts: _size_reached(f"preferred batch size reached (preferred: {_sizes(facts)})", facts),
    FULL: _full,
    OVERSHOOTS_PREFERRED: lambda facts: _next_goes_beyond("preferred", max(facts["preferred"]), facts),
    DOES_NOT_FIT: lambda facts: _next_goes_beyond("max_batch_size", facts["max_batch_size"], facts),
    DIFFERENT_INPUTS: lambda facts: "the next request's inputs may not share this batch",
    EXCLUDED: lambda facts: "the model's batching library excludes the next request",
    DELAY_EXCEEDED: _delay_exceeded,
    NO_DELAY: lambda facts: "max_queue_delay is 0, so whatever waited was sent",
    GROWN: lambda facts: f"no preferred size reached ({_sizes(facts)}), so it took what had come by then",
    NO_SLOT_WAIT: lambda facts: (
        f"{pluralize(facts['ready'], 'slot')} ready; no wait for others, as max_queue_delay is "
        f"{_ms(facts['delay_ns'])} and minimum_slot_utilization {facts['minimum_slot_utilization']:g}"
    ),
    SLOT_UTILIZATION: lambda facts: (
        f"{facts['ready']} of {facts['slots']} slots ready >= minimum_slot_utilization "
        f"{facts['minimum_slot_utilization']:g}"
    ),
    INPUTS_READY: lambda facts: f"its inputs are there: {', '.join(facts['tensors'])}",
    INFLIGHT_FREE: lambda facts: f"fewer than max_inflight_requests {facts['limit']} of the step were in flight again",
    TIMED_OUT: lambda facts: f"waited {_ms(facts['waited_ns'])}, longer than its timeout of {_ms(facts['timeout_ns'])}",
    CANCELLED: lambda facts: f"cancelled after waiting {_ms(facts['waited_ns'])}",
    SEQUENCE_CANCELLED: lambda facts: (
        f"sequence {facts['sequence']!r} was cancelled; this request had waited {_ms(facts['waited_ns'])}"
    ),
    BACKLOG_TIMED_OUT: lambda facts: (
        f"sequence {facts['sequence']!r} got no slot within the shortest timeout of its requests; "
        f"this one had waited {_ms(facts['waited_ns'])}"
    ),
    INSTANCE_LOST: lambda facts: (
        f"sequence {facts['sequence']!r} ended, since the instance with its state failed; this request had waited "
        f"{_ms(facts['waited_ns'])}"
    ),
    BLS_REQUEST: lambda facts: "a model sent it while it ran",
    UNKNOWN: lambda facts: f"the reason is not known: {facts['cause']}",
}
