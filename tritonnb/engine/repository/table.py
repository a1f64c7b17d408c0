"""The model table: the served versions of all models, how they are unloaded, and the repository index.

Versions that are unloaded or replaced complete the requests that they accepted, and are closed. States and messages
follow Triton's model lifecycle.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import PurePath

from tritonnb.core.errors import InternalError, NotFoundError, UnavailableError
from tritonnb.core.events import ModelStateChanged
from tritonnb.core.json_types import IndexEntry
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.repository.directories import Fingerprint, ModelSource
from tritonnb.model_config.backend_selection import ENSEMBLE
from tritonnb.model_config.ensemble import StepModel
from tritonnb.model_config.write import BACKUP
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.stream import EventStream

logger = logging.getLogger(__name__)


class ExitTimeoutError(InternalError):
    """A server was stopped before all requests were complete."""


class VersionState(enum.Enum):
    """States of a model version in the repository index."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


#: The reason in the index for a model that is in several repositories.
DUPLICATE = "model appears in two or more repositories"


@dataclass(slots=True)
class ModelVersion:
    """One version of a model.

    Attributes
    ----------
    state : VersionState
    reason : str
        The reason why it is not ready.
    served : ServedModel or None
        The object that serves it, even while the same version is reloaded.
    """

    state: VersionState
    reason: str = ""
    served: ServedModel | None = None


@dataclass(slots=True)
class RepositoryModel:
    """The state of a model after at least one attempt to load it.

    Attributes
    ----------
    source : ModelSource or None
        The source of the served versions.
    versions : dict of int to ModelVersion
    files : frozenset
        The files from which the served versions were loaded; empty if they were part of the load request.
    tried : frozenset
        The files at the last attempt.
    poll_failure : str
        The error if the last attempt could not read the configuration.
    failure : str
        The error of the last attempt to load the versions, or the steps of an ensemble.
    is_valid : bool
        False for an ensemble that does not match the models of its steps.
    is_known : bool
        Whether a repository has contained it, or this process has loaded it from another source.
    explicit : bool
        Whether it was loaded by name, not only as the model of an ensemble's step.
    ensemble : ModelSource or None
        For a loaded ensemble its source: it is served whenever the models of its steps are.
    loading : asyncio.Lock
        Held by `ModelTable.operating` during an operation on the model, from what it reads to what it changes: a
        concurrent operation begins when it is complete. An ensemble's lock is acquired before the locks of its steps.
    lock : asyncio.Lock
        Held while the versions change, which may be part of an operation on a model of an ensemble's steps. Acquired
        after ``loading``, and never while another model's lock is held, so that no two operations wait for one another.
    operations : int
        The number of operations that hold ``loading`` or wait for it.
    """

    source: ModelSource | None = None
    versions: dict[int, ModelVersion] = field(default_factory=dict)
    files: Fingerprint = frozenset()
    tried: Fingerprint = frozenset()
    poll_failure: str = ""
    failure: str = ""
    is_valid: bool = True
    is_known: bool = False
    explicit: bool = False
    ensemble: ModelSource | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    operations: int = 0

    def ready_versions(self) -> list[int]:
        """Return the versions that are ready, ascending."""
        return sorted(v for v, entry in self.versions.items() if entry.state is VersionState.READY)

    @property
    def is_forgettable(self) -> bool:
        """True if nothing is left of it: it is not known, no operation concerns it, and it has no version in memory.

        Otherwise a client could let the table grow with names that do not exist, or of models whose files were part of
        the load request. Triton's index lists only what the repositories contain.
        """
        idle = all(version.state is VersionState.UNAVAILABLE for version in self.versions.values())
        return not (self.is_known or self.ensemble or self.operations) and idle

    @property
    def lacks_version(self) -> bool:
        """True if the last load failed because the version policy selects no version."""
        return bool(self.failure) and self.is_valid and not self.versions

    def step_models(self) -> list[str]:
        """Return the models of the steps of a loaded ensemble; empty for other models."""
        if self.ensemble is None:
            return []
        return list(dict.fromkeys(step.model_name for step in self.ensemble.config.ensemble_scheduling.step))

    def unchanged_versions(self, source: ModelSource, changed_fields: Collection[str]) -> list[int]:
        """Return the versions that continue to serve when the model is loaded again, perhaps with other instances.

        As in Triton, these are the versions whose files have not changed, unless a file outside the directories of
        versions has changed, or more of the configuration than its instances and its version policy. They keep their
        statistics and sequences.

        Parameters
        ----------
        source : ModelSource
        changed_fields : collection of str
            The fields in which its configuration differs.
        """
        if self.source is None or not self.files or source.config.platform == ENSEMBLE:
            return []
        if not set(changed_fields) <= {"instance_group", "version_policy"}:
            return []
        files = {path for path, _, _ in self.files ^ self.tried if not path.endswith((".pbtxt", f".pbtxt{BACKUP}"))}
        changed = {PurePath(path).parts[0] for path in files}
        if not all(name.isdecimal() for name in changed):
            return []
        return [number for number in self.ready_versions() if number in source.versions and str(number) not in changed]

    def as_step(self) -> StepModel | None:
        """Return the state of the model as ensembles see it; None if its configuration could not be read."""
        ready = self.ready_versions()
        if ready:
            served = self.versions[ready[-1]].served
            assert served is not None
            return StepModel(served.config, tuple(ready))
        return None if self.poll_failure else StepModel(None, (), self.failure, self.is_valid)


