"""The scenarios that the page offers, and that pages of the documentation embed.

The five figures of Triton's document on stateful models are presets: the slots of two instances (`direct-slots`), six
sequences in them (`direct-sequences`), the control inputs of two slots (`control-inputs`), the candidates of an
instance (`oldest-candidates`), and four sequences of which batches are formed (`oldest-batches`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from docs.playground.scenario import write_arrival
from tritonnb.core.json_types import Json
from tritonnb.lab.simulation.arrivals import sequences
from tritonnb.recording.arrivals import Arrival

_CONTROLS = """\
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } ] }
  ]
"""
_DIRECT = f"""\
name: "direct_stateful_model"
max_batch_size: 2
sequence_batching {{
  max_sequence_idle_microseconds: 5000000
  direct {{ }}
{_CONTROLS}}}
"""
_OLDEST = """\
name: "oldest_stateful_model"
max_batch_size: 2
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest {
    max_candidate_sequences: 4
  }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"""
_TWO_INSTANCES = "instance_group [ { count: 2 } ]\n"


def _dynamic(body: str = "", rows: int = 8, more: str = "") -> str:
    inner = f"\n  {body}\n" if body else " "
    return f"max_batch_size: {rows}\ndynamic_batching {{{inner}}}\n{more}"


def _listed(arrivals: Iterable[Arrival]) -> Json:
    return {"kind": "list", "requests": [write_arrival(arrival) for arrival in arrivals]}


def _steps(*steps: dict[str, float]) -> list[Arrival]:
    """Return the steps of sequences: the next request of each with its time in ms; the first and last have flags."""
    last = {name: number for number, step in enumerate(steps) for name in step}
    first = {name: number for number, step in reversed([*enumerate(steps)]) for name in step}
    return [
        Arrival(ms=ms, sequence_id=name, sequence_start=first[name] == number, sequence_end=last[name] == number)
        for number, step in enumerate(steps)
        for name, ms in step.items()
    ]


def _preset(title: str, about: str, config: str, arrivals: Json, service: Json, baseline: str = "") -> Json:
    return {
        "title": title, "about": about, "group": "Sequences" if "sequence_batching" in config else "Dynamic batching",
        "scenario": {"config": config, "arrivals": arrivals, "service": service, "baseline": baseline},
    }  # fmt: skip


def _fixed(ms: float) -> Json:
    return {"kind": "fixed", "ms": ms}


_THIRD = 50 / 3
_FIVE = _listed(Arrival(ms=ms, rows=rows) for ms, rows in
                ((0, 4), (0, 2), (_THIRD, 2), (2 * _THIRD, 6), (2 * _THIRD, 2)))  # fmt: skip
_SIX = _steps(
    {f"S{number}": 10 * number for number in range(6)},
    {f"S{number}": 100 + 10 * number for number in range(6)},
    {f"S{number}": 200 + 10 * place for place, number in enumerate((2, 0, 1, 3, 4, 5))},
)
_CROWD = [Arrival(ms=2 * number, priority=1 if number % 3 == 0 else 2) for number in range(30)]
_PRIORITIES = """\
priority_levels: 2
  default_priority_level: 2
  default_queue_policy {
    timeout_action: REJECT
    default_timeout_microseconds: 70000
  }"""

#: By name: ``title``, ``about`` (one or two sentences), ``group``, and the ``scenario``.
PRESETS: dict[str, Json] = {
    "five-requests": _preset(
        "Five requests",
        "The example of Triton's Conceptual Guide. With a delay of 20 ms the first request waits for others: two full "
        "batches instead of three. Set the delay to 0 to see the difference.",
        _dynamic("max_queue_delay_microseconds: 20000"), _FIVE, _fixed(50), baseline=_dynamic(),
    ),
    "no-batching": _preset(
        "Five requests, no batcher",
        "Without dynamic_batching every request is executed alone: five executions of 50 ms.",
        "max_batch_size: 8\n", _FIVE, _fixed(50),
    ),
    "preferred-sizes": _preset(
        "Preferred batch sizes",
        "A batch of a preferred size is sent at once. Eight single requests, 10 ms apart: the first preferred size is "
        "reached long before the delay is over.",
        _dynamic("preferred_batch_size: [ 2, 6 ]\n  max_queue_delay_microseconds: 300000"),
        _listed(Arrival(ms=10 * number) for number in range(8)), _fixed(5),
        baseline=_dynamic("max_queue_delay_microseconds: 300000"),
    ),
    "priorities-timeouts": _preset(
        "Priorities and timeouts",
        "Every third request has priority 1 and overtakes the others, of which some wait longer than their timeout.",
        _dynamic(_PRIORITIES, rows=4), _listed(_CROWD), _fixed(20), baseline=_dynamic(rows=4),
    ),
    "bursts": _preset(
        "Bursts",
        "Twelve requests at once, every 60 ms, on two instances: a batch is limited by max_batch_size, and the rest "
        "of the burst waits for an idle instance.",
        _dynamic(more=_TWO_INSTANCES),
        {"kind": "bursts", "requests": 12, "every_ms": 60, "duration": 0.3, "rows": 1},
        {"kind": "linear", "per_row_ms": 2, "base_ms": 10}, baseline=_dynamic(),
    ),
    "poisson": _preset(
        "Poisson arrivals",
        "Many independent clients. Batches form while the instance is busy, without any delay; a delay makes requests "
        "wait, and pays only if a row becomes much cheaper in a larger batch.",
        _dynamic("max_queue_delay_microseconds: 5000", rows=16),
        {"kind": "poisson", "rate": 400, "duration": 0.5, "seed": 1, "rows": 1},
        {"kind": "linear", "per_row_ms": 0.3, "base_ms": 6}, baseline=_dynamic(rows=16),
    ),
    "closed-loop": _preset(
        "A closed loop of clients",
        "Six clients wait for their responses before they send again, as a load generator with concurrency 6 does. All "
        "of them end up in the same batch, and a delay only slows them down.",
        _dynamic("max_queue_delay_microseconds: 4000"),
        {"kind": "closed", "clients": 6, "requests": 90, "think_ms": 1, "rows": 1},
        {"kind": "table", "ms": {"1": 8, "4": 10, "8": 14}}, baseline=_dynamic(),
    ),
    "direct-slots": _preset(
        "Direct: a slot for each sequence",
        "Two instances with two batch slots each: four sequences can run at the same time, a fifth one waits.",
        _DIRECT + _TWO_INSTANCES, _listed(sequences([4] * 5, every_ms=40, stagger_ms=5)), _fixed(20),
    ),
    "direct-sequences": _preset(
        "Direct: six sequences, four slots",
        "Sequences S4 and S5 wait in the backlog. When S2 ends, S4 gets its slot at the same moment.",
        _DIRECT + _TWO_INSTANCES, _listed(_SIX), _fixed(20),
    ),
    "control-inputs": _preset(
        "Control inputs",
        "What the model learns about the rows of each execution: READY is 0 for the null request of a slot without a "
        "request, START is 1 for the first request of a sequence.",
        _DIRECT,
        _listed(_steps({"S0": 0}, {"S0": 40}, {"S0": 45, "S1": 46}, {"S1": 100}, {"S0": 105, "S1": 106})),
        _fixed(20),
    ),
    "oldest-candidates": _preset(
        "Oldest: candidate sequences",
        "One instance with four candidate sequences: a fifth one waits until a candidate ends. A batch has the oldest "
        "requests of different sequences, and no null requests.",
        _OLDEST, _listed(sequences([3] * 5, every_ms=50, stagger_ms=10)), _fixed(20),
    ),
    "oldest-batches": _preset(
        "Oldest: batches of four sequences",
        "Sequences A to D send at the same rate, A shortly before B, and so on. Two requests of one sequence are never "
        "in the same batch: the last two of D run one after the other.",
        _OLDEST,
        _listed(
            _steps(
                {"A": 0, "B": 1, "C": 2, "D": 3}, {"A": 20, "B": 21, "C": 22, "D": 23},
                {"A": 40, "B": 41, "C": 42, "D": 43}, {"D": 63}, {"D": 64},
            )
        ),
        _fixed(20),
    ),
    "iterative": _preset(
        "Iterative sequences",
        "Continuous batching: a request is executed once for each token and joins other requests between executions. "
        "A new request enters as soon as another one has finished. The other configuration: a dynamic batcher, whose "
        "batches last as long as their longest request.",
        "max_batch_size: 4\nsequence_batching {\n  oldest {\n    max_candidate_sequences: 4\n  }\n"
        "  iterative_sequence: true\n}\n",
        _listed(
            Arrival(ms=ms, steps=steps)
            for ms, steps in ((0, 12), (5, 4), (12, 8), (18, 3), (25, 6), (40, 5))
        ),
        {"kind": "linear", "per_row_ms": 1, "base_ms": 8}, baseline=_dynamic(rows=4),
    ),
}  # fmt: skip


def preset(name: str) -> Any:
    """Return the scenario of a preset.

    Examples
    --------
    >>> preset("no-batching")["service"]
    {'kind': 'fixed', 'ms': 50}
    """
    return PRESETS[name]["scenario"]
