"""Loading and unloading models: the first part of the loading path, and the consequences for ensembles.

`ModelRepository.load` -> ``_load_by_name`` (nothing to do if no file changed) -> ``_load_from_disk`` (`directories`
reads the files, `live_update` changes the instances of versions that stay) -> ``_load_with_steps`` (the models of an
ensemble's steps first) -> ``_swap_versions`` (`lifecycle` creates the other versions with `loader` and replaces the old
ones) -> ``_reload_ensembles_of``.

An ensemble is unloaded when a model of its steps is unloaded, and loaded again with it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import ENSEMBLE
from tritonnb.model_config.ensemble import StepModel, check_ensemble, check_no_cycle, models_outside_cycles
from tritonnb.model_config.json_config import parse_json
from tritonnb.model_config.load import ConfigError
from tritonnb.model_config.normalize import normalize
from tritonnb.model_config.versions import expected_versions
from tritonnb.runtime.load_errors import log_load_error
from tritonnb.runtime.models.ensemble_driver import EnsembleDriver
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.runtime.options import EngineOptions
from tritonnb.runtime.repository import live_update
from tritonnb.runtime.repository.directories import ModelDirectories
from tritonnb.runtime.repository.drain import drain_all
from tritonnb.runtime.repository.lifecycle import ModelLifecycle
from tritonnb.runtime.repository.loader import ModelLoader, ModelSource
from tritonnb.runtime.repository.table import Model, ModelTable
from tritonnb.runtime.shared_services import SharedServices

logger = logging.getLogger(__name__)


class ModelRepository:
    """Changes the model table of a server; used on the server's event loop.

    Attributes
    ----------
    table : ModelTable
    directories : ModelDirectories
    loader : ModelLoader
    """

    def __init__(self, options: EngineOptions, shared_services: SharedServices) -> None:
        self.table = ModelTable()
        self.directories = ModelDirectories(options)
        self._wait_for_sequences = options.wait_for_sequences
        self._loading_steps: dict[str, set[str]] = {}
        self.loader = ModelLoader(options, shared_services, self.table.get)
        self._lifecycle = ModelLifecycle(self.table, self.loader, shared_services.stream, options.model_load_retries)

    # --- loading ------------------------------------------------------------------------------

    async def load(
        self,
        name: str,
        override: str | None = None,
        files: Mapping[str, bytes] | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Load or reload a model; the existing versions serve until the new ones are ready.

        Parameters
        ----------
        name : str
        override : str, optional
            A configuration as JSON, instead of the configuration file (``config`` load parameter).
        files : mapping of str to bytes, optional
            Files that replace the model's directory (``file:`` load parameters).
        force : bool, optional
            Load it even if nothing has changed.

        Raises
        ------
        ConfigError
            If the directory or the configuration is invalid: Triton's "failed to poll".
        InvalidArgumentError
            If a version could not be created, or the steps of an ensemble are invalid.
        """
        try:
            await self._load_by_name(name, override, files, force)
        except TritonError as error:
            if error.hint:
                logger.info("model '%s': %s", name, error.hint)
            raise

    async def _load_by_name(
        self, name: str, override: str | None, files: Mapping[str, bytes] | None, force: bool
    ) -> None:
        model = self.table.entry(name)
        model.explicit = True
        if model.source is not None and model.source.backend is not None:
            await self.load_source(with_config(model.source, override))
            return
        async with model.loading:
            model.tried = await self.loader.run_in_pool(self.directories.fingerprint, name)
            unchanged = override is None and not files and bool(model.tried) and model.files == model.tried
            if unchanged and not force and model.ready_versions():
                return
            await self._load_from_disk(model, name, override, files)

    async def load_source(self, source: ModelSource) -> None:
        """Load a model that does not come from a repository."""
        normalize(source.config)
        model = self.table.entry(source.name)
        model.explicit = True
        await self._load_with_steps(model, source)

    async def reload(self, source: ModelSource) -> None:
        """Reload a model with the configuration of ``source`` instead of that of its files."""
        model = self.table.entry(source.name)
        model.explicit = True
        await self._load_with_steps(model, source)
        model.files, model.poll_failure = frozenset(), ""

    async def poll(self) -> None:
        """Load models that are new or changed on disk and unload removed ones; errors are logged and change nothing."""
        counts = await self.loader.run_in_pool(self.directories.counts)
        names = sorted(name for name, count in counts.items() if count == 1)
        for name, model in list(self.table.models.items()):
            if name not in names and model.tried:
                model.tried = frozenset()
                await self.unload(name)
        for name in names:
            try:
                files = await self.loader.run_in_pool(self.directories.fingerprint, name)
                if files != self.table.entry(name).tried:
                    await self.load(name)
            except TritonError as error:
                logger.error("failed to poll model '%s': %s", name, error.message)

    async def _load_from_disk(
        self, model: Model, name: str, override: str | None, files: Mapping[str, bytes] | None
    ) -> None:
        try:
            source = await self.loader.run_in_pool(self.directories.read, name, override, files)
        except ConfigError as error:
            for line in error.log_lines:
                log_load_error(logger, "%s", line)
            model.poll_failure = error.cause
            raise
        model.poll_failure = ""
        loaded_files = frozenset() if files else model.tried
        unchanged = live_update.unchanged_versions(model, source) if loaded_files else []
        kept = unchanged if unchanged and await self._change_instances(model, source, unchanged) else []
        await self._load_with_steps(model, source, kept)
        model.files = loaded_files

    async def _change_instances(self, model: Model, source: ModelSource, versions: Sequence[int]) -> bool:
        """Change the instances of versions that are served; returns False if an instance could not be created."""
        async with model.lock:
            assert model.source is not None
            served = [self.table.get(source.name, version) for version in versions]
            try:
                configs = {
                    version: live_update.effective_config(source, model.source.config, version.config)
                    for version in served
                }
                await live_update.reconfigure(configs, self.loader)
            except TritonError:
                return False  # reloading the model fails in the same way, and reports the error
            model.source = source
            await live_update.wait_until_instances_removed(served)
            return True

    async def _load_with_steps(self, model: Model, source: ModelSource, kept: Collection[int] = ()) -> None:
        if source.config.platform == ENSEMBLE:
            self._loading_steps[source.name] = {step.model_name for step in source.config.ensemble_scheduling.step}
            try:
                await self._load_step_models(source)
                model.ensemble = source
                await self._swap_versions(model, source)
            finally:
                self._loading_steps.pop(source.name, None)
            return
        await self._swap_versions(model, source, kept)

    async def _load_step_models(self, source: ModelSource) -> None:
        """Load the models of an ensemble's steps that are not loaded or have changed on disk."""
        steps = [step.model_name for step in source.config.ensemble_scheduling.step]
        known = {name: model.step_models() for name, model in self.table.models.items() if model.ensemble is not None}

        def steps_of(name: str) -> list[str]:
            return steps if name == source.name else self.directories.step_names(name) or known.get(name, [])

        try:
            await self.loader.run_in_pool(check_no_cycle, source.name, steps_of)
        except TritonError as error:
            outside_cycle = await self.loader.run_in_pool(models_outside_cycles, source.name, steps_of)
            await asyncio.gather(*map(self._load_step_model, outside_cycle))
            self._refuse_ensemble(self.table.entry(source.name), source.name, error)
        await asyncio.gather(*map(self._load_step_model, dict.fromkeys(steps)))

    async def _load_step_model(self, name: str) -> None:
        if name not in self.table.models and name not in await self.loader.run_in_pool(self.directories.names):
            logger.error(ConfigError.not_polled(name).log_lines[0])
            return
        model = self.table.entry(name)
        if model.source is not None and (model.source.backend is not None or model.source.holder is not None):
            return
        try:
            async with model.loading:
                files = await self.loader.run_in_pool(self.directories.fingerprint, name)
                if files == model.tried and (model.ready_versions() or model.failure or model.poll_failure):
                    return
                model.tried = files
                await self._load_from_disk(model, name, None, None)
        except TritonError as error:
            logger.error("failed to load '%s' as part of an ensemble: %s", name, error.message)

    async def _swap_versions(self, model: Model, source: ModelSource, kept: Collection[int] = ()) -> None:
        async with model.lock:
            if source.config.platform == ENSEMBLE:
                source = self._complete_ensemble(model, source)
            self._require_versions(model, source)
            await self._lifecycle.create_and_swap(model, source, kept)
        await self._reload_ensembles_of(source.name)

    def _complete_ensemble(self, model: Model, source: ModelSource) -> ModelSource:
        """Check an ensemble together with its steps, which determine whether it is decoupled."""
        config = pb.ModelConfig()
        config.CopyFrom(source.config)
        try:
            config.model_transaction_policy.decoupled = check_ensemble(config, self._step_model)
        except TritonError as error:
            self._refuse_ensemble(model, source.name, error)
        model.is_valid = True
        return dataclasses.replace(source, config=config)

    def _step_model(self, name: str) -> StepModel | None:
        model = self.table.models.get(name)
        return None if model is None else model.as_step()

    def _refuse_ensemble(self, model: Model, name: str, error: TritonError) -> None:
        model.is_valid, model.failure = False, error.message
        log_load_error(logger, "%s: %s", error.status.label, error.message)
        raise InvalidArgumentError(f"load failed for model '{name}': {error.message}\n") from error

    def _require_versions(self, model: Model, source: ModelSource) -> None:
        if not source.versions:
            model.failure = f"at least one version must be available under the version policy of model '{source.name}'"
            log_load_error(logger, "failed to load model '%s': %s", source.name, model.failure)
            raise InvalidArgumentError(
                f"load failed for model '{source.name}': {model.failure}\n",
                hint=expected_versions(source.config, source.directory),
            )

    # --- unloading ----------------------------------------------------------------------------

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Stop accepting requests for a model; it is freed when the requests that it accepted are complete.

        Parameters
        ----------
        name : str
            An unknown name is ignored.
        unload_dependents : bool
            Also unload the models of an ensemble's steps, except those that were loaded by name or that
            another ensemble uses.
        """
        model = self.table.models.get(name)
        if model is None:
            return
        for concerned in [*self._ensembles_being_loaded_with(name), model]:
            async with concerned.loading:
                pass  # earlier loads complete first
        step_models = model.step_models()
        async with model.lock:
            model.explicit, model.ensemble, model.files = False, None, frozenset()
            self._lifecycle.retire_all(name, model)
        await self._retire_ensembles_of(name)
        for step_model in step_models if unload_dependents else ():
            if not self.table.entry(step_model).explicit and not self.table.ensembles_of(step_model):
                await self.unload(step_model, unload_dependents=True)

    def _ensembles_being_loaded_with(self, step_model: str) -> list[Model]:
        """The ensembles that are being loaded and contain a model, directly or through other ensembles."""
        ensembles: dict[str, Model] = {}
        step_models = [step_model]
        for name in step_models:
            for ensemble, steps in self._loading_steps.items():
                if name in steps and ensemble not in ensembles:
                    ensembles[ensemble] = self.table.entry(ensemble)
                    step_models.append(ensemble)
        return list(ensembles.values())

    async def close(self) -> None:
        """Unload all models and wait until they are closed; ensembles first, since they use other models."""
        for ensembles in (True, False):
            served = [
                served for served in self.table.served() if isinstance(served.driver, EnsembleDriver) is ensembles
            ]
            await drain_all(served, self._wait_for_sequences)
            for name, model in list(self.table.models.items()):
                if (model.ensemble is not None) is ensembles:
                    self._lifecycle.retire_all(name, model)
            await self._lifecycle.wait_until_closed()
        self.loader.close()

    def unfinished(self) -> list[ServedModel]:
        """The versions that `close` waits for."""
        return [*(served for served in self.table.served() if served.in_flight), *self._lifecycle.closing_versions()]

    # --- ensembles depend on the models of their steps -----------------------------------------

    async def _reload_ensembles_of(self, step_model: str) -> None:
        """After a model was loaded, reload the ensembles that contain it; retire those that it no longer fits."""
        for name in self.table.ensembles_of(step_model):
            model = self.table.models[name]
            assert model.ensemble is not None
            try:
                await self._swap_versions(model, model.ensemble)
            except TritonError as error:
                logger.error(
                    "ensemble '%s' is unloaded, since it does not fit '%s': %s", name, step_model, error.message
                )
                async with model.lock:
                    self._lifecycle.retire_all(name, model)
                await self._retire_ensembles_of(name)

    async def _retire_ensembles_of(self, step_model: str) -> None:
        """After a model was unloaded, retire the ensembles that contain it."""
        for name in self.table.ensembles_of(step_model):
            model = self.table.models[name]
            async with model.lock:
                self._lifecycle.retire_all(name, model)
            await self._retire_ensembles_of(name)


def with_config(source: ModelSource, override: str | None) -> ModelSource:
    """The source of a model that does not come from a directory, with another configuration."""
    return source if override is None else dataclasses.replace(source, config=parse_json(override))
