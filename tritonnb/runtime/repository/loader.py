"""Creating a served model version: from files, or from a Python function, to running instances.

Stages and error texts are those of Triton's model lifecycle: what fails before any version is
created (reading and validating *config.pbtxt*) is a `ConfigError`; what fails while a version is
created is reported for each version.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tritonnb.backends.contract import Backend, BackendModel, InstanceSpec, ModelContext
from tritonnb.backends.registry import BackendRegistry
from tritonnb.core.errors import InternalError, NotFoundError, TritonError, error_message
from tritonnb.core.failures import frames_to_notes
from tritonnb.model_config.backend_selection import ENSEMBLE, check_runtime
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.load import finalize_config, with_instance_groups
from tritonnb.model_config.model_files import check_initial_states
from tritonnb.model_config.unsupported import check_batch_tensors
from tritonnb.runtime.devices import cuda_devices
from tritonnb.runtime.execution.instance import Instance
from tritonnb.runtime.execution.instance_pool import instance_specs
from tritonnb.runtime.execution.loop import in_thread
from tritonnb.runtime.models.served_base import Served
from tritonnb.runtime.models.served_ensemble import Find, ServedEnsemble
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.runtime.models.warmup import warmup_samples
from tritonnb.runtime.options import EngineOptions
from tritonnb.runtime.repository.load_log import log_load_error
from tritonnb.runtime.shared_services import SharedServices

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Where Triton's container has its backends; error texts name it.
_BACKENDS = Path("/opt/tritonserver/backends")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from.

    Attributes
    ----------
    name : str
    directory : pathlib.Path
        ``REPOSITORY/NAME``; of a Python function the current directory.
    config : inference.ModelConfig
        Normalised, not completed yet.
    versions : tuple of int
        Those the version policy selects.
    backend : Backend or None
        None: the one that the configuration names.
    holder : object or None
        Keeps a directory that exists only for this source.
    is_config_given : bool
        False where there is no *config.pbtxt*, so that the backend must tell everything.
    config_text : str or None
        The text of the *config.pbtxt*, if the configuration comes from one.
    """

    name: str
    directory: Path
    config: Any
    versions: tuple[int, ...]
    backend: Backend | None = None
    holder: object = None
    is_config_given: bool = True
    config_text: str | None = None


