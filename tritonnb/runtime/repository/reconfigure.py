"""Changing the configuration of a model that is served: in place where that is enough."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from tritonnb.core.errors import InvalidArgumentError
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
        source = self._source(name)
        if source is None:
            directory = self._repository.directories.find(name)
        elif source.backend is None and source.holder is None:
            directory = source.directory
        else:
            return None
        return config_path(directory, self._options.model_config_name or None)

    async def check(self, name: str, config: Any) -> Any:
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
            If the configuration is refused, or there is no such model.
        """
        wanted = await self._wanted(name, config)
        with ProblemContext(config):
            return await self._finished(name, wanted)

    async def apply(self, name: str, config: Any) -> str:
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
        wanted = await self._wanted(name, config)
        with ProblemContext(config):
            finished = await self._finished(name, wanted)
        is_new = self._source(name) is None
        effect = "loaded" if is_new else effect_of(self._table.get(name).config, finished)
        if effect == "in place":
            await self._reconfigure(name, finished)
        elif effect != "unchanged":
            await self._repository.reload(wanted)
        return effect

    async def _wanted(self, name: str, config: Any) -> ModelSource:
        """A model with another configuration, from where it comes."""
        source, override = self._source(name), json_format.MessageToJson(config)
        if source is not None and source.backend is not None:
            wanted = with_config(source, override)
            normalize(wanted.config)
            return wanted
        directories = self._repository.directories
        directory, holder = (directories.find(name), None) if source is None else (source.directory, source.holder)
        try:
            return await self._repository.loader.in_thread(
                directories.read_directory, name, directory, override, holder
            )
        except ConfigError as error:
            raise InvalidArgumentError(error.cause, hint=error.hint, problems=error.problems) from error

    async def _finished(self, name: str, wanted: ModelSource) -> Any:
        """The configuration that a model would run under, as far as that is known without loading it."""
        source = self._source(name)
        if source is None:
            return wanted.config
        self._repository.loader.check_runtime(wanted, max(wanted.versions, default=1))
        running = self._table.get(name).config
        was_adjusted = not self._table.models[name].files
        if wanted.config.WhichOneof("scheduling_choice") is None and (
            running.HasField("dynamic_batching") or was_adjusted
        ):  # whether there is to be a batcher then is for the backend, or the model, to say, as when it is loaded
            completed = await self._repository.loader.completed(wanted)
            wanted, running = (
                dataclasses.replace(wanted, config=replaced(wanted.config, completed, {"dynamic_batching"})),
                replaced(running, completed, {"dynamic_batching"}),
            )
        return live_update.finished(wanted, source.config, running)

    async def _reconfigure(self, name: str, config: Any) -> None:
        """Change the scheduling, or the instances, of a model that runs, without loading it again."""
        model = self._table.models[name]
        async with model.lock:
            source = model.source
            assert source is not None
            versions = [self._table.get(name, each) for each in self._table.ready_versions(name)]
            await live_update.reconfigure(versions, config, self._repository.loader)
            model.source = dataclasses.replace(source, config=with_scheduling_of(source.config, config))
            model.files = frozenset()  # a plain load goes back to the file

    def _source(self, name: str) -> ModelSource | None:
        """Where what is served comes from; None if nothing is because the last attempt to load it failed."""
        if self._table.failure(name):
            return None
        self._table.get(name)
        return self._table.models[name].source
