"""What all models of a server share."""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.backends.contract import ServerCalls
from tritonnb.runtime.models.response_cache import ResponseCache
from tritonnb.scheduling.rate_limiter import RateLimiter
from tritonnb.telemetry.stream import EventStream


@dataclass(frozen=True, slots=True)
class SharedServices:
    """What a server gives to its models.

    Attributes
    ----------
    stream : EventStream
    calls : ServerCalls
        What models may ask of the server.
    cache : ResponseCache or None
    rate_limiter : RateLimiter or None
    """

    stream: EventStream
    calls: ServerCalls
    cache: ResponseCache | None = None
    rate_limiter: RateLimiter | None = None
