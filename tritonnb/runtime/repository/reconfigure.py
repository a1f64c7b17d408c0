"""Changing the configuration of a served model: in place if possible, else by loading it again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from google.protobuf import json_format

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.diff import effect_of, replaced, with_scheduling_of
from tritonnb.model_config.load import ConfigError, config_path
from tritonnb.model_config.normalize import normalize
from tritonnb.runtime.options import EngineOptions
from tritonnb.runtime.repository import live_update
from tritonnb.runtime.repository.loader import ModelSource
from tritonnb.runtime.repository.repository import ModelRepository, with_config


class Reconfiguration:
    """Reconfigures the models of a repository; lives on the server's loop.

    Parameters
    ----------
    repository : ModelRepository
    options : EngineOptions
    """

    def __init__(self, repository: ModelRepository, options: EngineOptions) -> None:
        self._repository = repository
        self._table = repository.table
        self._options = options

    def config_path(self, name: str) -> Path | None:
        """The *config.pbtxt* of a model, also of one that failed to load; None of one that comes from no repository.

        Raises
        ------
        TritonError
            If it is not served and in no repository, or in several.
        """
        source = self._current_source(name)
        if source is None:
            directory = self._repository.directories.find(name)
        elif source.backend is None and source.holder is None:
            directory = source.directory
        else:
            return None
        return config_path(directory, self._options.model_config_name or None)

    async def check(self, name: str, config: pb.ModelConfig) -> pb.ModelConfig:
        """What a model would run under a configuration, without loading anything.

        Parameters
        ----------
        name : str
        config : inference.ModelConfig
            As written. What a backend adds to it is taken from what runs; of a model that failed to load
            nothing is known of that.

        Raises
        ------
        TritonError
            If the configuration is refused or the model does not exist.
        """
        requested = await self._read_source(name, config)
        with ProblemContext(config):
            return await self._effective_config(name, requested)

    async def apply(self, name: str, config: pb.ModelConfig) -> str:
        """Let a model run under a configuration: in place where only its scheduling changes.

        Returns
        -------
        str
            ``"unchanged"``, ``"in place"``, ``"reloaded"``, or ``"loaded"`` if it was not served.

        Raises
        ------
        TritonError
            If the configuration is refused; the model goes on as it was.
        """
        requested = await self._read_source(name, config)
        with ProblemContext(config):
            effective = await self._effective_config(name, requested)
        is_new = self._current_source(name) is None
        effect = "loaded" if is_new else effect_of(self._table.get(name).config, effective)
        if effect == "in place":
            await self._apply_in_place(name, effective)
        elif effect != "unchanged":
            await self._repository.reload(requested)
        return effect

    async def _read_source(self, name: str, config: pb.ModelConfig) -> ModelSource:
        """A model with another configuration, from where it comes."""
        source, override = self._current_source(name), json_format.MessageToJson(config)
        if source is not None and source.backend is not None:
            requested = with_config(source, override)
            normalize(requested.config)
            return requested
        directories = self._repository.directories
        directory, holder = (directories.find(name), None) if source is None else (source.directory, source.holder)
        try:
            return await self._repository.loader.run_in_pool(
                directories.read_directory, name, directory, override, holder
            )
        except ConfigError as error:
            raise InvalidArgumentError(error.cause, hint=error.hint, problems=error.problems) from error

    async def _effective_config(self, name: str, requested: ModelSource) -> pb.ModelConfig:
        """The configuration that a model would run under, as far as that is known without loading it."""
        source = self._current_source(name)
        if source is None:
            return requested.config
        self._repository.loader.check_runtime(requested, max(requested.versions, default=1))
        running = self._table.get(name).config
        was_adjusted = not self._table.models[name].files
        if requested.config.WhichOneof("scheduling_choice") is None and (
            running.HasField("dynamic_batching") or was_adjusted
        ):  # whether there is to be a batcher then is for the backend, or the model, to say, as when it is loaded
            completed = await self._repository.loader.auto_complete(requested)
            requested, running = (
                dataclasses.replace(requested, config=replaced(requested.config, completed, {"dynamic_batching"})),
                replaced(running, completed, {"dynamic_batching"}),
            )
        return live_update.effective_config(requested, source.config, running)

    async def _apply_in_place(self, name: str, config: pb.ModelConfig) -> None:
        """Change the scheduling, or the instances, of a model that runs, without loading it again."""
        model = self._table.models[name]
        async with model.lock:
            source = model.source
            assert source is not None
            versions = [self._table.get(name, each) for each in self._table.ready_versions(name)]
            await live_update.reconfigure(versions, config, self._repository.loader)
            model.source = dataclasses.replace(source, config=with_scheduling_of(source.config, config))
            model.files = frozenset()  # a plain load goes back to the file

    def _current_source(self, name: str) -> ModelSource | None:
        """Where what is served comes from; None if nothing is because the last attempt to load it failed."""
        if self._table.failure(name):
            return None
        self._table.get(name)
        return self._table.models[name].source
