"""The model table: which versions of which models are served, loading, unloading, or failed.

Loading creates the new versions beside the old ones and swaps when all of them are ready, so that no
request is refused in between; replaced and unloaded versions finish what they accepted. States and
texts are those of Triton's model lifecycle and repository index.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError, UnavailableError
from tritonnb.core.events import ModelStateChanged
from tritonnb.model_config.diff import completed, effect_of, with_scheduling_of
from tritonnb.model_config.load import ConfigError, config_path, finish_config, load_config
from tritonnb.model_config.normalize import normalize
from tritonnb.model_config.parse import parse_json
from tritonnb.model_config.versions import select_versions, version_directories
from tritonnb.runtime.devices import cuda_devices
from tritonnb.runtime.loading import ModelLoader, ModelSource
from tritonnb.runtime.options import EngineOptions
from tritonnb.runtime.served_model import ServedModel
from tritonnb.telemetry.stream import EventStream

logger = logging.getLogger(__name__)


class State(enum.Enum):
    """States of a model version in the repository index."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(slots=True)
class _Version:
    state: State
    reason: str = ""
    served: ServedModel | None = None


@dataclass(slots=True)
class _Model:
    """What is known of a model that was loaded, or tried, at least once.

    ``poll_failure`` says why its configuration could not be read, when that is what happened last.
    """

    source: ModelSource | None = None
    versions: dict[int, _Version] = field(default_factory=dict)
    poll_failure: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ModelRepository:
    """All models of a server; lives on the server's loop."""

    def __init__(self, options: EngineOptions, stream: EventStream) -> None:
        self._options = options
        self._stream = stream
        self._models: dict[str, _Model] = {}
        self._newest: dict[str, ServedModel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._loader = ModelLoader(
            stream, options.settings_of, options.auto_complete_config, options.model_load_threads
        )

    # --- looking up ---------------------------------------------------------------------------

    def get(self, name: str, version: int = -1) -> ServedModel:
        """A model version that is ready; version -1 is the newest one.

        Raises
        ------
        NotFoundError, UnavailableError
        """
        newest = self._newest.get(name)
        if newest is not None and version in (-1, newest.version):
            return newest
        model = self._models.get(name)
        if model is None or not model.versions:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        if version == -1:
            raise NotFoundError(f"Request for unknown model: '{name}' has no available versions")
        found = model.versions.get(version)
        if found is None:
            raise NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        if found.served is None or found.state is not State.READY:
            if found.reason == "unloaded":
                raise NotFoundError(f"Request for unknown model: '{name}' has no available versions")
            raise UnavailableError(f"Request for unknown model: '{name}' version {version} is not at ready state")
        return found.served

    def ready_versions(self, name: str) -> list[int]:
        """Versions that answer requests, ascending."""
        model = self._models.get(name)
        if model is None:
            return []
        return sorted(v for v, each in model.versions.items() if each.state is State.READY)

    def config_path(self, name: str) -> Path | None:
        """The *config.pbtxt* of a model that is served; None of one that comes from no repository.

        Raises
        ------
        NotFoundError
            If it is not served.
        """
        self.get(name)
        source = self._models[name].source
        assert source is not None
        if source.backend is not None:
            return None
        return config_path(source.directory, self._options.model_config_name or None)

    def served(self) -> Iterable[ServedModel]:
        """Every version that is ready, by name and version."""
        for name in sorted(self._models):
            for version in self.ready_versions(name):
                yield self.get(name, version)

    def all_ready(self) -> bool:
        """Whether no version is loading, unloading, or failed."""
        return all(
            version.state is State.READY or version.reason == "unloaded"
            for model in self._models.values()
            for version in model.versions.values()
        )

    def index(self, ready_only: bool) -> list[dict[str, str]]:
        """The repository index: every model on disk or in the table."""
        rows: list[dict[str, str]] = []
        for name in sorted({*self.names_on_disk(), *self._models}):
            model = self._models.get(name, _Model())
            for version in sorted(model.versions):
                entry = model.versions[version]
                if entry.state is State.READY or not ready_only:
                    row = {"name": name, "version": str(version), "state": entry.state.value}
                    rows.append({**row, "reason": entry.reason} if entry.reason else row)
            if not model.versions and not ready_only:
                failed = {"state": State.UNAVAILABLE.value, "reason": model.poll_failure}
                rows.append({"name": name, **(failed if model.poll_failure else {})})
        return rows

    def names_on_disk(self) -> list[str]:
        """Names of the model directories in all repositories."""
        return sorted(
            entry.name
            for repository in self._options.model_repositories
            for entry in repository.iterdir()
            if entry.is_dir() and not entry.name.startswith(".")
        )

    # --- loading and unloading ----------------------------------------------------------------

    async def load(self, name: str, override: str | None = None) -> None:
        """Load a model, or load it anew; the old versions answer until the new ones are ready.

        Parameters
        ----------
        name : str
        override : str, optional
            A configuration as JSON that replaces the file's (``config`` load parameter).

        Raises
        ------
        ConfigError
            If the directory or configuration is at fault: Triton's "failed to poll".
        InvalidArgumentError
            If a version could not be created.
        """
        model = self._models.setdefault(name, _Model())
        if model.source is not None and model.source.backend is not None:
            await self.load_source(_with_config(model.source, override))
            return
        async with model.lock:
            try:
                source = await self._loader.in_thread(self._read_source, name, override)
            except ConfigError as error:
                for line in error.log_lines:
                    logger.error(line)
                model.poll_failure = error.cause
                raise
            model.poll_failure = ""
            await self._load_versions(model, source)

    async def load_source(self, source: ModelSource) -> None:
        """Load a model that does not come from a repository."""
        normalize(source.config)  # as one that was read from files is
        model = self._models.setdefault(source.name, _Model())
        async with model.lock:
            await self._load_versions(model, source)

    async def reconfigure(self, name: str, config: Any) -> None:
        """Change the scheduling of a model that runs, without loading it again.

        Raises
        ------
        NotFoundError
            If it is not served.
        TritonError
            If the configuration is refused; nothing has changed then.
        """
        self.get(name)
        model = self._models[name]
        async with model.lock:
            assert model.source is not None
            finished = finish_config(
                config, model.source.directory, gpus=cuda_devices(), default_instance_count=lambda kind: 1
            )
            for version in self.ready_versions(name):
                self.get(name, version).reconfigure(finished)
            asked = with_scheduling_of(model.source.config, config)
            model.source = dataclasses.replace(model.source, config=asked)

    async def check(self, name: str, config: Any) -> Any:
        """What a model that is served would run under a configuration, without loading anything.

        Parameters
        ----------
        name : str
        config : inference.ModelConfig
            As written. What a backend adds to it is taken from what runs.

        Raises
        ------
        NotFoundError
            If it is not served.
        TritonError
            If the configuration is refused.
        """
        running = self.get(name).config
        source = self._models[name].source
        assert source is not None
        override = json_format.MessageToJson(config)
        if source.backend is None:
            try:
                wanted = await self._loader.in_thread(self._read_source, name, override)
            except ConfigError as error:
                raise InvalidArgumentError(error.cause) from error
        else:
            wanted = _with_config(source, override)
            normalize(wanted.config)
        return finish_config(
            completed(wanted.config, source.config, running),
            source.directory,
            gpus=cuda_devices(),
            default_instance_count=lambda kind: 1,
        )

    async def apply(self, name: str, config: Any) -> str:
        """Let a model that is served run under a configuration: in place where only its scheduling changes.

        Returns
        -------
        str
            ``"unchanged"``, ``"in place"`` or ``"reloaded"``.

        Raises
        ------
        TritonError
            If the configuration is refused; the model goes on as it was.
        """
        wanted = await self.check(name, config)
        effect = effect_of(self.get(name).config, wanted)
        if effect == "in place":
            await self.reconfigure(name, wanted)
        elif effect == "reloaded":
            await self.load(name, json_format.MessageToJson(config))
        return effect

    async def unload(self, name: str) -> None:
        """Stop taking requests for a model; what it accepted is answered, then it is freed."""
        model = self._models.get(name)
        if model is None:
            return
        async with model.lock:
            self._newest.pop(name, None)
            for version, entry in model.versions.items():
                if entry.served is not None:
                    self._retire(name, version, entry)

    async def close(self) -> None:
        """Unload everything and wait until it is gone."""
        for name in list(self._models):
            await self.unload(name)
        await asyncio.gather(*self._closing)
        self._loader.close()

    def _read_source(self, name: str, override: str | None) -> ModelSource:
        found = [each / name for each in self._options.model_repositories if (each / name).is_dir()]
        if len(found) != 1 or Path(name).name != name:
            raise ConfigError.not_polled(name, ambiguous=len(found) > 1)
        directory = found[0]
        config = load_config(
            directory,
            name,
            override=override,
            custom_name=self._options.model_config_name or None,
            auto_complete=self._options.auto_complete_config,
        ).config
        return ModelSource(name, directory, config, tuple(select_versions(config, version_directories(directory))))

    async def _load_versions(self, model: _Model, source: ModelSource) -> None:
        name = source.name
        if not source.versions:
            raise InvalidArgumentError(
                f"load failed for model '{name}': at least one version must be available under the "
                f"version policy of model '{name}'\n"
            )
        for version in source.versions:
            if version not in model.versions or model.versions[version].state is not State.READY:
                model.versions[version] = _Version(State.LOADING)
                self._changed(name, version, State.LOADING)
        outcomes = await asyncio.gather(
            *(self._loader.create(source, version) for version in source.versions), return_exceptions=True
        )
        made = {v: each for v, each in zip(source.versions, outcomes, strict=True) if isinstance(each, ServedModel)}
        failed = {v: each for v, each in zip(source.versions, outcomes, strict=True) if isinstance(each, BaseException)}
        if failed:
            await asyncio.gather(*(each.close() for each in made.values()))
            self._load_failed(model, name, source, failed)
        self._swap(model, source, made)

    def _load_failed(self, model: _Model, name: str, source: ModelSource, failed: dict[int, BaseException]) -> None:
        """Leave what served before serving, and say what went wrong."""
        pieces = []
        for version in sorted(source.versions, reverse=True):
            error = failed.get(version)
            if error is not None and not isinstance(error, TritonError):
                raise error
            text = f"{error.status.label}: {error.message}" if isinstance(error, TritonError) else "unloaded"
            entry = model.versions[version]
            if entry.state is State.LOADING:
                model.versions[version] = _Version(State.UNAVAILABLE, text)
                self._changed(name, version, State.UNAVAILABLE, text)
            if error is not None:
                logger.error("failed to load '%s' version %d: %s", name, version, text)
                pieces.append(f"version {version} is at UNAVAILABLE state: {text};")
        raise InvalidArgumentError(f"load failed for model '{name}': " + "".join(pieces) + "\n")

    def _swap(self, model: _Model, source: ModelSource, made: dict[int, ServedModel]) -> None:
        replaced = {v: each for v, each in model.versions.items() if each.served is not None}
        model.source = source
        for version, served in made.items():
            model.versions[version] = _Version(State.READY, served=served)
            self._changed(source.name, version, State.READY)
            logger.info("successfully loaded '%s' version %d", source.name, version)
        self._newest[source.name] = made[max(made)]
        for version, entry in replaced.items():
            if version in made:
                self._close(entry.served)
            else:
                self._retire(source.name, version, entry)

    def _retire(self, name: str, version: int, entry: _Version) -> None:
        served, entry.served, entry.state = entry.served, None, State.UNLOADING
        self._changed(name, version, State.UNLOADING)

        def gone(_: asyncio.Task[None]) -> None:
            if entry.state is State.UNLOADING:
                entry.state, entry.reason = State.UNAVAILABLE, "unloaded"
                self._changed(name, version, State.UNAVAILABLE, "unloaded")

        self._close(served).add_done_callback(gone)

    def _close(self, served: ServedModel | None) -> asyncio.Task[None]:
        assert served is not None
        task = asyncio.get_running_loop().create_task(served.drain_and_close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def _changed(self, name: str, version: int, state: State, reason: str = "") -> None:
        self._stream.emit(ModelStateChanged(time.monotonic_ns(), name, version, state.value, reason))


def _with_config(source: ModelSource, override: str | None) -> ModelSource:
    """A model that is no directory, with another configuration."""
    return source if override is None else dataclasses.replace(source, config=parse_json(override))
