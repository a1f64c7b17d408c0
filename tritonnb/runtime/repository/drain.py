"""Waiting for requests in flight when a server stops, and reporting them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tritonnb.core.errors import InternalError
from tritonnb.runtime.models.served_model import ServedModel

logger = logging.getLogger(__name__)


class ExitTimeoutError(InternalError):
    """A server was stopped before all requests were complete."""


def describe_unfinished(served: Sequence[ServedModel]) -> str:
    """Describe the models and the number of their requests that are in flight."""
    counts: dict[str, int] = {}
    for version in served:
        counts[version.name] = counts.get(version.name, 0) + version.in_flight
    return ", ".join(f"model '{name}' ({_requests(count)})" for name, count in sorted(counts.items()))


def _requests(count: int) -> str:
    return f"{count} request{'s' * (count > 1)}" if count else "being unloaded"


async def drain_all(served: Sequence[ServedModel], sequences: bool) -> None:
    """Wait until versions of models have completed the requests that they accepted; new requests are rejected.

    Parameters
    ----------
    served : sequence of ServedModel
    sequences : bool
        Continue to serve sequences until they end or exceed the maximum idle time.
    """
    for version in served:
        version.driver.stop()
    reporting = asyncio.get_running_loop().create_task(_report(served, sequences))
    try:
        await asyncio.gather(*(version.wait_until_drained() for version in served))
        while sequences and any(version.open_sequences for version in served):
            await asyncio.gather(*(version.driver.wait_until_sequences_end() for version in served))
            await asyncio.gather(*(version.wait_until_drained() for version in served))
    finally:
        reporting.cancel()


async def _report(served: Sequence[ServedModel], sequences: bool) -> None:
    """Log the versions with requests in flight every second, with Triton's messages."""
    while busy := {
        version: n for version in served if (n := (sequences and version.open_sequences) or version.in_flight)
    }:
        logger.info("Found %d model versions that have in-flight inferences", len(busy))
        for version, count in busy.items():
            logger.info("Model '%s' (version %d) has %d in-flight inferences", version.name, version.version, count)
        await asyncio.sleep(1)
