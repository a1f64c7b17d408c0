"""``server["digits"]``: one model of a server; ``.config``: its configuration, to change and apply."""

from __future__ import annotations

import copy
import operator
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy.typing as npt

from tritonnb.client.array_requests import Outputs, make_request, request_of_call
from tritonnb.client.model import ModelViews
from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InternalError, InvalidArgumentError, NotFoundError, TritonError, UnavailableError
from tritonnb.core.failures import shorten_traceback, with_short_tracebacks
from tritonnb.core.json_types import ModelMetadata
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.load_errors import raised_here
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.model_config.diagnose import problem_context
from tritonnb.model_config.editable_config import EditableConfig
from tritonnb.server.background import BackgroundServer
from tritonnb.server.inference import infer, infer_async
from tritonnb.server.options import with_parameters_of
from tritonnb.telemetry.statistics_entry import StatisticsEntry

if TYPE_CHECKING:
    from tritonnb.core.messages import InferRequest


@extensible
@with_short_tracebacks
class ModelHandle(ModelViews):
    """A model of a running server.

    Calling it runs one in-process inference with NumPy arrays.

    Parameters
    ----------
    server : Server
    name : str
    version : int, optional
        By default -1: the latest ready version at the time of each call.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     model = server["double"]
    ...     print(model(X=[[1.5]])["OUTPUT"], model.stats()["inference_count"])
    [[3.]] 1
    >>> with tnb.Server(port=0) as server:
    ...     _ = server.model(double, max_batch_size=8)
    ...     model = server["double"]
    ...     print(model.infer(X=[[1.5]], id="first")["OUTPUT"], len(model.infer_all(X=[[1.5]])))
    ...     print(model.metadata()["inputs"], repr(model.load_failure()))
    ...     config = model.running_config()
    ...     config.instance_group[0].count = 2
    ...     print(model.check_config(config).instance_group[0].count)
    [[3.]] 1
    [{'name': 'X', 'datatype': 'FP32', 'shape': [-1, 1]}] ''
    2
    """

    def __init__(self, server: BackgroundServer, name: str, version: int = -1) -> None:
        self.server = server
        self.name = name
        self.version = version

    @with_parameters_of(make_request)
    def infer(self, *inputs: Mapping[str, npt.ArrayLike] | None, **options: Any) -> Outputs:
        """Run one inference and wait for it.

        Parameters
        ----------
        inputs : mapping of str to array, optional
            Input tensors by name, with the batch dimension if ``max_batch_size`` is above 0. Arrays must have the
            datatype of the input; lists are converted.
        **options
            More inputs by name, and: ``id`` (str), ``outputs`` (names of the outputs to return; default all),
            ``parameters`` (dict), ``priority`` (int), ``timeout_us`` (int, microseconds),
            ``sequence_id`` (int or str), ``sequence_start``, ``sequence_end`` (bool), ``copy`` (bool).
            Pass an input that has one of these names in ``inputs``.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs by name; the arrays are writeable.

        Raises
        ------
        TritonError
            With Triton's status and message.

        Notes
        -----
        Arrays are copied, as over a network: the call copies the inputs, and the outputs share no memory with inputs,
        other responses, or the model.

        With ``copy=False`` the request uses C-contiguous arrays of the input's datatype directly, which saves the copy
        of large arrays. The caller must not change them before the response has arrived or, after a cancelled call,
        before the model has finished the execution. A Python model or a function gets them read-only, and fails if it
        writes to them. Other arrays are copied as usual.
        """
        return self._single(infer(self.server.engine, self._request(inputs, options)))

    __call__ = infer

    @with_parameters_of(make_request)
    def infer_async(self, *inputs: Mapping[str, npt.ArrayLike] | None, **options: Any) -> Coroutine[Any, Any, Outputs]:
        """Like `infer`, for code in an event loop.

        Parameters
        ----------
        inputs, **options
            As for `infer`.

        Returns
        -------
        coroutine
            Submits the request when it is awaited or becomes a task, and returns the outputs. The call itself copies
            the inputs, so the arrays may change at once; with ``copy=False``, only after the response.

        Examples
        --------
        >>> import asyncio
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0) as server:
        ...     @server.model(max_batch_size=8)
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     async def send() -> float:
        ...         outputs = await server["double"].infer_async(X=[[1.0]])
        ...         return float(outputs["OUTPUT"][0, 0])
        ...     print(asyncio.run(send()))
        2.0
        """
        try:
            request = self._request(inputs, options)
        except TritonError as error:
            shorten_traceback(error)
            return _raise(error)
        return self._infer_async(request)

    async def _infer_async(self, request: InferRequest) -> Outputs:
        try:
            return self._single(await infer_async(self.server.engine, request))
        except TritonError as error:
            shorten_traceback(error)
            raise

    @with_parameters_of(make_request)
    def infer_all(self, *inputs: Mapping[str, npt.ArrayLike] | None, **options: Any) -> list[Outputs]:
        """Like `infer`, for decoupled models: return a list of all responses.

        Parameters
        ----------
        inputs, **options
            As for `infer`.
        """
        return infer(self.server.engine, self._request(inputs, options))

    @property
    def ready(self) -> bool:
        """True if the model is loaded and its instances are ready (``is_ready`` of a Python model)."""
        return self.server.run(self.server.engine.model_ready(self.name, self.version))

    def metadata(self) -> ModelMetadata:
        """Return the model metadata of the v2 protocol.

        Returns
        -------
        dict
            ``name``, ``versions``, ``platform``, ``inputs``, ``outputs``.
        """
        return self.server.call(self.server.engine.model_metadata, self.name, self.version)

    def stats(self) -> StatisticsEntry:
        """Return the entry of this model (by default its latest version) in the statistics extension.

        Returns
        -------
        dict
            ``inference_count`` (rows), ``execution_count`` (batches), ``inference_stats`` and ``batch_stats``. Times
            are totals in nanoseconds (``ns``), with the number of occurrences (``count``).
        """
        statistics = self.server.call(self.server.engine.statistics, self.name, self.version)
        return statistics["model_stats"][-1]

    @property
    def config(self) -> ConfigHandle:
        """The configuration of the model, to read, change and apply; all versions share it."""
        return ConfigHandle(self.server, self.name)

    def reload(self) -> None:
        """Load the model again from its files; the old copy serves until the new one is ready.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server("model_repository", port=0, model_control_mode="explicit") as server:
        ...     model = server.load("identity_fp32")
        ...     model.reload()
        ...     print(model.ready)
        True
        """
        with raised_here():
            self.server.run(self.server.engine.load(self.name, trusted=True, force=True))

    def unload(self) -> None:
        """Stop accepting requests for the model, and free it when the accepted ones are answered.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server("model_repository", port=0, model_control_mode="explicit") as server:
        ...     server.load("identity_fp32").unload()
        ...     print(len(server))
        0
        """
        self.server.run(self.server.engine.unload(self.name))

    @property
    def served(self) -> ServedModel:
        """The model version in the engine; read-only.

        Raises
        ------
        NotFoundError, UnavailableError
            If it is not ready.
        """
        return self._served()

    def _served(self) -> ServedModel:
        # Read without the event loop: a lookup in `ModelTable.get` is atomic, and its result does not change. A call
        # on the loop would take as long as an inference.
        try:
            return self.server.engine.model(self.name, self.version)
        except NotFoundError:
            if self.server.alive:
                raise
            raise UnavailableError(self.server.stopped_text) from None

    def running_config(self) -> pb.ModelConfig:
        """Return a copy of the running configuration."""
        return copy.deepcopy(self.server.call(self.server.engine.model, self.name).config)

    def load_failure(self) -> str:
        """Return the reason why the model failed to load; empty if it is served."""
        return self.server.call(self.server.engine.table.failure, self.name)

    def check_config(self, config: pb.ModelConfig) -> pb.ModelConfig:
        """Return the configuration that the model would run; nothing is changed.

        Parameters
        ----------
        config : ModelConfig

        Raises
        ------
        TritonError
            If the configuration is invalid.
        """
        checked: pb.ModelConfig = self.server.run(self.server.engine.reconfiguration.check(self.name, config))
        return checked

    def _request(self, inputs: Sequence[Mapping[str, npt.ArrayLike] | None], options: dict[str, Any]) -> InferRequest:
        """Return the request of a call with these positional arguments and keywords."""
        return request_of_call(self._served().spec, self.version, inputs, options)

    def _single(self, responses: Sequence[Outputs]) -> Outputs:
        if len(responses) != 1:
            raise InvalidArgumentError(
                f"model '{self.name}': expected 1 response, got {len(responses)}; use infer_all for a decoupled model"
            )
        return responses[0]

    def __repr__(self) -> str:
        if not self.server.alive:
            return f"model '{self.name}' ({self.server.stopped_text})"
        versions = self.server.call(self.server.engine.table.ready_versions, self.name)
        if self.version != -1:
            versions = [version for version in versions if version == self.version]
        if not versions:
            return f"model '{self.name}' (not ready: {self._reason()})"
        metadata, stats = self.metadata(), self.stats()
        state = f"version {', '.join(map(str, versions))}, READY"
        lines = [f"model '{self.name}' ({state})", f"platform {metadata['platform']}"]
        for kind, tensors in (("input", metadata["inputs"]), ("output", metadata["outputs"])):
            lines += [f"{kind} {tensor['name']}: {tensor['datatype']} {tensor['shape']}" for tensor in tensors]
        lines.append(f"{stats['inference_count']} rows in {stats['execution_count']} executions")
        return "\n  ".join(lines)

    def _reason(self) -> str:
        """Return why the model is not ready: its load error, or the states of its versions."""
        if failure := self.load_failure():
            return failure.rstrip(";\n")
        try:
            rows = [row for row in self.server.run(self.server.engine.index()) if row["name"] == self.name]
        except InternalError as error:  # a repository cannot be read
            return error.message
        return ", ".join(row.get("reason") or row.get("state", "not loaded") for row in rows) or "not found"


