"""The attributes of a request that schedulers use.

Compiled with mypyc: schedulers read them several times for each request.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

#: The flags of a request that belongs to a sequence: ``TRITONSERVER_RequestFlag`` in *tritonserver.h*.
SEQUENCE_START: Final = 1
SEQUENCE_END: Final = 2


class Schedulable:
    """The attributes of a request that schedulers use; those of a client and simulated ones have more.

    Attributes
    ----------
    id : str
        The client's request ID; may be empty.
    priority, timeout_us : int
        As the client sent them; 0 for none. The timeout is in microseconds.
    correlation_id : int or str
        0 or "" if the request does not belong to a sequence.
    flags : int
        `SEQUENCE_START` | `SEQUENCE_END`.
    batch_size : int
        ``max(1, batch dimension)``; set when the request is accepted.
    batch_key : hashable
        Requests with equal keys may share a batch; set when the request is accepted.
    received_ns, queued_ns : int
        When the request was received, and when the scheduler accepted it: monotonic clock, in ns.
    serial : int
        Number of the request in the server's event stream.
    cancelled : bool
        The client has gone away. The scheduler drops the request if it is queued; a running model can check it.

    Examples
    --------
    >>> Schedulable("7", priority=1).id_prefix
    '[request id: 7] '
    """

    __slots__ = (
        *("batch_key", "batch_size", "cancelled", "correlation_id", "flags", "id", "priority", "queued_ns"),
        *("received_ns", "serial", "timeout_us"),
    )

    def __init__(
        self,
        id: str,
        *,
        priority: int = 0,
        timeout_us: int = 0,
        correlation_id: int | str = 0,
        flags: int = 0,
        batch_size: int = 1,
        batch_key: Hashable = None,
        received_ns: int = 0,
        serial: int = 0,
    ) -> None:
        self.id = id
        self.priority = priority
        self.timeout_us = timeout_us
        self.correlation_id = correlation_id
        self.flags = flags
        self.batch_size = batch_size
        self.batch_key: Hashable = batch_key
        self.received_ns = received_ns
        self.queued_ns = 0
        self.serial = serial
        self.cancelled = False

    @property
    def id_prefix(self) -> str:
        """The prefix of many of Triton's error messages."""
        return f"[request id: {self.id or '<id_unknown>'}] "
