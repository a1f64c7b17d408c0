"""The server inside the kernel: `Server` is what a user holds.

It runs on a thread and an event loop of its own, so cells, scripts, and user event loops go on
beside it, and interrupting a cell leaves it serving.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonnb.backends.functions import Function, FunctionBackend, function_config
from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError, UnavailableError
from tritonnb.core.events import Packed, unpack
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.suggestions import did_you_mean
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.listeners import ListenOptions
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.model_config.read import AnyConfig, config_json
from tritonnb.recording.recording import Recording
from tritonnb.runtime.options import EngineOptions
from tritonnb.runtime.repository.load_log import raised_here
from tritonnb.runtime.repository.loader import ModelSource
from tritonnb.server.background import BackgroundServer
from tritonnb.server.model_handle import ModelHandle, read_key, require_name

if TYPE_CHECKING:
    from tritonnb.notebook.dashboard import Dashboard

StrPath = str | PathLike[str]
_ENGINE_OPTIONS = {each.name for each in dataclasses.fields(EngineOptions)} - {"model_repositories"}


class Server(BackgroundServer):
    """An inference server on a thread of its own, with an HTTP v2 endpoint.

    Parameters
    ----------
    model_repository : path or sequence of paths, optional
    host : str, optional
        Address to listen on; 127.0.0.1 unless told otherwise, since models are code.
    port : int or None, optional
        None: 8000 or the next free port. 0: any free port.
    allow_http : bool, optional
        Serve HTTP at all; on unless switched off.
    http : HttpOptions, optional
        What else the endpoint is told: limits, transport, who may call.
    grpc_port : int, optional
        Serve gRPC on this port, 0 for any free one; none unless given. Triton's is 8001.
    grpc_host : str, optional
        The same as ``host`` unless given.
    grpc : GrpcOptions, optional
        TLS, compression, keep-alive, who may call.
    metrics_port : int, optional
        Serve Prometheus metrics on this port, 0 for any free one; none unless given. Triton's is 8002.
    metrics_host : str, optional
        The same as ``host`` unless given.
    metrics : MetricsOptions, optional
        Which metrics are published.
    model_control_mode : str, optional
        ``"none"`` loads every model at start; ``"explicit"`` only ``load_models``, and lets HTTP
        clients load and unload; ``"poll"`` follows the repository every ``repository_poll_secs``.
    allow_file_override : bool, optional
        Let load requests of clients bring a model's files with them; they are code.
    load_models : sequence of str, optional
        ``"*"`` is every model.
    auto_complete_config : bool, optional
    model_config_name : str, optional
    backend_config : mapping of str to mapping of str to str, optional
        Settings by backend; those of ``""`` are for all.
    strict_readiness : bool, optional
    replaces : Server, optional
        Stopped before this one starts, which may have its ports; it goes on if this one cannot start.
    **engine_options
        Others of `EngineOptions`: ``cache_config``, ``rate_limit``, ``trace``, ``log``, …

    Examples
    --------
    >>> with Server() as server:  # doctest: +SKIP
    ...     server["digits"](image=images)
    """

    @with_short_traceback
    def __init__(
        self,
        model_repository: StrPath | Sequence[StrPath] = (),
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        allow_http: bool = True,
        http: HttpOptions | None = None,
        grpc_port: int | None = None,
        grpc_host: str = "",
        grpc: GrpcOptions | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "",
        metrics: MetricsOptions | None = None,
        replaces: Server | None = None,
        **engine_options: Any,
    ) -> None:
        for unknown in engine_options.keys() - _ENGINE_OPTIONS:
            known = [*_ENGINE_OPTIONS, *inspect.signature(Server).parameters]
            raise TypeError(f"Server has no option '{unknown}'{did_you_mean(unknown, known)}")
        with raised_here():  # and printed below
            super().__init__(
                EngineOptions(model_repositories=paths_of(model_repository), **engine_options),
                ListenOptions(
                    host,
                    port,
                    allow_http,
                    http or HttpOptions(),
                    grpc_port,
                    grpc_host,
                    grpc or GrpcOptions(),
                    metrics_port,
                    metrics_host,
                    metrics or MetricsOptions(),
                ),
                replaces,
            )
        if "log" not in engine_options:  # whoever gives log settings reads the log
            for name, error in self.load_errors.items():
                print(f"model '{name}' is not served: {error}")

    # --- using it -----------------------------------------------------------------------------

    @with_short_traceback
    def __getitem__(self, key: str | tuple[str, int]) -> ModelHandle:
        """The model of a name; also one that failed to load, to mend its configuration.

        Parameters
        ----------
        key : str or (str, int)
            ``server["digits"]`` is the newest version that is ready, at every call; ``server["digits", 1]`` is
            version 1.

        Raises
        ------
        NotFoundError, UnavailableError
            If no version of it, or not that version, is served.
        """
        name, version = read_key(key)
        if version != -1 or not self.call(self.engine.failure, name):
            try:
                self.call(self.engine.model, name, version)
            except NotFoundError as error:
                raise NotFoundError(f"{error.message}{self._served_versions(name) or self._like(name)}") from None
        return ModelHandle(self, name, version)

    def __iter__(self) -> Iterator[str]:
        """Names of the models that are ready."""
        return iter(dict.fromkeys(each.name for each in self.call(self.engine.models)))

    @with_short_traceback
    def load(self, name: str, config: AnyConfig | None = None, *, force: bool = False) -> ModelHandle:
        """Load a model from the repository, or load it again if its files have changed.

        Parameters
        ----------
        name : str
        config : str, dict, ModelConfig or path, optional
            A configuration instead of the file's, in any form that `simulate` takes.
        force : bool, optional
            Load it also if nothing has changed.

        Raises
        ------
        TritonError
            As Triton's load API, with a hint; what served before goes on serving.
        """
        require_name(name)
        parameters = None if config is None else {"config": config_json(config)}
        with raised_here():
            self.run(self.engine.load(name, parameters, force=force))
        return self[name]

    @with_short_traceback
    def model(self, function: Function | None = None, **fields: Any) -> Any:
        """Serve a Python function as a model; a decorator, with or without arguments.

        Defining the function again, as rerunning a cell does, replaces the model.

        Parameters
        ----------
        function : callable
            Its annotated parameters are the inputs, its return annotation the output ``OUTPUT`` or a dict of
            outputs; it is called with whole batches, ``[rows, dims...]``. It may be ``async def``. What it returns
            must have the declared dims, one row for each row of the batch, and values that fit the datatypes:
            integers and floating-point numbers may be rounded to floating-point numbers, but 1.5 is not an integer.
        **fields
            Fields of the model configuration: ``max_batch_size``, ``dynamic_batching``, ``name``, …

        Returns
        -------
        callable
            The function itself.

        Examples
        --------
        >>> @server.model(max_batch_size=8, dynamic_batching={})  # doctest: +SKIP
        ... def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...     return X * 2
        >>> server["double"](X=[[1.0], [2.0]])["OUTPUT"]  # doctest: +SKIP
        """
        if function is None:
            return functools.partial(self.model, **fields)
        config = function_config(function, fields)
        source = ModelSource(config.name, Path(), config, (1,), FunctionBackend(function))
        with raised_here():
            self.run(self.engine.load_source(source))
        return function

    @with_short_traceback
    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Stop taking requests for a model; what it accepted is answered.

        Parameters
        ----------
        name : str
            It need not be served.
        unload_dependents : bool, optional
            Unload also the models of an ensemble's steps, unless somebody needs them.

        Raises
        ------
        NotFoundError
            If there is no such model.
        """
        require_name(name)
        if name not in {each["name"] for each in self.index()}:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found{self._like(name)}")
        self.run(self.engine.unload(name, unload_dependents))

    @with_short_traceback
    def stats(self, name: str = "") -> dict[str, Any]:
        """The statistics extension's answer for one model, or for all.

        Raises
        ------
        InvalidArgumentError
            If the model is not served.
        """
        try:
            return self.call(self.engine.statistics, name)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{error.message}{self._like(name)}") from None

    @with_short_traceback
    def metadata(self) -> dict[str, Any]:
        """Server metadata of the v2 protocol."""
        return self.call(self.engine.metadata)

    def ready(self) -> bool:
        """Whether the server, and every model it should serve, is ready."""
        return self.alive and self.call(self.engine.is_ready)

    @with_short_traceback
    def labels(self, model: str, output: str) -> list[str] | None:
        """The class labels of a model's output; None where it has none.

        Raises
        ------
        NotFoundError, InvalidArgumentError
            If there is no such model, or no such output.
        """
        served = self[model].served
        if output not in served.spec.outputs:
            known = ", ".join(map(repr, served.spec.outputs))
            raise InvalidArgumentError(f"unexpected inference output '{output}' for model '{model}': it has {known}")
        return served.labels(output)

    @with_short_traceback
    def index(self) -> list[dict[str, str]]:
        """The repository index: every model with its state, and the reason where it failed."""
        return self.call(self.engine.index)

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Record the event stream of a block.

        The recording fills when the block ends.

        Examples
        --------
        >>> with server.record() as rec:  # doctest: +SKIP
        ...     server["digits"](image=images)
        >>> rec.batches[0].why  # doctest: +SKIP
        """
        events: list[Packed] = []
        recording = Recording()
        self.call(self.engine.stream.attach, events.append)
        try:
            yield recording
        finally:
            self.call(self.engine.stream.detach, events.append)
            recording.fill(map(unpack, events), self.call(self.engine.configs))

    def recent(self) -> Recording:
        """What happened last, recorded without having been asked to: the events that the stream still holds.

        These are the newest 65,536 of all models, a few seconds of full load or a long time of little.

        Returns
        -------
        Recording
            Of a batch that was sent before the oldest event held there is nothing in it.

        Examples
        --------
        >>> server.recent().for_model("digits").batches[-1].why  # doctest: +SKIP
        """
        recording = Recording()
        recording.fill(map(unpack, self.call(list, self.engine.stream.recent)), self.call(self.engine.configs))
        return recording

    def _served_versions(self, name: str) -> str:
        """The versions of a model that are ready, as the end of an error's text; empty if there are none."""
        versions = self.call(self.engine.ready_versions, name)
        return f"; ready: {', '.join(map(str, versions))}" if versions else ""

    def _like(self, name: str) -> str:
        """The model that was perhaps meant, as the end of an error's text."""
        return did_you_mean(name, {each["name"] for each in self.index()} - {name})

    # --- the endpoints ------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The HTTP port.

        Raises
        ------
        UnavailableError
            If the server has no HTTP endpoint.
        """
        if self.endpoints.http is None:
            raise UnavailableError("the server has no HTTP endpoint")
        return self.endpoints.http.port

    @property
    def grpc_port(self) -> int | None:
        """The gRPC port; None where there is none."""
        return None if self.endpoints.grpc is None else self.endpoints.grpc.port

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics; None where there is none."""
        return None if self.endpoints.metrics is None else self.endpoints.metrics.port

    @property
    def url(self) -> str:
        """Where the HTTP endpoint is, for this machine; empty where there is none."""
        return "" if self.endpoints.http is None else self.endpoints.http.url

    @property
    def load_errors(self) -> Mapping[str, TritonError]:
        """Models that should have been loaded at start and were not, with the reason."""
        return self.engine.load_errors

    # --- looking at it ------------------------------------------------------------------------

    def dashboard(self, model: str | None = None) -> Dashboard:
        """The server's models live, one of them opened: configuration, batches, statistics.

        Parameters
        ----------
        model : str, optional
            The one that is opened first.

        Returns
        -------
        Dashboard
            A widget; until its ``close()``, the same one for every call with the same model.

        Raises
        ------
        NotFoundError
            If there is no such model.
        """
        if model is not None:
            _ = self[model]
        from tritonnb.notebook.dashboard import open_dashboard

        return open_dashboard(self, model)

    def __repr__(self) -> str:
        from tritonnb.notebook.cards import server_text

        return server_text(self) if self.alive else "<Server: stopped>"

    def _repr_html_(self) -> str:
        from tritonnb.notebook.cards import server_card

        return server_card(self) if self.alive else "<p><b>tritonnb server</b>: stopped</p>"


def paths_of(given: StrPath | Sequence[StrPath]) -> tuple[Path, ...]:
    """One path or several.

    Raises
    ------
    InvalidArgumentError
        If it is neither.
    """
    paths = [given] if isinstance(given, (str, PathLike)) else given
    try:
        return tuple(Path(each).expanduser() for each in paths)
    except TypeError:
        raise InvalidArgumentError(f"model_repository must be a path or several, got {given!r}") from None
