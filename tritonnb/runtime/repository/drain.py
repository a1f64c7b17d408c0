"""How a stopping server finishes: what it accepted is answered, and it says what it still waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tritonnb.core.errors import InternalError
from tritonnb.runtime.models.served_base import Served

logger = logging.getLogger(__name__)


class ExitTimeoutError(InternalError):
    """A server was stopped before its models had finished."""


def describe_unfinished(served: Sequence[Served]) -> str:
    """Models and how many of their requests have no answer yet, in words."""
    counts: dict[str, int] = {}
    for each in served:
        counts[each.name] = counts.get(each.name, 0) + each.in_flight
    return ", ".join(f"model '{name}' ({_requests(count)})" for name, count in sorted(counts.items()))


def _requests(count: int) -> str:
    return f"{count} request{'s' * (count > 1)}" if count else "being unloaded"


async def drain_all(served: Sequence[Served], sequences: bool) -> None:
    """Wait until versions of models have completed the requests that they accepted; new requests are refused.

    Parameters
    ----------
    served : sequence of Served
    sequences : bool
        Serve sequences meanwhile, until they end or were idle for too long.
    """
    for each in served:
        each.stop()
    reporting = asyncio.get_running_loop().create_task(_report(served, sequences))
    try:
        await asyncio.gather(*(each.wait_until_drained() for each in served))
        while sequences and any(each.open_sequences for each in served):
            await asyncio.gather(*(each.wait_until_sequences_end() for each in served))
            await asyncio.gather(*(each.wait_until_drained() for each in served))
    finally:
        reporting.cancel()


async def _report(served: Sequence[Served], sequences: bool) -> None:
    """Say every second what is waited for, in Triton's words."""
    while busy := {each: n for each in served if (n := (sequences and each.open_sequences) or each.in_flight)}:
        logger.info("Found %d model versions that have in-flight inferences", len(busy))
        for each, count in busy.items():
            logger.info("Model '%s' (version %d) has %d in-flight inferences", each.name, each.version, count)
        await asyncio.sleep(1)
