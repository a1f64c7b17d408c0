"""Loading a model, from its name to running instances, in eight steps. Each calls the next; step 6 calls 7 and 8.

1. `ModelRepository.load`: do nothing if no file of the model has changed.
2. ``ModelRepository._load_directory``: read the files; versions without changed files stay, with new instances.
3. ``ModelRepository._load_with_steps``: load the models of the steps of an ensemble first.
4. ``ModelRepository._load_versions``: create the other versions, then replace those that are served.
5. `ModelLoader.create_version`: create a version, with ``model_load_retries`` further attempts.
6. ``ModelLoader._create_served``: create the served model, and start its scheduler when its instances are created.
7. ``ModelLoader._create_backend_model``: complete and check the configuration, and create the model of the backend.
8. `InstanceSet.create`: create, initialise and warm up the instances.

Every load is a task of `Operations`: if its caller is cancelled, it continues. It is undone if the server stops: no
thread of `ModelLoader.threads` starts then, so it ends with an error before its next step.

`Engine.load_source` and `Engine.apply`, which load models from a function or with another configuration, begin with
step 3, and an ensemble that is loaded again after a model of its steps with step 4. The first four steps are in
`repository.py`, the last in `instance_set.py`. `ModelLoader.reconfigure` changes a model that is served, without
loading it again.

Order and error messages follow Triton's model lifecycle: errors of steps 1 and 2 (reading and validating
*config.pbtxt*) are a `ConfigError`; errors of steps 5 to 8 are reported for each version.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from tritonnb.backends.contract import Backend, BackendModel, ModelContext, ServerCalls
from tritonnb.backends.devices import cuda_devices
from tritonnb.backends.isolation.launch import is_isolated
from tritonnb.backends.isolation.process import end_all, end_starting
from tritonnb.backends.location import BACKEND_DIRECTORY
from tritonnb.backends.native.strategy import open_strategy
from tritonnb.backends.registry import BackendRegistry
from tritonnb.core.errors import NotFoundError, TritonError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.execution.instance import Instance
from tritonnb.engine.execution.loop import ThreadLimit, run_in_thread
from tritonnb.engine.load_errors import triton_errors
from tritonnb.engine.models.ensemble_driver import EnsembleDriver, ModelLookup
from tritonnb.engine.models.instance_set import instance_specs
from tritonnb.engine.models.response_cache import ResponseCache
from tritonnb.engine.models.scheduler_driver import SchedulerDriver, free_model
from tritonnb.engine.models.sequence_inputs import SequenceInputs
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.models.warmup import warmup_samples
from tritonnb.engine.options import EngineOptions
from tritonnb.engine.repository.directories import ModelSource
from tritonnb.model_config.backend_selection import ENSEMBLE, find_batch_strategy, find_library
from tritonnb.model_config.chat_template import find_template_problem
from tritonnb.model_config.diagnose import problem_context
from tritonnb.model_config.diff import completed
from tritonnb.model_config.load import finalize_config
from tritonnb.model_config.model_files import check_data_files, check_initial_states, read_labels
from tritonnb.model_config.normalize import with_instance_groups
from tritonnb.model_config.validate import check_batch_tensors, find_oddities
from tritonnb.scheduling.batch_pass import BatchingStrategy
from tritonnb.scheduling.instances import RateLimiter
from tritonnb.telemetry.stream import EventStream

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

#: The number of threads that read the repositories, in addition to those that load models.
_READERS = 4


@dataclass(frozen=True, slots=True)
class SharedServices:
    """The services that all models of a server share.

    Attributes
    ----------
    stream : EventStream
    calls : ServerCalls
        Calls from models to the server.
    cache : ResponseCache or None
    rate_limiter : RateLimiter or None
    """

    stream: EventStream
    calls: ServerCalls
    cache: ResponseCache | None = None
    rate_limiter: RateLimiter | None = None


@dataclass(frozen=True, slots=True)
class _Created:
    """The parts of a version that has no instances yet; ``context`` has the complete configuration."""

    context: ModelContext
    labels: dict[str, list[str]]
    backend_model: BackendModel
    strategy: BatchingStrategy | None
    sequences: SequenceInputs | None

    def free(self) -> None:
        """Free the model, which has no instances."""
        free_model(self.backend_model, self.strategy)


class ModelLoader:
    """A loader of served models; slow work runs in threads, the rest on the server's event loop.

    Attributes
    ----------
    threads : ThreadLimit
        For loading models.
    readers : ThreadLimit
        For reading files and directories while models are being loaded, which may take long.
    """

    def __init__(self, options: EngineOptions, shared_services: SharedServices, lookup: ModelLookup) -> None:
        self._options = options
        self._services = shared_services
        self._lookup = lookup
        self._backend_directory = options.backend_directory or BACKEND_DIRECTORY
        self._backends = BackendRegistry(options.settings_of, self._backend_directory)
        self.threads = ThreadLimit(max(1, options.model_load_threads))
        # Separate from the loads, or the index would wait for a model that takes minutes.
        self.readers = ThreadLimit(_READERS)

    async def create_version(self, source: ModelSource, version: int) -> ServedModel:
        """Create a version of a model and all its instances, retrying up to ``model_load_retries`` times.

        Raises
        ------
        TritonError
            The error of the last attempt, with the problem of the configuration if that is the cause; all resources
            are freed.
        """
        started = time.monotonic()
        for _ in range(self._options.model_load_retries):
            try:
                served = await self._create_served(source, version)
                break
            except TritonError as error:
                # A server that stops does not try again.
                self.threads.check()
                logger.error("failed to load '%s' version %d, trying again: %s", source.name, version, error.message)
        else:
            served = await self._create_served(source, version)
        served.load_seconds = time.monotonic() - started
        return served

    async def _create_served(self, source: ModelSource, version: int) -> ServedModel:
        shared, loop = self._services, asyncio.get_running_loop()
        with problem_context(source.config, source.config_text), triton_errors():
            if source.config.platform == ENSEMBLE:
                context, labels = await self.run(self._create_ensemble, source, version)
                served = ServedModel(context, shared.stream, shared.cache, labels)
                served.driver = EnsembleDriver(served, self._lookup)
                return served
            create = functools.partial(self._create_backend_model, source, version)
            # The thread completes the model even if nobody waits for it any more, and then frees it.
            created = await self.threads.run(create, undo=_Created.free)
            served = ServedModel(created.context, shared.stream, shared.cache, created.labels)
            served.driver = driver = SchedulerDriver(
                served, created.backend_model, loop, shared.rate_limiter, created.strategy, created.sequences
            )
            try:
                specs = list(instance_specs(created.context.config))
                driver.start(await driver.instances.create(specs, self.threads))
            except BaseException:
                await driver.close()
                raise
            return served

    async def reconfigure(self, configs: Mapping[ServedModel, pb.ModelConfig]) -> None:
        """Change the scheduling settings and the instances of versions of a model in place.

        Raises
        ------
        TritonError
            If an instance cannot be created; nothing is changed.
        """
        drivers = {driver_of(served): config for served, config in configs.items()}
        added: dict[SchedulerDriver, list[Instance]] = {}
        try:
            for driver, config in drivers.items():
                added[driver] = await driver.instances.create(driver.instances.missing(config), self.threads)
        except BaseException:
            for driver, created in added.items():
                await driver.instances.discard(created)
            raise
        for driver, created in added.items():
            # Only now that the instances of all versions exist, so that a failure changes nothing.
            driver.reconfigure(drivers[driver], created)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a slow function of a load in a thread."""
        return await self.threads.run(functools.partial(function, *args, **kwargs))

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read files or directories in a thread, even while all threads load models."""
        return await self.readers.run(functools.partial(function, *args, **kwargs))

    def refuse(self, reason: str) -> None:
        """End the loads that are in progress at their next step, and the processes that start."""
        self.threads.refuse(reason)
        # Processes can be ended, threads cannot: a model that a thread creates delays the stop by up to `exit_timeout`.
        end_starting(self._services.calls)

    def abandon(self) -> None:
        """End the processes of all models, whatever they execute: nobody waits for it."""
        end_all(self._services.calls)

    async def close(self) -> None:
        """Finalize the backends; all models must be unloaded."""
        await run_in_thread(self._backends.finalize)

    def find_library(self, source: ModelSource, version: int) -> Path | None:
        """Return the file of the backend, if it is a native backend, or ``runtime`` names it.

        Raises
        ------
        InvalidArgumentError
            If ``runtime`` names a library that does not exist.
        """
        return find_library(source.config, source.directory, version, self._backend_directory)

    def auto_complete(self, source: ModelSource) -> pb.ModelConfig:
        """Let the backend complete a model's configuration without loading the model; slow.

        Raises
        ------
        TritonError
            If the backend rejects it.
        """
        version = max(source.versions, default=1)
        with self._backend_of(source, version) as (backend, context):
            config, model = self._complete(source, backend, context)
            if model is not None:
                model.finalize()
        return config

    @contextmanager
    def _backend_of(self, source: ModelSource, version: int) -> Iterator[tuple[Backend, ModelContext]]:
        """Provide the backend of a model; an isolated model has its own, which is finalized after the load."""
        library = self.find_library(source, version)
        settings = self._options.settings_of(source.config.backend)
        context = ModelContext(source.name, version, source.config, source.directory, settings, self._services.calls)
        isolate = self._options.isolate if source.backend is None or self._options.isolate is not True else False
        if not is_isolated(source.config, isolate, library is not None and library.suffix != ".py"):
            yield source.backend or self._backends.get(source.config.backend, library), context
            return
        if source.backend is not None:
            raise UnsupportedError(
                f"model '{source.name}': expected a model of a repository to run in its own process, got a "
                "function, which runs in this process, where its variables are"
            )
        backend = self._backends.isolated(context, library)
        try:
            yield backend, context
        finally:
            backend.finalize()

    def _complete(
        self, source: ModelSource, backend: Backend, context: ModelContext
    ) -> tuple[pb.ModelConfig, BackendModel | None]:
        """Return the completed configuration, and the model if the backend has initialised it for that."""
        config = with_instance_groups(
            source.config, gpus=cuda_devices(), default_instance_count=backend.default_instance_count
        )
        if not self._options.auto_complete_config:
            auto_completed, model = None, None
        else:
            with triton_errors():
                auto_completed, model = backend.complete(dataclasses.replace(context, config=config))
        if auto_completed is None and not source.is_config_given:
            raise NotFoundError(
                f"model configuration is not provided for model '{source.name}'",
                hint=f"write {source.directory / 'config.pbtxt'} with the inputs and outputs, which backend "
                f"'{source.config.backend}' cannot determine from the model's file",
            )
        return config if auto_completed is None else auto_completed, model

    def _create_ensemble(self, source: ModelSource, version: int) -> tuple[ModelContext, dict[str, list[str]]]:
        config = finalize_config(source.config, source.directory)
        return ModelContext(source.name, version, config, source.directory), read_labels(config, source.directory)

    def _create_backend_model(self, source: ModelSource, version: int) -> _Created:
        with self._backend_of(source, version) as (backend, context), triton_errors():
            config, backend_model = self._complete(source, backend, context)
            strategy = None
            try:
                config = finalize_config(config, source.directory)
                context = dataclasses.replace(context, config=config)
                self._check(source, backend, context)
                if backend_model is None:
                    created = backend.create_model(context)
                    created.initialize()
                    backend_model = created
                else:
                    backend_model.configure(context)
                path = find_batch_strategy(config, context.directory, version, self._backend_directory)
                strategy = None if path is None else open_strategy(path, context)
                has_sequences = config.HasField("sequence_batching")
                sequences = SequenceInputs(config, context.directory) if has_sequences else None
                labels = read_labels(config, context.directory)
            except BaseException:
                if backend_model is not None:
                    free_model(backend_model, strategy)
                raise
        return _Created(context, labels, backend_model, strategy, sequences)

    def _check(self, source: ModelSource, backend: Backend, context: ModelContext) -> None:
        """Raise an error if a model with this configuration cannot run."""
        config = context.config
        for oddity in filter(None, [*find_oddities(config), find_template_problem(source.directory, context.version)]):
            logger.warning("model '%s': %s", source.name, oddity)
        check_batch_tensors(config, backend.supports_batch_tensors)
        try:
            check_initial_states(config, source.directory)
        except TritonError:
            if not all(spec.passive for spec in instance_specs(config)):
                warmup_samples(context)  # if both are invalid, Triton reports the error of the sample
            raise


def effective_config(source: ModelSource, written: pb.ModelConfig, running: pb.ModelConfig) -> pb.ModelConfig:
    """Return a model's configuration, completed with the fields that its backend added to the running model's.

    Parameters
    ----------
    source : ModelSource
        With the new configuration, as written and normalised.
    written, running : inference.ModelConfig
        The configuration that the running model was loaded with, as written, and as the backend completed it.

    Raises
    ------
    TritonError
        If the configuration is invalid.
    """
    config = with_instance_groups(
        completed(source.config, written, running), gpus=cuda_devices(), default_instance_count=lambda kind: 1
    )
    config = finalize_config(config, source.directory)
    check_data_files(config, source.directory)
    return config


def driver_of(served: ServedModel) -> SchedulerDriver:
    """Return the driver of a model that is not an ensemble."""
    assert isinstance(served.driver, SchedulerDriver)
    return served.driver
