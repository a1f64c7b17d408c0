"""The engine: an inference server without endpoints.

Endpoints and the in-process API call it on the server's event loop. `Engine.model` returns a model version, and a
`Submission` submits a request to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from tritonnb.core.errors import (
    InternalError,
    InvalidArgumentError,
    TritonError,
    UnavailableError,
    UnsupportedError,
    strip_traceback,
)
from tritonnb.core.json_types import IndexEntry, ModelMetadata, ServerMetadata
from tritonnb.core.messages import InferRequest
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.texts import printable
from tritonnb.core.version import TRITON_VERSION
from tritonnb.engine.execution.instance import Instance
from tritonnb.engine.execution.loop import run_in_thread
from tritonnb.engine.models.bls import ModelCalls, submit_call
from tritonnb.engine.models.response_cache import ResponseCache
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.options import EngineOptions, require_directories
from tritonnb.engine.repository.directories import ModelSource
from tritonnb.engine.repository.loader import SharedServices
from tritonnb.engine.repository.reconfigure import Reconfiguration
from tritonnb.engine.repository.repository import ModelRepository
from tritonnb.engine.repository.table import ExitTimeoutError
from tritonnb.engine.shared_memory import SharedMemory
from tritonnb.engine.submission import Submission, Submitter
from tritonnb.model_config.load import check_model_name, check_override
from tritonnb.scheduling.instances import RateLimiter
from tritonnb.telemetry.log_settings import LogTable
from tritonnb.telemetry.statistics_entry import StatisticsResponse
from tritonnb.telemetry.stream import EventStream
from tritonnb.telemetry.tracing import Tracer

logger = logging.getLogger(__name__)

#: So many models take about a millisecond.
_STATISTICS_AT_ONCE = 128

#: The shortest time in seconds that a stopping server gives to writing traces; otherwise it is ``exit_timeout``.
_FLUSH_S = 5.0

#: Extensions of the v2 protocol, as the server metadata lists them.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class Engine:
    """An engine that serves the models of model repositories.

    Parameters
    ----------
    options : EngineOptions

    Attributes
    ----------
    options : EngineOptions
    stream : EventStream
        The events of all requests, batches and models.
    load_errors : dict of str to TritonError
        The errors of the models that could not be loaded at start.
    cache : ResponseCache or None
    custom_metrics : CustomMetrics
        The metrics that models define.
    reconfiguration : Reconfiguration
        The configurations of the models, and checks of changed configurations; `apply` changes them.
    is_live : bool
        Whether the engine has started.
    submitter : Submitter
        Submits requests from other threads.
    shared_memory : SharedMemory
        The regions that clients have registered.
    table : ModelTable
        The models: those that are ready, and the errors of those that failed to load.
    tracer : Tracer
        Selects the requests to trace.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.stream = EventStream()
        self.load_errors: dict[str, TritonError] = {}
        self.shared_memory = SharedMemory(options.allow_client_shm)
        self.tracer = Tracer(self.stream, options.trace)
        self.submitter = Submitter()
        self._calls = ModelCalls(self)
        self.custom_metrics = self._calls.metrics
        self.cache = ResponseCache(options.cache_size) if options.cache_size else None
        limiter = RateLimiter(options.rate_limit_resources) if options.rate_limit == "execution_count" else None
        shared_services = SharedServices(self.stream, self._calls, self.cache, limiter)
        self._repository = ModelRepository(options, shared_services)
        self.table = self._repository.table
        self.reconfiguration = Reconfiguration(self._repository, options)
        self.is_live = self._stopping = False
        self._polling: asyncio.Task[None] | None = None
        self._last_configs: dict[str, pb.ModelConfig] | None = None

    # --- start and stop -----------------------------------------------------------------------

    async def start(self) -> None:
        """Load the models to be loaded at start; errors are stored in `load_errors`.

        Raises
        ------
        InvalidArgumentError
            If a model repository is not a directory, unless ``exit_on_error`` is False.
        InternalError
            If a model cannot be loaded and ``exit_on_error`` is True.
        """
        self._calls.loop = self.submitter.loop = asyncio.get_running_loop()
        try:
            await run_in_thread(partial(require_directories, self.options.model_repositories))
        except InvalidArgumentError as error:
            if self.options.exit_on_error is not False:
                raise
            # The log line is Triton's. The server goes on, but is never live.
            logger.error("error: creating server: %s - %s", error.status.label, error.message)
            return
        load_all = self.options.model_control_mode != "explicit" or "*" in self.options.load_models
        names = sorted(await self._repository.names_on_disk()) if load_all else list(self.options.load_models)
        # All at once: `model_load_threads` limits the work, and a model that fails must not stop the others.
        outcomes = await asyncio.gather(*map(self._repository.load, names), return_exceptions=True)
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, TritonError):
                self.load_errors[name] = strip_traceback(outcome)  # its frames refer to the model
            elif isinstance(outcome, BaseException):
                raise outcome
        logger.info(LogTable(("Model", "Version", "Status"), self.table.statuses()))
        if self.load_errors and self.options.exit_on_error:
            raise InternalError("failed to load all models")  # Triton's text, even if only one model failed
        self.is_live = True
        if self.options.model_control_mode == "poll" and self.options.repository_poll_secs:
            self._polling = asyncio.get_running_loop().create_task(self._keep_polling())

    async def poll(self) -> None:
        """Check the model repositories for changes, and load and unload models accordingly."""
        await self._repository.poll()

    async def stop(self) -> None:
        """Complete the accepted requests, reject new requests, and unload all models.

        Raises
        ------
        ExitTimeoutError
            If requests are still in flight after ``exit_timeout``.
        """
        if not self._stopping:
            self._last_configs = self.configs()
        self._stopping = True
        if self._polling is not None:
            self._polling.cancel()
        closing = asyncio.get_running_loop().create_task(self._repository.close())
        reason = "the server was stopped"
        try:
            await asyncio.wait([closing], timeout=self.options.exit_timeout)
            if closing.done():
                return await closing
            reason += f" after {self.options.exit_timeout:g} s (exit_timeout)"
            raise ExitTimeoutError(
                f"{reason} while it waited for {self._repository.unfinished()}: the results of running executions are "
                "lost"
            )
        finally:
            # Before the task is cancelled, which forgets the versions that it closes; even if this task is cancelled.
            self._repository.abandon(reason)
            closing.cancel()
            self.tracer.close()
            # A file system or a collector that does not answer must not keep the server from stopping.
            with suppress(TimeoutError):
                await asyncio.wait_for(run_in_thread(self.tracer.flush), max(_FLUSH_S, self.options.exit_timeout))

    def unfinished(self) -> str:
        """Describe the models that `stop` waits for; empty if there are none."""
        return self._repository.unfinished()

    # --- queries ------------------------------------------------------------------------------

    def model(self, name: str, version: int = -1) -> ServedModel:
        """Return a model version that is ready; -1 is the newest.

        Raises
        ------
        NotFoundError, UnavailableError
            If the version does not exist or is not ready.
        """
        return self.table.get(name, version)

    def submit(self, submission: Submission, request: InferRequest, caller: Instance | None = None) -> None:
        """Submit a request to the model that it names; `Submitter` calls this for requests of other threads.

        Parameters
        ----------
        submission : Submission
        request : InferRequest
        caller : Instance, optional
            The instance whose thread waits for the responses.

        Raises
        ------
        TritonError
            If the model is not ready, or would wait for itself.
        """
        served = self.table.get(request.model_name, request.model_version)
        if caller is None and request.caller is None:
            submission.submit(served, request)
        else:
            submit_call(submission, served, request, caller)

    def models(self) -> list[ServedModel]:
        """Return every version that is ready, by name and version."""
        return list(self.table.served())

    def configs(self) -> dict[str, pb.ModelConfig]:
        """Return the configuration (``inference.ModelConfig``) of every model that is ready, by name.

        After the stop, the models that were ready until then: a recording in which the server was stopped needs them.
        """
        if self._last_configs is not None:
            return self._last_configs
        return {served.name: served.config for served in self.table.served()}

    def model_metadata(self, name: str, version: int = -1) -> ModelMetadata:
        """Return the model metadata; without a version it lists all versions that are ready."""
        served = self.table.get(name, version)
        return served.metadata(self.table.ready_versions(name) if version == -1 else [served.version])

    async def is_ready(self) -> bool:
        """Return whether it accepts inference requests (strict readiness: every model and its instances are ready)."""
        if not self.is_live or self._stopping:
            return False
        if not self.options.strict_readiness:
            return True
        return self.table.all_ready() and all(await asyncio.gather(*map(_is_ready, self.table.served())))

    def is_loaded(self, name: str, version: int = -1) -> bool:
        """Return whether a model version is loaded."""
        try:
            self.table.get(name, version)
        except TritonError:
            return False
        return True

    async def model_ready(self, name: str, version: int = -1) -> bool:
        """Return whether a model version is loaded, and its instances are ready."""
        return self.is_loaded(name, version) and await _is_ready(self.table.get(name, version))

    def metadata(self) -> ServerMetadata:
        """Return the server metadata."""
        return {"name": self.options.server_id, "version": TRITON_VERSION, "extensions": list(EXTENSIONS)}

    def statistics(self, name: str = "", version: int = -1) -> StatisticsResponse:
        """Return the response of the statistics extension for one model, or for all models if the name is empty.

        Raises
        ------
        InvalidArgumentError
            If the model or version is not served.
        """
        self._refuse_when_stopping()
        if not name:
            return {"model_stats": [served.statistics.to_dict() for served in self.table.served()]}
        versions = self.table.ready_versions(name)
        if not versions:
            # INVALID_ARG, although inference gets NOT_FOUND for the same mistake: Triton's inconsistency.
            raise InvalidArgumentError(f"requested model '{name}' is not available")
        if version not in (-1, *versions):
            raise InvalidArgumentError(f"requested model version is not available for model '{name}'")
        chosen = versions if version == -1 else [version]
        return {"model_stats": [self.model(name, number).statistics.to_dict() for number in chosen]}

    async def statistics_in_pieces(self, name: str = "", version: int = -1) -> StatisticsResponse:
        """Return the same as `statistics`, without a long pause of the event loop if there are many models."""
        if name:
            return self.statistics(name, version)
        self._refuse_when_stopping()
        served, entries = list(self.table.served()), []
        for number, model in enumerate(served, 1):
            entries.append(model.statistics.to_dict())
            if not number % _STATISTICS_AT_ONCE:
                await asyncio.sleep(0)
        return {"model_stats": entries}

    async def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """Return the repository index."""
        self._refuse_when_stopping()
        on_disk = await self._repository.names_on_disk()
        self._refuse_when_stopping()
        # Asked twice: the server may have begun to stop while the directories were read.
        return self.table.index(on_disk, ready_only)

    # --- model control ------------------------------------------------------------------------

    async def load(
        self,
        name: str,
        parameters: Mapping[str, str | bytes] | None = None,
        *,
        trusted: bool = False,
        force: bool = False,
    ) -> None:
        """Load or reload a model from its repository.

        Parameters
        ----------
        name : str
        parameters : mapping, optional
            ``config``: a configuration as JSON, instead of the configuration file. ``file:<path>``: the contents of
            a file; together these files replace the model's directory, and require a ``config``.
        trusted : bool
            Accept any file, and a configuration that names any file, because the caller is a model in this process.
        force : bool
            Load the model even if nothing has changed on disk.

        Raises
        ------
        TritonError
            As Triton's load API.
        """
        self._refuse_when_stopping()
        check_model_name(name)
        override, files = None, {}
        for parameter, value in (parameters or {}).items():
            if parameter == "config":
                override = str(value)
            else:
                files[parameter.removeprefix("file:")] = value.encode() if isinstance(value, str) else value
        if files and not (trusted or self.options.allow_file_override):
            raise UnsupportedError(
                f"model '{name}': expected a load request without files, got '{next(iter(files))}': files are "
                "code, so the server must be started with --allow-file-override=true"
            )
        # A configuration can name files, such as labels: a client could read any file of the machine.
        if override is not None and not trusted:
            # On a thread, since a client may send a long configuration.
            await self._repository.loader.run(check_override, name, override)
        await self._repository.load(name, override, files, force=force)
        self.load_errors.pop(name, None)

    async def load_source(self, source: ModelSource) -> None:
        """Serve a model that does not come from a repository."""
        self._refuse_when_stopping()
        await self._repository.load_source(source)

    async def apply(self, name: str, config: pb.ModelConfig) -> str:
        """Change the configuration of a model; requests in flight are completed.

        Parameters
        ----------
        name : str
        config : inference.ModelConfig
            As written: defaults, and fields that the backend completes, may be omitted.

        Returns
        -------
        str
            ``"unchanged"``; ``"in place"`` if only the scheduling changed, so that the model was not reloaded;
            ``"reloaded"`` if the model was replaced; ``"loaded"`` if it had failed to load before.

        Raises
        ------
        TritonError
            If the configuration is rejected; the model continues unchanged.
        """
        self._refuse_when_stopping()
        effect = await self.reconfiguration.apply(name, config)
        self.load_errors.pop(name, None)
        return effect

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model, and return before it is closed. An unknown name is ignored, as on Triton.

        With ``unload_dependents`` the models of an ensemble's steps are also unloaded, except those that were loaded
        by name or that another ensemble uses.
        """
        self._refuse_when_stopping()
        await self._repository.unload(name, unload_dependents)

    def check_model_control(self) -> None:
        """Check that clients may load and unload models.

        Raises
        ------
        UnavailableError
            Unless the model control mode is ``"explicit"``.
        """
        if self.options.model_control_mode != "explicit":
            # Triton's text, even if nothing is polled (mode "none").
            raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(self.options.repository_poll_secs)
            try:
                await self.poll()
            except TritonError as error:  # a repository may be temporarily unavailable
                logger.error("failed to poll the model repositories: %s", error.message)
            except Exception:
                logger.exception("polling the model repositories failed")

    def _refuse_when_stopping(self) -> None:
        if self._stopping:
            raise UnavailableError("Server not ready")


async def _is_ready(served: ServedModel) -> bool:
    try:
        await asyncio.gather(*[instance.check_ready() for instance in served.instances])
    except Exception as error:
        reason = error.message if isinstance(error, TritonError) else f"{type(error).__name__}: {printable(error)}"
        logger.debug("Model '%s' version %d is not ready: %s", served.name, served.version, reason)
        return False
    return True
