"""The services that all models of a server share."""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.backends.contract import ServerCalls
from tritonnb.runtime.models.response_cache import ResponseCache
from tritonnb.scheduling.rate_limiter import RateLimiter
from tritonnb.telemetry.stream import EventStream


@dataclass(frozen=True, slots=True)
class SharedServices:
    """The services of a server for its models.

    Attributes
    ----------
    stream : EventStream
    calls : ServerCalls
        Calls from models to the server.
    cache : ResponseCache or None
    rate_limiter : RateLimiter or None
    """

    stream: EventStream
    calls: ServerCalls
    cache: ResponseCache | None = None
    rate_limiter: RateLimiter | None = None