class ModelTable:
    """All models of a server; used on the server's event loop.

    Parameters
    ----------
    stream : EventStream
        Receives an event for every change of the state of a version.

    Attributes
    ----------
    models : dict of str to RepositoryModel
    closing : dict of asyncio.Task to ServedModel
        The versions that were unloaded or replaced and are not closed yet, by the tasks that close them.
    """

    def __init__(self, stream: EventStream) -> None:
        self.models: dict[str, RepositoryModel] = {}
        self.closing: dict[asyncio.Task[None], ServedModel] = {}
        self._stream = stream
        self._newest: dict[str, ServedModel] = {}

    def entry(self, name: str) -> RepositoryModel:
        """Return the entry of a model, which is created if there is none."""
        return self.models.setdefault(name, RepositoryModel())

    @asynccontextmanager
    async def operating(self, name: str) -> AsyncIterator[RepositoryModel]:
        """Context manager of an operation on a model: it begins when earlier operations are complete."""
        model = self.entry(name)
        model.operations += 1
        try:
            async with model.loading:
                yield model
        finally:
            model.operations -= 1
            self._forget(name, model)

    def _forget(self, name: str, model: RepositoryModel) -> None:
        if model.is_forgettable and self.models.get(name) is model:
            del self.models[name]

    def get(self, name: str, version: int = -1) -> ServedModel:
        """Return a model version that is ready; version -1 is the newest version.

        Raises
        ------
        NotFoundError, UnavailableError
            If the version does not exist or is not ready.
        """
        newest = self._newest.get(name)
        # Nearly every request asks for the newest version, and this is on the path of every request.
        if newest is not None and (version == -1 or version == newest.version):
            return newest
        model = self.models.get(name)
        if model is None or not (model.versions or model.lacks_version):
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        if version == -1:
            raise NotFoundError(f"Request for unknown model: '{name}' has no available versions")
        entry = model.versions.get(version)
        if entry is None:
            raise NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        if entry.served is None or entry.state is not VersionState.READY:
            raise UnavailableError(f"Request for unknown model: '{name}' version {version} is not at ready state")
        return entry.served

    def set_version(self, name: str, version: int, entry: ModelVersion) -> None:
        """Add or replace the entry of a version."""
        self.models[name].versions[version] = entry
        self._emit_state(name, version, entry)

    def _emit_state(self, name: str, version: int, entry: ModelVersion) -> None:
        self._stream.emit(ModelStateChanged(time.monotonic_ns(), name, version, entry.state.value, entry.reason))

    def set_newest(self, name: str, served: ServedModel | None) -> None:
        """Set the version for requests without a version; None if there is none."""
        if served is None:
            self._newest.pop(name, None)
        else:
            self._newest[name] = served

    def ready_versions(self, name: str) -> list[int]:
        """Return the versions that are ready, ascending."""
        model = self.models.get(name)
        return [] if model is None else model.ready_versions()

    def served(self) -> Iterable[ServedModel]:
        """Yield every version that is ready, by name and version."""
        for name in sorted(self.models):
            for version in self.ready_versions(name):
                yield self.get(name, version)

    def failure(self, name: str) -> str:
        """Return the error of the last attempt to load a model without ready versions; empty if there is none."""
        model = self.models.get(name)
        return "" if model is None or model.ready_versions() else model.poll_failure or model.failure

    def failures(self) -> dict[str, str]:
        """Return the errors of models without ready versions, by name."""
        return {name: failure for name in sorted(self.models) if (failure := self.failure(name))}

    def all_ready(self) -> bool:
        """Return whether every selected version is ready."""
        return all(
            # A version that somebody has unloaded on purpose does not make the server unready.
            version.state is VersionState.READY or version.reason == "unloaded"
            for model in self.models.values()
            for version in model.versions.values()
        ) and not any(model.lacks_version for model in self.models.values())

    def ensembles_of(self, step_model: str) -> list[str]:
        """Return the loaded ensembles that contain a model."""
        return sorted(name for name, model in self.models.items() if step_model in model.step_models())

    def as_steps(self) -> dict[str, StepModel]:
        """Return the states of all models as ensembles see them, except those whose configuration could not be read."""
        states = {name: model.as_step() for name, model in self.models.items()}
        return {name: state for name, state in states.items() if state is not None}

    def index(self, on_disk: Mapping[str, int], ready_only: bool) -> list[IndexEntry]:
        """Return the index: all models on disk and in the table; ``on_disk`` counts the repositories of a model."""
        rows: list[IndexEntry] = []
        known = (name for name, model in self.models.items() if model.versions or not model.poll_failure)
        for name in sorted({*on_disk, *known}):
            if on_disk.get(name, 0) > 1:
                if not ready_only:
                    rows.append({"name": name, "state": VersionState.UNAVAILABLE.value, "reason": DUPLICATE})
                continue
            # Triton lists a model that was never loaded with nothing but its name.
            model = self.models.get(name, RepositoryModel())
            for version in sorted(model.versions):
                entry = model.versions[version]
                if entry.state is VersionState.READY or not ready_only:
                    row: IndexEntry = {"name": name, "version": str(version), "state": entry.state.value}
                    rows.append({**row, "reason": entry.reason} if entry.reason else row)
            if not model.versions and not ready_only:
                cause = model.poll_failure or model.failure
                failed: IndexEntry = {"name": name, "state": VersionState.UNAVAILABLE.value, "reason": cause}
                rows.append(failed if cause else {"name": name})
        return rows

    def statuses(self) -> list[tuple[str, str, str]]:
        """Return name, version and status of all models, as Triton logs them after the start."""
        rows: list[tuple[str, str, str]] = []
        for name, model in sorted(self.models.items()):
            for version, entry in sorted(model.versions.items()):
                reason = f": {entry.reason}" if entry.reason else ""
                rows.append((name, str(version), f"{entry.state.value}{reason}"))
            if not model.versions and (cause := model.poll_failure or model.failure):
                rows.append((name, "-", f"Not loaded: {cause}"))
        return rows

    # --- unloading ----------------------------------------------------------------------------

    def unload_all(self, name: str, model: RepositoryModel) -> None:
        """Stop accepting requests for a model; its versions complete the requests that they accepted."""
        self.set_newest(name, None)
        for version, entry in model.versions.items():
            if entry.served is not None:
                self.unload(name, version, entry)

    def unload(self, name: str, version: int, entry: ModelVersion) -> None:
        """Unload a version to which requests are no longer submitted."""
        served, entry.served, entry.state = entry.served, None, VersionState.UNLOADING
        self._emit_state(name, version, entry)

        def mark_unloaded(_: asyncio.Task[None]) -> None:
            model = self.models.get(name)
            # The version may have been loaded again while it completed its last requests.
            if model is not None and model.versions.get(version) is entry:
                entry.state, entry.reason = VersionState.UNAVAILABLE, "unloaded"
                self._emit_state(name, version, entry)
                self._forget(name, model)

        self.close(served).add_done_callback(mark_unloaded)

    def close(self, served: ServedModel | None) -> asyncio.Task[None]:
        """Close a version that another version has replaced, when its requests are complete."""
        assert served is not None
        task = asyncio.get_running_loop().create_task(_drain_and_close(served))
        self.closing[task] = served
        task.add_done_callback(self.closing.pop)
        return task

    async def wait_until_closed(self) -> None:
        """Wait until every version that was unloaded or replaced is closed."""
        while self.closing:  # not `gather`, which would cancel them if this is cancelled
            await asyncio.wait(list(self.closing))

    def loading(self) -> list[str]:
        """Return the models that have a version that is being loaded, by name."""
        states = {name: [version.state for version in model.versions.values()] for name, model in self.models.items()}
        return sorted(name for name, versions in states.items() if VersionState.LOADING in versions)

    def abandon(self, reason: str) -> None:
        """Answer every request in flight with an error that begins with a reason, and free every version.

        Nothing is waited for, because the event loop ends.
        """
        for version in [*self.served(), *self.closing.values()]:
            # A version may still be ready: the stop waited for ensembles, and had not come to their models. The loop
            # goes on for a while, and nobody would execute what they accept now.
            version.driver.stop()
            version.abandon(reason)
            version.driver.abandon()

    def unfinished(self) -> list[str]:
        """Describe the models that have requests in flight or are being unloaded."""
        counts: Counter[str] = Counter()
        for version in (*(served for served in self.served() if served.in_flight), *self.closing.values()):
            counts[version.name] += version.in_flight
        return [
            f"model '{name}' ({pluralize(count, 'request') if count else 'being unloaded'})"
            for name, count in sorted(counts.items())
        ]


async def _drain_and_close(served: ServedModel) -> None:
    await served.wait_until_drained()
    await served.driver.close()
    logger.info("successfully unloaded '%s' version %d", served.name, served.version)


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
