"""The loading path from a `ModelSource` (files or a Python function) to a served version with running instances.

Stages and error messages are those of Triton's model lifecycle: errors before any version is created (reading and
validating *config.pbtxt*) are a `ConfigError`; errors during the creation are reported for each version.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from tritonnb.backends.contract import Backend, BackendModel, ModelContext
from tritonnb.backends.isolation.settings import is_isolated
from tritonnb.backends.native.strategy import open_strategy
from tritonnb.backends.registry import BackendRegistry
from tritonnb.core.errors import NotFoundError, TritonError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import ENSEMBLE, find_library
from tritonnb.model_config.batch_strategy import find_batch_strategy
from tritonnb.model_config.chat_template import find_template_problem
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.load import finalize_config, with_instance_groups
from tritonnb.model_config.model_files import check_initial_states
from tritonnb.model_config.oddities import find_oddities
from tritonnb.model_config.unsupported import check_batch_tensors
from tritonnb.runtime.devices import cuda_devices
from tritonnb.runtime.execution.loop import run_in_thread
from tritonnb.runtime.load_errors import triton_errors
from tritonnb.runtime.models.ensemble_driver import EnsembleDriver, ModelLookup
from tritonnb.runtime.models.instance_set import instance_specs
from tritonnb.runtime.models.scheduler_driver import SchedulerDriver
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.runtime.models.warmup import warmup_samples
from tritonnb.runtime.options import EngineOptions
from tritonnb.runtime.shared_services import SharedServices
from tritonnb.scheduling.batching_strategy import BatchingStrategy

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

#: The backend directory of Triton's container, which error messages mention.
_BACKENDS = Path("/opt/tritonserver/backends")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The source of a model: its directory and its configuration.

    Attributes
    ----------
    name : str
    directory : pathlib.Path
        ``REPOSITORY/NAME``; for a Python function the current directory.
    config : inference.ModelConfig
        Normalised, not completed yet.
    versions : tuple of int
        The versions that the version policy selects.
    backend : Backend or None
        None for the backend that the configuration names.
    holder : object or None
        An object that keeps a temporary directory in existence.
    is_config_given : bool
        False if there is no *config.pbtxt*, so that the backend must complete the whole configuration.
    config_text : str or None
        The text of the *config.pbtxt*, if the configuration comes from one.
    """

    name: str
    directory: Path
    config: pb.ModelConfig
    versions: tuple[int, ...]
    backend: Backend | None = None
    holder: object = None
    is_config_given: bool = True
    config_text: str | None = None


