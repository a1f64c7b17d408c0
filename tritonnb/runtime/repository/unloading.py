"""Unloading versions of models: they complete the requests that they accepted, and are closed.

States and messages are those of Triton's model lifecycle. Used on the server's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

from tritonnb.core.errors import InternalError
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.runtime.repository.table import ModelTable, ModelVersion, RepositoryModel, VersionState
from tritonnb.scheduling.reasons import pluralize

logger = logging.getLogger(__name__)


class ExitTimeoutError(InternalError):
    """A server was stopped before all requests were complete."""


class Unloader:
    """An unloader for model versions.

    Parameters
    ----------
    table : ModelTable

    Attributes
    ----------
    closing : dict of asyncio.Task to ServedModel
        The versions that were unloaded or replaced and are not closed yet, by the tasks that close them.
    """

    def __init__(self, table: ModelTable) -> None:
        self._table = table
        self.closing: dict[asyncio.Task[None], ServedModel] = {}

    def unload_all(self, name: str, model: RepositoryModel) -> None:
        """Stop accepting requests for a model; its versions complete the requests that they accepted."""
        self._table.set_newest(name, None)
        for version, entry in model.versions.items():
            if entry.served is not None:
                self.unload(name, version, entry)

    def unload(self, name: str, version: int, entry: ModelVersion) -> None:
        """Unload a version to which requests are no longer submitted."""
        served, entry.served, entry.state = entry.served, None, VersionState.UNLOADING
        self._table.emit_state(name, version, entry)

        def mark_unloaded(_: asyncio.Task[None]) -> None:
            if entry.state is VersionState.UNLOADING:
                entry.state, entry.reason = VersionState.UNAVAILABLE, "unloaded"
                self._table.emit_state(name, version, entry)

        self.close(served).add_done_callback(mark_unloaded)

    def close(self, served: ServedModel | None) -> asyncio.Task[None]:
        """Close a version that another one has replaced, when its requests are complete."""
        assert served is not None
        task = asyncio.get_running_loop().create_task(_drain_and_close(served))
        self.closing[task] = served
        task.add_done_callback(self.closing.pop)
        return task

    async def wait_until_closed(self) -> None:
        """Wait until every version that was unloaded or replaced is closed."""
        await asyncio.gather(*self.closing)


async def _drain_and_close(served: ServedModel) -> None:
    await served.wait_until_drained()
    await served.driver.close()
    logger.info("successfully unloaded '%s' version %d", served.name, served.version)


def describe_unfinished(served: Sequence[ServedModel]) -> str:
    """Describe the models and the number of their requests that are in flight."""
    counts: Counter[str] = Counter()
    for version in served:
        counts[version.name] += version.in_flight
    return ", ".join(
        f"model '{name}' ({pluralize(count, 'request') if count else 'being unloaded'})"
        for name, count in sorted(counts.items())
    )


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
