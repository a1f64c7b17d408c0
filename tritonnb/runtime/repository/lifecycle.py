"""The last part of the loading path, and unloading: versions of a model are created, replaced, unloaded and closed.

Existing versions serve until all new versions are ready, so no request is rejected in between; replaced and unloaded
versions complete the requests that they accepted. States and messages are those of Triton's model lifecycle.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.events import ModelStateChanged
from tritonnb.runtime.load_errors import log_load_error
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.runtime.repository.loader import ModelLoader, ModelSource
from tritonnb.runtime.repository.table import Model, ModelTable, State, Version
from tritonnb.telemetry.stream import EventStream

logger = logging.getLogger(__name__)


class ModelLifecycle:
    """Changes the states of versions; used on the server's event loop.

    Parameters
    ----------
    table : ModelTable
    loader : ModelLoader
    stream : EventStream
        Receives an event for every change.
    retries : int
        Number of further attempts to create a version.
    """

    def __init__(self, table: ModelTable, loader: ModelLoader, stream: EventStream, retries: int) -> None:
        self._table = table
        self._loader = loader
        self._stream = stream
        self._retries = retries
        self._closing: dict[asyncio.Task[None], ServedModel] = {}

    async def create_and_swap(self, model: Model, source: ModelSource, kept: Collection[int] = ()) -> None:
        """Create the versions of a model, then replace the existing versions, except those in ``kept``.

        Raises
        ------
        InvalidArgumentError
            If a version could not be created; the existing versions continue to serve.
        """
        name = source.name
        for version in source.versions:
            logger.info("loading: %s:%d", name, version)
        versions = [version for version in source.versions if version not in kept]
        for version in versions:
            if version not in model.versions or model.versions[version].state is not State.READY:
                model.versions[version] = Version(State.LOADING)
                self._emit_state(name, version, State.LOADING)
        tasks = (self._create(source, version) for version in versions)
        outcomes = dict(zip(versions, await asyncio.gather(*tasks, return_exceptions=True), strict=True))
        created = {v: outcome for v, outcome in outcomes.items() if isinstance(outcome, ServedModel)}
        failed = {v: outcome for v, outcome in outcomes.items() if isinstance(outcome, BaseException)}
        if failed:
            await asyncio.gather(*(served.driver.close() for served in created.values()))
            self._report_load_failure(model, name, source, failed)
        model.failure = ""
        self._replace_versions(model, source, created, kept)

    async def _create(self, source: ModelSource, version: int) -> ServedModel:
        started = time.monotonic()
        served = await self._create_with_retries(source, version)
        served.load_seconds = time.monotonic() - started
        return served

    async def _create_with_retries(self, source: ModelSource, version: int) -> ServedModel:
        for _ in range(self._retries):
            try:
                return await self._loader.create_served(source, version)
            except TritonError as error:
                logger.error("failed to load '%s' version %d, trying again: %s", source.name, version, error.message)
        return await self._loader.create_served(source, version)

    def _report_load_failure(
        self, model: Model, name: str, source: ModelSource, failed: dict[int, BaseException]
    ) -> None:
        """Raise the error of a failed load; the existing versions continue to serve."""
        messages = []
        for version in sorted(source.versions, reverse=True):
            error = failed.get(version)
            if error is not None and not isinstance(error, TritonError):
                raise error
            text = f"{error.status.label}: {error.message}" if isinstance(error, TritonError) else "unloaded"
            entry = model.versions[version]
            if entry.state is State.LOADING:
                model.versions[version] = Version(State.UNAVAILABLE, text)
                self._emit_state(name, version, State.UNAVAILABLE, text)
            if error is not None:
                log_load_error(logger, "failed to load '%s' version %d: %s", name, version, text)
                messages.append(f"version {version} is at UNAVAILABLE state: {text};")
        logger.info("failed to load '%s'", name)
        model.failure = "".join(messages)
        causes = [error for error in failed.values() if isinstance(error, TritonError)]
        raise InvalidArgumentError(
            f"load failed for model '{name}': {model.failure}\n",
            hint=next((error.hint for error in causes if error.hint), ""),
            problems=dict.fromkeys(problem for error in causes for problem in error.problems),
            model_error=causes[-1].model_error,
        )

    def _replace_versions(
        self, model: Model, source: ModelSource, created: dict[int, ServedModel], kept: Collection[int]
    ) -> None:
        replaced = {v: entry for v, entry in model.versions.items() if entry.served is not None and v not in kept}
        model.source = source
        for version, served in created.items():
            model.versions[version] = Version(State.READY, served=served)
            self._emit_state(source.name, version, State.READY)
        logger.info("successfully loaded '%s'", source.name)
        self._table.set_newest(source.name, model.versions[max(source.versions)].served)
        for version, entry in replaced.items():
            if version in created:
                self._close_in_background(entry.served)
            else:
                self._retire(source.name, version, entry)

    def retire_all(self, name: str, model: Model) -> None:
        """Stop accepting requests for a model; its versions complete the requests that they accepted."""
        self._table.set_newest(name, None)
        for version, entry in model.versions.items():
            if entry.served is not None:
                self._retire(name, version, entry)

    async def wait_until_closed(self) -> None:
        """Wait until every replaced or retired version is closed."""
        await asyncio.gather(*self._closing)

    def closing_versions(self) -> list[ServedModel]:
        """The replaced and retired versions that are not closed yet."""
        return list(self._closing.values())

    def _retire(self, name: str, version: int, entry: Version) -> None:
        served, entry.served, entry.state = entry.served, None, State.UNLOADING
        self._emit_state(name, version, State.UNLOADING)

        def mark_unloaded(_: asyncio.Task[None]) -> None:
            if entry.state is State.UNLOADING:
                entry.state, entry.reason = State.UNAVAILABLE, "unloaded"
                self._emit_state(name, version, State.UNAVAILABLE, "unloaded")

        self._close_in_background(served).add_done_callback(mark_unloaded)

    def _close_in_background(self, served: ServedModel | None) -> asyncio.Task[None]:
        assert served is not None
        task = asyncio.get_running_loop().create_task(_drain_and_close(served))
        self._closing[task] = served
        task.add_done_callback(self._closing.pop)
        return task

    def _emit_state(self, name: str, version: int, state: State, reason: str = "") -> None:
        self._stream.emit(ModelStateChanged(time.monotonic_ns(), name, version, state.value, reason))


async def _drain_and_close(served: ServedModel) -> None:
    await served.wait_until_drained()
    await served.driver.close()
    logger.info("successfully unloaded '%s' version %d", served.name, served.version)
