"""The settings of the sequence batcher, as ``ModelSequenceBatching`` in *model_config.proto* defines them."""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.scheduling.direct import DirectSettings
from tritonnb.scheduling.oldest import OldestSettings


@dataclass(frozen=True, slots=True)
class SequenceBatcherSettings:
    """The settings of a `SequenceBatcher`.

    Attributes
    ----------
    model_name : str
        For error messages.
    strategy : DirectSettings or OldestSettings
    max_sequence_idle_ns : int
        A sequence without a request for this long loses its slot, in ns.
    iterative : bool
        ``iterative_sequence``: a request is a sequence of executions, started without a correlation ID and continued
        by `SequenceBatcher.reschedule`.
    min_requests_to_start, min_backlog_to_start : int
        Dispatching starts when this many requests wait in slots, and this many in the backlog
        (``TRITONSERVER_DELAY_SCHEDULER``, ``TRITONSERVER_BACKLOG_DELAY_SCHEDULER``).
    """

    model_name: str
    strategy: DirectSettings | OldestSettings
    max_sequence_idle_ns: int = 1_000_000_000
    iterative: bool = False
    min_requests_to_start: int = 0
    min_backlog_to_start: int = 0