class ModelLoader:
    """Creates `ServedModel` objects; slow work runs in a thread pool, the rest on the server's event loop."""

    def __init__(self, options: EngineOptions, shared_services: SharedServices, lookup: ModelLookup) -> None:
        self._options = options
        self._services = shared_services
        self._lookup = lookup
        self._backends = BackendRegistry(options.settings_of, options.backend_directory)
        self.pool = ThreadPoolExecutor(options.model_load_threads, thread_name_prefix="tritonnb load")

    async def create_served(self, source: ModelSource, version: int) -> ServedModel:
        """Create a version of a model and initialise all its instances.

        Raises
        ------
        TritonError
            If loading fails, with the problem of the configuration if that is the cause; all resources are freed.
        """
        with ProblemContext(source.config, source.config_text), triton_errors():
            return await self._create_with_instances(source, version)

    async def _create_with_instances(self, source: ModelSource, version: int) -> ServedModel:
        loop = asyncio.get_running_loop()
        shared = self._services
        if source.config.platform == ENSEMBLE:
            context = await self.run_in_pool(self._ensemble_context, source, version)
            served = ServedModel(context, shared.stream, loop, shared.cache)
            served.driver = EnsembleDriver(served, self._lookup)
            return served
        context, backend_model, strategy = await self.run_in_pool(self._create_backend_model, source, version)
        try:
            served = ServedModel(context, shared.stream, loop, shared.cache)
            driver = SchedulerDriver(served, backend_model, loop, shared.rate_limiter, strategy)
            served.driver = driver
            driver.start(await driver.instances.create(list(instance_specs(context.config)), self.pool))
        except BaseException:
            if strategy is not None:
                strategy.close()
            await run_in_thread(backend_model.finalize)
            raise
        return served

    async def run_in_pool(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a slow function in the thread pool."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, functools.partial(function, *args, **kwargs))

    def close(self) -> None:
        """Finalize the backends; all models must be unloaded."""
        self._backends.finalize()
        self.pool.shutdown(wait=False)

    def _ensemble_context(self, source: ModelSource, version: int) -> ModelContext:
        config = finalize_config(source.config, source.directory)
        return ModelContext(source.name, version, config, source.directory)

    def find_library(self, source: ModelSource, version: int) -> Path | None:
        """The library of the backend, if it is a native one.

        Raises
        ------
        InvalidArgumentError
            If ``runtime`` names one that does not exist.
        """
        return find_library(source.config, source.directory, version, self._options.backend_directory or _BACKENDS)

    async def auto_complete(self, source: ModelSource) -> pb.ModelConfig:
        """Have the backend complete a model's configuration, without loading the model.

        Raises
        ------
        TritonError
            If the backend rejects it.
        """
        return await self.run_in_pool(self._completed_config, source, max(source.versions, default=1))

    def _completed_config(self, source: ModelSource, version: int) -> pb.ModelConfig:
        with self._backend_of(source, version) as (backend, context):
            return self._create_context(source, backend, context)[1]

    @contextmanager
    def _backend_of(self, source: ModelSource, version: int) -> Iterator[tuple[Backend, ModelContext]]:
        """The backend of a model; one for this model alone if it is isolated, which is finalized after the load."""
        library = self.find_library(source, version)
        settings = self._options.settings_of(source.config.backend)
        context = ModelContext(source.name, version, source.config, source.directory, settings, self._services.calls)
        isolate = self._options.isolate if source.backend is None or self._options.isolate is not True else False
        if not is_isolated(source.config, isolate, library is not None):
            yield source.backend or self._backends.get(source.config.backend, library), context
            return
        if source.backend is not None:
            raise UnsupportedError(
                f"model '{source.name}': expected a model of a repository to run in a process of its own, got a "
                "function, which runs in this process, where its variables are"
            )
        backend = self._backends.isolated(source.config.backend, library)
        try:
            backend.open(context)
            yield backend, context
        finally:
            backend.finalize()

    def _create_context(
        self, source: ModelSource, backend: Backend, context: ModelContext
    ) -> tuple[ModelContext, pb.ModelConfig]:
        config = with_instance_groups(
            source.config, gpus=cuda_devices(), default_instance_count=backend.default_instance_count
        )
        context = dataclasses.replace(context, config=config)
        with triton_errors():
            completed = backend.auto_complete(context) if self._options.auto_complete_config else None
        if completed is None and not source.is_config_given:
            raise NotFoundError(
                f"model configuration is not provided for model '{source.name}'",
                hint=f"write {source.directory / 'config.pbtxt'} with the inputs and outputs, which backend "
                f"'{source.config.backend}' cannot determine from the model's file",
            )
        return context, config if completed is None else completed

    def _create_backend_model(
        self, source: ModelSource, version: int
    ) -> tuple[ModelContext, BackendModel, BatchingStrategy | None]:
        with self._backend_of(source, version) as (backend, context), triton_errors():
            context, config = self._create_context(source, backend, context)
            config = finalize_config(config, source.directory)
            for oddity in filter(None, [*find_oddities(config), find_template_problem(source.directory, version)]):
                logger.warning("model '%s': %s", source.name, oddity)
            check_batch_tensors(config, backend.supports_batch_tensors)
            context = dataclasses.replace(context, config=config)
            try:
                check_initial_states(config, source.directory)
            except TritonError:
                if not all(spec.passive for spec in instance_specs(config)):
                    warmup_samples(context)  # if both are invalid, Triton reports the error of the sample
                raise
            backend_model = backend.create_model(context)
            backend_model.initialize()
            try:
                strategy = self._open_strategy(context)
            except BaseException:
                backend_model.finalize()
                raise
        return context, backend_model, strategy

    def _open_strategy(self, context: ModelContext) -> BatchingStrategy | None:
        """The custom batching of a model, if there is a library for it."""
        backends = self._options.backend_directory or _BACKENDS
        path = find_batch_strategy(context.config, context.directory, context.version, backends)
        return None if path is None else open_strategy(path, context)