@with_short_tracebacks
class ConfigHandle(EditableConfig):
    """An editable copy of a model's configuration, or of its file if the model failed to load.

    The attributes are the fields of ``inference.ModelConfig``. Changes take effect with `apply`.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     config = server["double"].config
    ...     config.dynamic_batching.max_queue_delay_microseconds = 5000
    ...     _ = config.apply()
    ...     print(server["double"].config.dynamic_batching.max_queue_delay_microseconds)
    5000
    """

    _server: BackgroundServer
    _name: str
    _message: pb.ModelConfig

    def __init__(self, server: BackgroundServer, name: str) -> None:
        object.__setattr__(self, "_server", server)
        object.__setattr__(self, "_name", name)
        super().__init__()

    def apply(self) -> str:
        """Apply this configuration to the running model; no accepted request is lost.

        Returns
        -------
        str
            ``"unchanged"``; ``"in place"`` if only the scheduling changed, so that the model was not loaded again;
            ``"reloaded"`` if a new copy of the model replaced it; ``"loaded"`` if it had failed to load before.

        Raises
        ------
        TritonError
            If the configuration is invalid; the model continues unchanged. The `problems` of the error have lines of
            `text`.
        """
        config = self.edited()
        with problem_context(config, self.text), raised_here():
            outcome: str = self._server.run(self._server.engine.apply(self._name, config))
        return outcome

    def _running(self) -> pb.ModelConfig:
        running: pb.ModelConfig = self._server.run(self._server.engine.reconfiguration.config(self._name))
        return copy.deepcopy(running)


async def _raise(error: TritonError) -> Outputs:
    raise error


def read_key(key: object) -> tuple[str, int]:
    """Return the name and version in ``server[key]``; the version is -1 if only a name is given.

    Raises
    ------
    InvalidArgumentError
        If the name is not a string, or the version not an integer of at least 1.
    """
    if not isinstance(key, tuple) or len(key) != 2:
        return require_name(key), -1
    name, version = require_name(key[0]), key[1]
    if isinstance(version, bool) or not isinstance(version, SupportsIndex) or operator.index(version) < 1:
        raise InvalidArgumentError(f"model '{name}': version: expected an integer of at least 1, got {version!r}")
    return name, operator.index(version)


def require_name(name: object) -> str:
    """Check that the name of a model is a string.

    Raises
    ------
    InvalidArgumentError
        If it is not.
    """
    if not isinstance(name, str):
        raise InvalidArgumentError(f"model name: expected str, got {type(name).__name__} {name!r}")
    return name
