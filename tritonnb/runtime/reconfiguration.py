"""Changing the configuration of a model that is served: in place where that is enough."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.diff import effect_of, with_scheduling_of
from tritonnb.model_config.load import ConfigError, config_path
from tritonnb.model_config.normalize import normalize
from tritonnb.runtime import in_place
from tritonnb.runtime.loading import ModelSource
from tritonnb.runtime.options import EngineOptions
from tritonnb.runtime.repository import ModelRepository, with_config


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
        """The *config.pbtxt* of a model that is served; None of one that comes from no repository.

        Raises
        ------
        NotFoundError
            If it is not served.
        """
        source = self._source(name)
        if source.backend is not None:
            return None
        return config_path(source.directory, self._options.model_config_name or None)

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
        source = self._source(name)
        override = json_format.MessageToJson(config)
        if source.backend is None:
            directories, loader = self._repository.directories, self._repository.loader
            try:
                wanted = await loader.in_thread(directories.read_directory, name, source.directory, override)
            except ConfigError as error:
                raise InvalidArgumentError(error.cause) from error
        else:
            wanted = with_config(source, override)
            normalize(wanted.config)
        return in_place.finished(wanted, source.config, self._table.get(name).config)

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
        effect = effect_of(self._table.get(name).config, wanted)
        if effect == "in place":
            await self._reconfigure(name, wanted)
        elif effect == "reloaded":
            await self._repository.load(name, json_format.MessageToJson(config))
        return effect

    async def _reconfigure(self, name: str, config: Any) -> None:
        """Change the scheduling, or the instances, of a model that runs, without loading it again."""
        model = self._table.models[name]
        async with model.lock:
            source = self._source(name)
            versions = [self._table.get(name, each) for each in self._table.ready_versions(name)]
            await in_place.reconfigure(versions, config, self._repository.loader)
            model.source = dataclasses.replace(source, config=with_scheduling_of(source.config, config))
            model.files = frozenset()  # a plain load goes back to the file

    def _source(self, name: str) -> ModelSource:
        self._table.get(name)
        source = self._table.models[name].source
        assert source is not None
        return source
