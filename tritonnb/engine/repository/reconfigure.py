"""Changing the configuration of a served model: in place if possible, otherwise by reloading it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.options import EngineOptions
from tritonnb.engine.repository.directories import ModelSource
from tritonnb.engine.repository.loader import effective_config
from tritonnb.engine.repository.repository import ModelRepository
from tritonnb.engine.repository.table import RepositoryModel
from tritonnb.model_config.backend_selection import ENSEMBLE
from tritonnb.model_config.diagnose import problem_context
from tritonnb.model_config.diff import SCHEDULING, effect_of, omitted_tensors, replaced, require_tensors
from tritonnb.model_config.load import ConfigError, config_path
from tritonnb.model_config.normalize import normalize
from tritonnb.model_config.parse import ConfigSyntaxError, parse_text


class Reconfiguration:
    """The changes to the configurations of a repository's models; used on the server's event loop.

    Parameters
    ----------
    repository : ModelRepository
    options : EngineOptions
    """

    def __init__(self, repository: ModelRepository, options: EngineOptions) -> None:
        self._repository = repository
        self._table = repository.table
        self._loader = repository.loader
        self._options = options

    async def config_path(self, name: str) -> Path | None:
        """Return the *config.pbtxt* of a model, even if the model failed to load; None if it is not from a repository.

        Raises
        ------
        TritonError
            If the model is not served, and not in exactly one repository.
        """
        source = self._current_source(name)
        if source is None:
            directory = await self._loader.read(self._repository.directories.find, name)
        elif source.backend is None and source.keepalive is None:
            directory = source.directory
        else:
            return None
        return await self._loader.read(config_path, directory, self._options.model_config_name or None)

    async def config(self, name: str) -> pb.ModelConfig:
        """Return a model's running configuration, or its file's if it failed to load; empty if the file is invalid.

        Raises
        ------
        TritonError
            If the model is not served, and not in exactly one repository.
        """
        if not self._table.failure(name):
            return self._table.get(name).config
        path = await self.config_path(name)
        try:
            return parse_text(await self._loader.read(path.read_bytes)).config if path is not None else pb.ModelConfig()
        except (OSError, ConfigSyntaxError):
            return pb.ModelConfig()

    async def check(self, name: str, config: pb.ModelConfig) -> pb.ModelConfig:
        """Return the effective configuration of a model if it had another configuration; nothing is loaded.

        Parameters
        ----------
        name : str
        config : inference.ModelConfig
            As written. The fields that a backend adds are taken from the running model; for a model that failed to
            load they are unknown.

        Raises
        ------
        TritonError
            If the configuration is invalid or the model does not exist.
        """
        requested = await self._read_source(name, config)
        with problem_context(config):
            return await self._effective_config(name, requested)

    async def apply(self, name: str, config: pb.ModelConfig) -> str:
        """Change the configuration of a model: in place if only its scheduling changes.

        Returns
        -------
        str
            ``"unchanged"``, ``"in place"``, ``"reloaded"``, or ``"loaded"`` if it was not served.

        Raises
        ------
        TritonError
            If the configuration is rejected; the model continues unchanged.
        """
        self._current_source(name)  # refuses unknown names

        async def change() -> str:
            async with self._table.operating(name) as model:
                return await self._change(model, name, config)

        return await self._repository.operations.run(name, "changed", change())

    async def _change(self, model: RepositoryModel, name: str, config: pb.ModelConfig) -> str:
        """Read, decide and apply a change, as an operation on the model: it must not change in between."""
        requested = await self._read_source(name, config)
        with problem_context(config):
            effective = await self._effective_config(name, requested)
        is_new = self._current_source(name) is None
        effect = "loaded" if is_new else effect_of(self._table.get(name).config, effective)
        if effect == "in place":
            await self._apply_in_place(model, name, effective)
        elif effect != "unchanged":
            await self._repository.load_source_now(model, requested)
        return effect

    async def _read_source(self, name: str, config: pb.ModelConfig) -> ModelSource:
        """Return the source of a model with another configuration."""
        source = self._current_source(name)
        if source is not None and source.backend is not None:
            requested = source.with_config(config)
            requested.config.name = requested.config.name or name
            requested.config.backend = requested.config.backend or source.config.backend
            normalize(requested.config)
            return requested
        directories = self._repository.directories
        if source is None:
            directory, keepalive = await self._loader.read(directories.find, name), None
        else:
            directory, keepalive = source.directory, source.keepalive
        try:
            return await self._loader.read(directories.read_directory, name, directory, config, keepalive)
        except ConfigError as error:
            raise InvalidArgumentError(error.cause, hint=error.hint, problems=error.problems) from error

    async def _effective_config(self, name: str, requested: ModelSource) -> pb.ModelConfig:
        """Return the effective configuration of a model, without the parts that only loading it would show."""
        source = self._current_source(name)
        if source is None:
            return await self._with_tensors(requested, requested.config, await self.config(name))
        await self._loader.read(self._loader.find_library, requested, max(requested.versions, default=1))
        running = self._table.get(name).config
        was_adjusted = not self._table.models[name].files
        if requested.config.WhichOneof("scheduling_choice") is None and (
            running.HasField("dynamic_batching") or was_adjusted
        ):  # as for a load, the backend or the model decides whether there is a batcher
            completed = await self._loader.run(self._loader.auto_complete, requested)
            requested, running = (
                dataclasses.replace(requested, config=replaced(requested.config, completed, {"dynamic_batching"})),
                replaced(running, completed, {"dynamic_batching"}),
            )
        effective = await self._loader.read(effective_config, requested, source.config, running)
        return await self._with_tensors(requested, effective, running)

    async def _with_tensors(
        self, requested: ModelSource, config: pb.ModelConfig, before: pb.ModelConfig
    ) -> pb.ModelConfig:
        """Return a configuration with those omitted inputs and outputs that the backend completes.

        Raises
        ------
        InvalidArgumentError
            If it omits inputs or outputs that the configuration ``before`` it has, and the backend does not know them.
        """
        omitted = omitted_tensors(config, before)
        if not omitted or config.platform == ENSEMBLE:  # the loader checks the tensors of ensembles
            return config
        config = replaced(config, await self._loader.run(self._loader.auto_complete, requested), omitted)
        require_tensors(config, before)
        return config

    async def _apply_in_place(self, model: RepositoryModel, name: str, config: pb.ModelConfig) -> None:
        """Change the scheduling or the instances of a running model without reloading it."""
        async with model.lock:
            source = model.source
            assert source is not None
            versions = [self._table.get(name, version) for version in self._table.ready_versions(name)]
            await self._loader.reconfigure(dict.fromkeys(versions, config))
            # Only the scheduling: the rest of the written configuration is what the model was really loaded with.
            model.source = dataclasses.replace(source, config=replaced(source.config, config, SCHEDULING))
            model.files = frozenset()  # so that the next load reads the file

    def _current_source(self, name: str) -> ModelSource | None:
        """Return the source of the served model; None if the last attempt to load it failed."""
        if self._table.failure(name):
            return None
        self._table.get(name)
        return self._table.models[name].source
