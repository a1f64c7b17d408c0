"""The loaded models: loading, polling and unloading them, and the consequences for ensembles.

The steps of loading a model are listed in `tritonnb.engine.repository.loader`. Existing versions serve until all new
versions are ready, so that no request is rejected in between. An ensemble is unloaded when a model of its steps is
unloaded, and loaded again with it.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.texts import listed
from tritonnb.engine.load_errors import log_load_error
from tritonnb.engine.models.ensemble_driver import EnsembleDriver
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.options import EngineOptions
from tritonnb.engine.repository.directories import ModelDirectories, ModelSource
from tritonnb.engine.repository.loader import ModelLoader, SharedServices, driver_of, effective_config
from tritonnb.engine.repository.operations import Operations
from tritonnb.engine.repository.table import ModelTable, ModelVersion, RepositoryModel, VersionState, drain_all
from tritonnb.model_config.backend_selection import ENSEMBLE
from tritonnb.model_config.diff import changed_fields
from tritonnb.model_config.ensemble import check_ensemble, check_no_cycle, models_outside_cycles
from tritonnb.model_config.load import ConfigError
from tritonnb.model_config.model_files import expected_versions
from tritonnb.model_config.normalize import normalize

logger = logging.getLogger(__name__)


class ModelRepository:
    """The model table of a server, and the operations that change it; used on the server's event loop.

    Attributes
    ----------
    table : ModelTable
    operations : Operations
        The loads, changes and unloads in progress.
    directories : ModelDirectories
    loader : ModelLoader
    """

    def __init__(self, options: EngineOptions, shared_services: SharedServices) -> None:
        self.table = ModelTable(shared_services.stream)
        self.operations = Operations()
        self.directories = ModelDirectories(options)
        self._wait_for_sequences = options.wait_for_sequences
        self._loading_steps: dict[str, set[str]] = {}
        self.loader = ModelLoader(options, shared_services, self.table.get)

    # --- loading ------------------------------------------------------------------------------

    async def load(
        self,
        name: str,
        override: str | None = None,
        files: Mapping[str, bytes] | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Load or reload a model; the existing versions serve until the new versions are ready.

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
        await self.operations.run(name, "loaded", self._load(name, override, files, force))

    async def _load(self, name: str, override: str | None, files: Mapping[str, bytes] | None, force: bool) -> None:
        try:
            async with self.table.operating(name) as model:
                model.explicit = True
                if model.source is not None and model.source.backend is not None:
                    await self.load_source_now(model, model.source.with_config(override))
                    return
                await self._look_up(model, name)
                unchanged = override is None and not files and bool(model.tried) and model.files == model.tried
                if force or not unchanged or not model.ready_versions():
                    await self._load_directory(model, name, override, files)
        except TritonError as error:
            if error.hint:
                logger.info("model '%s': %s", name, error.hint)
            raise

    async def load_source(self, source: ModelSource) -> None:
        """Load a model that does not come from a repository."""

        async def load() -> None:
            async with self.table.operating(source.name) as model:
                model.is_known = True
                await self.load_source_now(model, source)

        await self.operations.run(source.name, "loaded", load())

    async def load_source_now(self, model: RepositoryModel, source: ModelSource) -> None:
        """Load a model with a source or configuration that is not in its files, as a part of an operation on it."""
        normalize(source.config)
        model.explicit = True
        await self._load_with_steps(model, source)
        model.files, model.poll_failure = frozenset(), ""

    async def _look_up(self, model: RepositoryModel, name: str) -> None:
        is_on_disk, model.tried = await self.loader.run(self.directories.look_up, name)
        model.is_known |= is_on_disk

    async def names_on_disk(self) -> Counter[str]:
        """Return the number of repositories that contain each model: `ModelDirectories.counts`."""
        return await self.loader.read(self.directories.counts)

    async def poll(self) -> None:
        """Load new and changed models from disk, and unload removed models; errors are logged and change nothing."""
        counts = await self.names_on_disk()
        # A model in two repositories is ambiguous, and left as it is.
        names = sorted(name for name, count in counts.items() if count == 1)
        for name, model in list(self.table.models.items()):
            if name not in names and model.tried:
                model.tried = frozenset()
                await self.unload(name)
        for name in names:
            try:
                _, files = await self.loader.read(self.directories.look_up, name)
                known = self.table.models.get(name)
                if known is None or files != known.tried:
                    await self.load(name)
            except TritonError as error:
                logger.error("failed to poll model '%s': %s", name, error.message)

    async def _load_directory(
        self, model: RepositoryModel, name: str, override: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        try:
            source = await self.loader.run(self.directories.read, name, override, files)
        except ConfigError as error:
            for line in error.log_lines:
                log_load_error(logger, "%s", line)
            model.poll_failure = error.cause
            raise
        model.poll_failure = ""
        loaded_files = frozenset() if files else model.tried
        unchanged: list[int] = []
        if loaded_files and model.source is not None:
            changed = await self.loader.run(changed_fields, model.source.config, source.config)
            unchanged = model.unchanged_versions(source, changed)
        kept = unchanged if unchanged and await self._change_instances(model, source, unchanged) else []
        await self._load_with_steps(model, source, kept)
        model.files = loaded_files

    async def _change_instances(self, model: RepositoryModel, source: ModelSource, versions: Sequence[int]) -> bool:
        """Change the instances of versions that are served; return False if an instance could not be created."""
        async with model.lock:
            assert model.source is not None
            served = [self.table.get(source.name, version) for version in versions]
            try:
                written = model.source.config
                configs = {
                    version: await self.loader.run(effective_config, source, written, version.config)
                    for version in served
                }
                await self.loader.reconfigure(configs)
            except TritonError:
                return False  # reloading the model fails in the same way, and reports the error
            model.source = source
            for driver in map(driver_of, served):
                await driver.instances.removed(driver.scheduler.uses)
            return True

    async def _load_with_steps(self, model: RepositoryModel, source: ModelSource, kept: Collection[int] = ()) -> None:
        if source.config.platform == ENSEMBLE:
            self._loading_steps[source.name] = {step.model_name for step in source.config.ensemble_scheduling.step}
            try:
                await self._load_step_models(source)
                model.ensemble = source
                await self._load_versions(model, source)
            finally:
                self._loading_steps.pop(source.name, None)
            return
        await self._load_versions(model, source, kept)

    async def _load_step_models(self, source: ModelSource) -> None:
        """Load the models of an ensemble's steps that are not loaded or have changed on disk."""
        steps = [step.model_name for step in source.config.ensemble_scheduling.step]
        known = {name: model.step_models() for name, model in self.table.models.items() if model.ensemble is not None}
        # Their steps may come from a load request. If two ensembles are loaded that contain one another, the later one
        # is refused; otherwise each would wait for the other.
        loading = {name: list(names) for name, names in self._loading_steps.items()} | {source.name: steps}

        def steps_of(name: str) -> list[str]:
            return loading.get(name) or self.directories.step_names(name) or known.get(name, [])

        try:
            await self.loader.run(check_no_cycle, source.name, steps_of)
        except TritonError as error:
            outside_cycle = await self.loader.run(models_outside_cycles, source.name, steps_of)
            await asyncio.gather(*map(self._load_step_model, outside_cycle))
            self._refuse_ensemble(self.table.entry(source.name), source.name, error)
        await asyncio.gather(*map(self._load_step_model, dict.fromkeys(steps)))

    async def _load_step_model(self, name: str) -> None:
        if name not in self.table.models and name not in await self.loader.run(self.directories.counts):
            logger.error(ConfigError.not_polled(name).log_lines[0])
            return
        try:
            async with self.table.operating(name) as model:
                source = model.source
                if source is not None and (source.backend is not None or source.keepalive is not None):
                    return
                before = model.tried
                await self._look_up(model, name)
                if model.tried == before and (model.ready_versions() or model.failure or model.poll_failure):
                    return
                await self._load_directory(model, name)
        except TritonError as error:
            logger.error("failed to load '%s' as part of an ensemble: %s", name, error.message)

    async def _load_versions(self, model: RepositoryModel, source: ModelSource, kept: Collection[int] = ()) -> None:
        """Create the versions of a model except those that are ``kept``, then replace those that are served."""
        async with model.lock:
            if source.config.platform == ENSEMBLE:
                source = self._complete_ensemble(model, source)
            await self._require_versions(model, source)
            versions = self._start_loading(model, source, kept)
            loop = asyncio.get_running_loop()
            creating = [loop.create_task(self.loader.create_version(source, version)) for version in versions]
            try:
                # All or nothing, as on Triton: a version that fails takes its siblings with it.
                outcomes = dict(zip(versions, await asyncio.gather(*creating, return_exceptions=True), strict=True))
            except asyncio.CancelledError:  # the event loop ends; those that are not complete free themselves
                for task in creating:
                    if task.done() and not task.cancelled() and task.exception() is None:
                        task.result().driver.abandon()
                raise
            created = {v: outcome for v, outcome in outcomes.items() if isinstance(outcome, ServedModel)}
            failed = {v: outcome for v, outcome in outcomes.items() if isinstance(outcome, BaseException)}
            if failed:
                await asyncio.gather(*(served.driver.close() for served in created.values()))
                self._refuse_versions(model, source, failed)
            self._replace_versions(model, source, created, kept)
        # Without the lock: an ensemble has its own, and whoever holds two can wait for somebody who holds them in the
        # other order.
        await self._reload_ensembles_of(source.name)

    def _start_loading(self, model: RepositoryModel, source: ModelSource, kept: Collection[int]) -> list[int]:
        """Return the versions to create; those that are not served have the state LOADING."""
        for version in source.versions:
            logger.info("loading: %s:%d", source.name, version)
        versions = [version for version in source.versions if version not in kept]
        for version in versions:
            if version not in model.versions or model.versions[version].state is not VersionState.READY:
                self.table.set_version(source.name, version, ModelVersion(VersionState.LOADING))
        return versions

    def _refuse_versions(
        self, model: RepositoryModel, source: ModelSource, failed: Mapping[int, BaseException]
    ) -> None:
        """Raise the error of a failed load; the existing versions continue to serve."""
        messages = []
        for version in sorted(source.versions, reverse=True):
            error = failed.get(version)
            text = f"{error.status.label}: {error.message}" if isinstance(error, TritonError) else "unloaded"
            if model.versions[version].state is VersionState.LOADING:
                self.table.set_version(source.name, version, ModelVersion(VersionState.UNAVAILABLE, text))
            if error is not None:
                log_load_error(logger, "failed to load '%s' version %d: %s", source.name, version, text)
                messages.append(f"version {version} is at UNAVAILABLE state: {text};")
        logger.info("failed to load '%s'", source.name)
        for error in failed.values():
            if not isinstance(error, TritonError):
                raise error
        model.failure = "".join(messages)
        causes = [error for error in failed.values() if isinstance(error, TritonError)]
        raise InvalidArgumentError(
            f"load failed for model '{source.name}': {model.failure}\n",
            # The line break at the end of the text is Triton's.
            hint=next((error.hint for error in causes if error.hint), ""),
            problems=dict.fromkeys(problem for error in causes for problem in error.problems),
            model_error=causes[-1].model_error,
        )

    def _replace_versions(
        self, model: RepositoryModel, source: ModelSource, created: Mapping[int, ServedModel], kept: Collection[int]
    ) -> None:
        replaced = {v: entry for v, entry in model.versions.items() if entry.served is not None and v not in kept}
        model.source, model.failure = source, ""
        for version, served in created.items():
            self.table.set_version(source.name, version, ModelVersion(VersionState.READY, served=served))
        logger.info("successfully loaded '%s'", source.name)
        # From here on requests go to the new version, and the old version is closed later: no request finds neither.
        self.table.set_newest(source.name, model.versions[max(source.versions)].served)
        for version, entry in replaced.items():
            if version in created:
                self.table.close(entry.served)
            else:
                self.table.unload(source.name, version, entry)

    def _complete_ensemble(self, model: RepositoryModel, source: ModelSource) -> ModelSource:
        """Check an ensemble together with its steps, which determine whether it is decoupled."""
        config = copy.deepcopy(source.config)
        try:
            config.model_transaction_policy.decoupled = check_ensemble(config, self.table.as_steps())
        except TritonError as error:
            self._refuse_ensemble(model, source.name, error)
        model.is_valid = True
        return dataclasses.replace(source, config=config)

    def _refuse_ensemble(self, model: RepositoryModel, name: str, error: TritonError) -> None:
        model.is_valid, model.failure = False, error.message
        log_load_error(logger, "%s: %s", error.status.label, error.message)
        raise InvalidArgumentError(f"load failed for model '{name}': {error.message}\n") from error

    async def _require_versions(self, model: RepositoryModel, source: ModelSource) -> None:
        if not source.versions:
            model.failure = f"at least one version must be available under the version policy of model '{source.name}'"
            log_load_error(logger, "failed to load model '%s': %s", source.name, model.failure)
            raise InvalidArgumentError(
                f"load failed for model '{source.name}': {model.failure}\n",
                hint=await self.loader.run(expected_versions, source.config, source.directory),
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
        await self.operations.run(name, "unloaded", self._unload(name, unload_dependents))

    async def _unload(self, name: str, unload_dependents: bool) -> None:
        if name not in self.table.models:
            return
        with self.loader.threads.interrupting(name):  # a warm-up may be longer than its author meant
            for ensemble in self._ensembles_being_loaded_with(name):
                async with ensemble.loading:
                    pass  # earlier loads complete first
            await self._unload_now(name, unload_dependents)

    async def _unload_now(self, name: str, unload_dependents: bool) -> None:
        async with self.table.operating(name) as model:
            step_models = model.step_models()
            async with model.lock:
                model.explicit, model.ensemble, model.files = False, None, frozenset()
                self.table.unload_all(name, model)
            await self._unload_ensembles_of(name)
        for step_model in step_models if unload_dependents else ():
            step = self.table.models.get(step_model)
            if step is not None and not step.explicit and not self.table.ensembles_of(step_model):
                await self._unload(step_model, unload_dependents=True)

    def _ensembles_being_loaded_with(self, step_model: str) -> list[RepositoryModel]:
        """Return the ensembles that are being loaded and contain a model, directly or through other ensembles."""
        ensembles: dict[str, RepositoryModel] = {}
        step_models = [step_model]
        for name in step_models:
            for ensemble, steps in self._loading_steps.items():
                if name in steps and ensemble not in ensembles:
                    ensembles[ensemble] = self.table.entry(ensemble)
                    step_models.append(ensemble)
        return list(ensembles.values())

    async def close(self) -> None:
        """Undo what is being loaded, unload all models, and wait until they are closed."""
        self.loader.refuse("the server is stopping")
        # At the same time, so that accepted requests do not wait for a model that takes long to load.
        await asyncio.gather(self.operations.wait(), self._unload_everything())
        # Again: a load that had created its versions before it could be refused has published them since.
        await self._unload_everything()
        await self.loader.close()

    async def _unload_everything(self) -> None:
        """Unload all models and wait until they are closed; ensembles first, since they use other models."""
        for ensembles in (True, False):
            served = [
                served for served in self.table.served() if isinstance(served.driver, EnsembleDriver) is ensembles
            ]
            await drain_all(served, self._wait_for_sequences)
            for name, model in list(self.table.models.items()):
                if (model.ensemble is not None) is ensembles:
                    self.table.unload_all(name, model)
            await self.table.wait_until_closed()

    def abandon(self, reason: str) -> None:
        """Answer whoever waits with an error that begins with a reason, and free everything without waiting for it."""
        self.operations.give_up(reason)
        self.table.abandon(reason)
        self.loader.refuse("the server is stopping")  # again, for processes that have been started since
        self.loader.abandon()

    def unfinished(self) -> str:
        """Describe the models that `close` waits for; empty if there are none."""
        operations = [f"model '{name}' (being {verb})" for name, verb in self.operations.unfinished()]
        return listed([*self.table.unfinished(), *operations])

    # --- ensembles depend on the models of their steps -----------------------------------------

    async def _reload_ensembles_of(self, step_model: str) -> None:
        """Reload the ensembles that contain a model that was loaded; unload those that it no longer fits."""
        for name in self.table.ensembles_of(step_model):
            model = self.table.models[name]
            assert model.ensemble is not None
            try:
                await self._load_versions(model, model.ensemble)
            except TritonError as error:
                logger.error(
                    "ensemble '%s' is unloaded, since it does not fit '%s': %s", name, step_model, error.message
                )
                await self._unload_ensemble(name)

    async def _unload_ensembles_of(self, step_model: str) -> None:
        """Unload the ensembles that contain a model that was unloaded."""
        for name in self.table.ensembles_of(step_model):
            await self._unload_ensemble(name)

    async def _unload_ensemble(self, name: str) -> None:
        model = self.table.models[name]
        async with model.lock:
            self.table.unload_all(name, model)
        await self._unload_ensembles_of(name)