class ModelLoader:
    """Makes `Served` objects; slow work happens on a pool of threads, the rest on the loop."""

    def __init__(self, options: EngineOptions, shared_services: SharedServices, find: Find) -> None:
        self._options = options
        self._facilities = shared_services
        self._find = find
        self._backends = BackendRegistry(options.settings_of, options.backend_directory)
        self._pool = ThreadPoolExecutor(options.model_load_threads, thread_name_prefix="tritonnb load")

    async def create(self, source: ModelSource, version: int) -> Served:
        """One version of a model with all its instances initialised.

        Raises
        ------
        TritonError
            Whatever was wrong, with the problem of the configuration if it is one; nothing is left behind.
        """
        with ProblemContext(source.config, source.config_text), _AsTritonError():
            return await self._create(source, version)

    async def _create(self, source: ModelSource, version: int) -> Served:
        loop = asyncio.get_running_loop()
        shared = self._facilities
        if source.config.platform == ENSEMBLE:
            context = await self.in_thread(self._ensemble_context, source, version)
            ensemble = ServedEnsemble(context, self._find, shared.stream, loop)
            ensemble.use_cache(shared.cache)
            return ensemble
        context, backend_model = await self.in_thread(self._create_backend_model, source, version)
        try:
            served = ServedModel(context, backend_model, shared.stream, loop)
            instances = await self.create_instances(served, list(instance_specs(context.config)))
        except BaseException:
            await in_thread(backend_model.finalize)
            raise
        served.use_cache(shared.cache)
        served.begin(instances)
        return served

    async def create_instances(self, served: ServedModel, specs: Sequence[InstanceSpec]) -> list[Instance]:
        """Instances of a model version, initialised and warmed up.

        Raises
        ------
        TritonError
            Whatever was wrong, with the last instance if it was several; nothing is left behind.
        """
        instances: list[Instance] = []
        try:
            errors = await self._start_instances(served, specs, instances)
            if errors:
                raise errors.pop()  # it will hold this frame, which must not hold it
            active = [each for each in instances if not each.spec.passive]
            samples = await self.in_thread(warmup_samples, served.context) if active else []
            for instance in active:
                await served.warm_up(instance, samples)
        except BaseException:
            for instance in instances:
                await instance.stop()
            served.unlimit(spec.index for spec in specs)
            raise
        return instances

    async def _start_instances(
        self, served: ServedModel, specs: Sequence[InstanceSpec], instances: list[Instance]
    ) -> list[BaseException]:
        """Add those that start; what the others failed of."""
        errors: list[BaseException] = []
        at_once = len(specs) if served.backend_model.parallel_instances else 1
        for first in range(0, len(specs), max(at_once, 1)):
            started = [self._start_instance(served, spec) for spec in specs[first : first + at_once]]
            for outcome in await asyncio.gather(*started, return_exceptions=True):
                if isinstance(outcome, Instance):
                    instances.append(outcome)
                else:
                    log_load_error(logger, "ERROR: Failed to create instance: %s", error_message(outcome))
                    errors.append(outcome)
        return errors

    async def _start_instance(self, served: ServedModel, spec: InstanceSpec) -> Instance:
        served.limit(spec, self._facilities.rate_limiter)
        backend_instance = await self.in_thread(served.backend_model.create_instance, spec)
        instance = Instance(spec, backend_instance, asyncio.get_running_loop(), served.executed)
        await _reported(instance.start())
        return instance

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run something slow off the loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(function, *args))

    def close(self) -> None:
        """Finalize the backends; no model may be left."""
        self._backends.finalize()
        self._pool.shutdown(wait=False)

    def _ensemble_context(self, source: ModelSource, version: int) -> ModelContext:
        config = finalize_config(source.config, source.directory)
        return ModelContext(source.name, version, config, source.directory)

    def check_runtime(self, source: ModelSource, version: int) -> None:
        """Check that ``runtime`` names the library of the backend.

        Raises
        ------
        InvalidArgumentError
            If it does not.
        """
        check_runtime(source.config, source.directory, version, self._options.backend_directory or _BACKENDS)

    async def completed(self, source: ModelSource) -> Any:
        """A model's configuration with what its backend adds to it; the model is not loaded.

        Raises
        ------
        TritonError
            If the backend refuses it.
        """
        return await self.in_thread(lambda: self._completed(source, max(source.versions, default=1))[2])

    def _completed(self, source: ModelSource, version: int) -> tuple[Backend, ModelContext, Any]:
        self.check_runtime(source, version)
        backend = source.backend or self._backends.get(source.config.backend)
        config = with_instance_groups(
            source.config, gpus=cuda_devices(), default_instance_count=backend.default_instance_count
        )
        context = ModelContext(
            source.name,
            version,
            config,
            source.directory,
            self._options.settings_of(source.config.backend),
            self._facilities.calls,
        )
        with _AsTritonError():
            completed = backend.auto_complete(context) if self._options.auto_complete_config else None
        if completed is None and not source.is_config_given:
            raise NotFoundError(
                f"model configuration is not provided for model '{source.name}'",
                hint=f"write {source.directory / 'config.pbtxt'} with the inputs and outputs, which backend "
                f"'{source.config.backend}' cannot tell from the model's file",
            )
        return backend, context, config if completed is None else completed

    def _create_backend_model(self, source: ModelSource, version: int) -> tuple[ModelContext, BackendModel]:
        backend, context, config = self._completed(source, version)
        with _AsTritonError():
            config = finalize_config(config, source.directory)
            check_batch_tensors(config, backend.supports_batch_tensors)
            context = dataclasses.replace(context, config=config)
            try:
                check_initial_states(config, source.directory)
            except TritonError:
                if not all(each.passive for each in instance_specs(config)):
                    warmup_samples(context)  # of two faults Triton tells that of a sample
                raise
            backend_model = backend.create_model(context)
            backend_model.initialize()
        return context, backend_model


class _AsTritonError:
    """Turns what a model's own code raises into a `TritonError`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, TritonError):
            raise InternalError(f"{type(error).__name__}: {error}", model_error=frames_to_notes(error)) from None


async def _reported(awaitable: Any) -> None:
    with _AsTritonError():
        await awaitable
