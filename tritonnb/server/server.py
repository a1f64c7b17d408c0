"""`Server`: an inference server in this process.

It runs on its own thread and event loop, so cells, scripts and other event loops continue to run, and
interrupting a cell does not stop it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, Unpack, get_type_hints, overload

from tritonnb.backends.functions import Function, FunctionBackend, function_config
from tritonnb.client.index_text import server_text
from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InternalError, InvalidArgumentError, NotFoundError
from tritonnb.core.failures import with_short_traceback, with_short_tracebacks
from tritonnb.core.json_types import IndexEntry, ServerMetadata
from tritonnb.core.named_models import NamedModels
from tritonnb.core.paths import working_directory
from tritonnb.core.suggestions import did_you_mean
from tritonnb.endpoints.endpoint_set import ListenOptions
from tritonnb.engine.load_errors import raised_here
from tritonnb.engine.options import EngineOptions
from tritonnb.engine.repository.directories import ModelSource
from tritonnb.model_config.read import AnyConfig, config_json
from tritonnb.server.background import BackgroundServer
from tritonnb.server.model_handle import ModelHandle, read_key, require_name
from tritonnb.server.options import EngineKeywords, KeywordsWithPort, StrPath, paths_of, with_server_keywords
from tritonnb.telemetry.statistics_entry import StatisticsResponse

F = TypeVar("F", bound=Function)


@extensible
@with_short_tracebacks
class Server(NamedModels, BackgroundServer):
    """An inference server on its own thread, with an HTTP v2 endpoint.

    Parameters
    ----------
    model_repository : path or sequence of paths, optional
    host : str, optional
        Address to listen on. By default 127.0.0.1, since models are code.
    port : int or None, optional
        None: 8000 or the next free port. 0: any free port.
    allow_http : bool, optional
        Whether to serve HTTP; by default True.
    http : HttpOptions, optional
        Limits, transport, allowed callers.
    grpc_port : int, optional
        Serve gRPC on this port; 0 for any free port, None (default) for no gRPC. Triton's port is 8001.
    grpc_host : str, optional
        By default ``host``.
    grpc : GrpcOptions, optional
        TLS, compression, keep-alive, restricted protocols.
    metrics_port : int, optional
        Serve Prometheus metrics on this port; 0 for any free port, None (default) for no metrics. Triton's port
        is 8002.
    metrics_host : str, optional
        By default ``host``.
    metrics : MetricsOptions, optional
        Which metrics are published.
    openai_port : int, optional
        Serve OpenAI's API on this port; 0 for any free port, None (default) for the HTTP port, under ``/v1``.
    openai_host : str, optional
        By default ``host``.
    openai : OpenAiOptions, optional
        Whether OpenAI's API is served, and its API key.
    model_control_mode : str, optional
        ``"none"`` loads every model at start; ``"explicit"`` loads only ``load_models``, and clients can load and
        unload models; ``"poll"`` checks the repository for changes every ``repository_poll_secs`` seconds.
    allow_file_override : bool, optional
        Whether load requests may contain the files of a model, which are code.
    load_models : sequence of str, optional
        Models to load at start in mode ``"explicit"``; ``"*"`` for all.
    auto_complete_config : bool, optional
    model_config_name : str, optional
    backend_config : mapping of str to mapping of str to str, optional
        Settings by backend; the settings of ``""`` apply to all backends.
    strict_readiness : bool, optional
    isolate : bool or sequence of str, optional
        Run the instances of these models, or of all models of the repositories, in their own processes. Those of
        C++ backends do so unless it is False.
    replaces : Server, optional
        A server to stop before this one starts, which can use its ports. It continues if this one cannot start.
    **engine_options
        Other options of the engine: ``cache_config``, ``rate_limit``, ``trace``, ``log``, …

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     print(server["double"](X=[[21.0]])["OUTPUT"])
    [[42.]]
    >>> with tnb.Server(port=0) as server:
    ...     _ = server.model(double, max_batch_size=8)
    ...     print(server.ready(), server.index(), server.metadata()["name"], server.labels("double", "OUTPUT"))
    ...     print(server.stats("double")["model_stats"][0]["inference_count"])
    True [{'name': 'double', 'version': '1', 'state': 'READY'}] triton None
    0
    """

    dashboard: ClassVar[Callable[..., Any]]
    simulate: ClassVar[Callable[..., Any]]
    _repr_html_: ClassVar[Callable[..., str]]

    @with_server_keywords
    @with_short_traceback
    def __init__(
        self,
        model_repository: StrPath | Sequence[StrPath] = (),
        *,
        replaces: Server | None = None,
        **options: Unpack[KeywordsWithPort],
    ) -> None:
        for unknown in options.keys() - get_type_hints(KeywordsWithPort).keys():
            raise TypeError(
                f"Server has no option '{unknown}'{did_you_mean(unknown, inspect.signature(Server).parameters)}"
            )
        listen: dict[str, Any] = {
            name: value for name, value in options.items() if name not in EngineKeywords.__annotations__
        }
        engine: dict[str, Any] = {name: value for name, value in options.items() if name not in listen}
        with raised_here():  # they are printed below
            super().__init__(
                EngineOptions(model_repositories=paths_of(model_repository), **engine),
                ListenOptions(**{name: value for name, value in listen.items() if value is not None}),
                replaces,
            )
        if "log" not in options:  # with log settings, the failures are in the log
            for name, error in self.load_errors.items():
                print(f"model '{name}' is not served: {error}")

    def add_handlers(self, handlers: Sequence[Any], *, api: str = "inference") -> None:
        """Let handlers of Tornado answer more paths on the HTTP port, until the server stops.

        The server's own paths come first. Requests pass the same checks as all others: host, origin, restricted APIs,
        size of the body.

        Parameters
        ----------
        handlers : sequence of tuple
            As for ``tornado.web.Application``: ``(path, handler)`` or ``(path, handler, arguments)``, where the path
            is a regular expression, the handler a class derived from ``tornado.web.RequestHandler``, and the
            arguments a dict for its ``initialize``. A path that was added before gets the new handler. Handlers run on
            the server's event loop: call models with ``await`` and `infer_async`, and do not block.
        api : str, optional
            The API of ``HttpOptions.restricted_api`` that the paths belong to; ``""`` for none.

        Raises
        ------
        InvalidArgumentError, UnsupportedError
            If a path is one of the server's own, or a handler is none of Tornado's for HTTP.
        UnavailableError
            If the server has no HTTP endpoint.

        Examples
        --------
        >>> import urllib.request
        >>> import tornado.web
        >>> import tritonnb as tnb
        >>> class Greeting(tornado.web.RequestHandler):
        ...     def get(self, name):
        ...         self.write(f"hello {name}")
        >>> with tnb.Server(port=0) as server:
        ...     server.add_handlers([(r"/hello/(.*)", Greeting)])
        ...     print(urllib.request.urlopen(f"{server.url}/hello/world").read().decode())
        hello world
        """
        self.call(self._http_endpoint.add_handlers, handlers, api)

    # --- models -----------------------------------------------------------------------------

    def __getitem__(self, key: str | tuple[str, int]) -> ModelHandle:
        """Return the model with a name, even one that failed to load, so that its configuration can be corrected.

        Parameters
        ----------
        key : str or (str, int)
            ``server["digits"]`` is the latest ready version at the time of each call; ``server["digits", 1]`` is
            version 1.

        Raises
        ------
        NotFoundError, UnavailableError
            If the model, or that version of it, is not ready.
        """
        name, version = read_key(key)
        if version != -1 or not self.call(self.engine.table.failure, name):
            try:
                self.call(self.engine.model, name, version)
            except NotFoundError as error:
                # Not asked for the newest version: it may have been loaded since then.
                ready = "" if version == -1 else self._served_versions(name)
                raise NotFoundError(f"{error.message}{ready or self._like(name)}") from None
        return ModelHandle(self, name, version)

    @property
    def models(self) -> list[str]:
        """Names of the models that are ready; ``for name in server`` and ``len(server)`` use them."""
        return list(dict.fromkeys(model.name for model in self.call(self.engine.models)))

    def load(self, name: str, config: AnyConfig | None = None, *, force: bool = False) -> ModelHandle:
        """Load a model from the repository, or load it again if its files have changed.

        Parameters
        ----------
        name : str
        config : str, dict, ModelConfig or path, optional
            Replaces the configuration file; in any form that `simulate` accepts.
        force : bool, optional
            Load it even if nothing has changed.

        Returns
        -------
        ModelHandle

        Raises
        ------
        TritonError
            As Triton's load API, with a suggested remedy. The previous version continues to serve.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server("model_repository", port=0, model_control_mode="explicit") as server:
        ...     model = server.load("identity_fp32")
        ...     print(model(INPUT0=[[1.0, 2.0]])["OUTPUT0"])
        [[1. 2.]]
        """
        require_name(name)
        parameters = None if config is None else {"config": config_json(config)}
        with raised_here():
            self.run(self.engine.load(name, parameters, trusted=True, force=force))
        return self[name]

    @overload
    def model(self, function: F, **fields: object) -> F: ...

    @overload
    def model(self, function: None = None, **fields: object) -> Callable[[F], F]: ...

    def model(self, function: Function | None = None, **fields: object) -> object:
        """Serve a Python function as a model; a decorator, with or without arguments.

        Running the definition again replaces the model.

        Parameters
        ----------
        function : callable
            Its annotated parameters are the inputs, its return annotation is the output ``OUTPUT`` or a dict of
            outputs. It is called with whole batches, ``[rows, dims...]``. It may be ``async def``. Its results must
            have the declared dims, one row for each row of the batch, and values that fit the datatypes:
            integers and floating-point numbers may be rounded to floating-point numbers, but 1.5 is not an integer.
        **fields
            Fields of the model configuration: ``max_batch_size``, ``dynamic_batching``, ``name``, …; those of an
            instance group or a batcher by their names alone, as for `sweep`: ``count=2``.

        Returns
        -------
        callable
            The function itself.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0) as server:
        ...     @server.model(max_batch_size=8, dynamic_batching={})
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     print(server["double"](X=[[1.0], [2.0]])["OUTPUT"].tolist())
        [[2.0], [4.0]]
        """
        if function is None:
            return functools.partial(self.model, **fields)
        config = function_config(function, fields)
        source = ModelSource(config.name, working_directory(), config, (1,), FunctionBackend(function))
        with raised_here():
            self.run(self.engine.load_source(source))
        return function

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Stop accepting requests for a model, and free it when the accepted ones are answered.

        Parameters
        ----------
        name : str
            A model in the repository; it does not have to be ready.
        unload_dependents : bool, optional
            Also unload the models of an ensemble's steps, except those that other ensembles use.

        Raises
        ------
        NotFoundError
            If the model does not exist.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server("model_repository", port=0, model_control_mode="explicit") as server:
        ...     _ = server.load("identity_fp32")
        ...     server.unload("identity_fp32")
        ...     print(list(server))
        []
        """
        require_name(name)
        if name not in self._names():
            raise NotFoundError(f"Request for unknown model: '{name}' is not found{self._like(name)}")
        self.run(self.engine.unload(name, unload_dependents))

    def stats(self, name: str = "") -> StatisticsResponse:
        """Return the response of the statistics extension, for one model or for all.

        Parameters
        ----------
        name : str, optional

        Returns
        -------
        dict
            ``model_stats``: one dict for each model version. Times are totals in nanoseconds (``ns``), with the number
            of occurrences (``count``).

        Raises
        ------
        InvalidArgumentError
            If the model is not ready.
        """
        try:
            return self.call(self.engine.statistics, name)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{error.message}{self._like(name)}") from None

    def metadata(self) -> ServerMetadata:
        """Return the server metadata of the v2 protocol.

        Returns
        -------
        dict
            ``name``, ``version``, ``extensions``.
        """
        return self.call(self.engine.metadata)

    def ready(self) -> bool:
        """Return whether the server and all of its models are ready."""
        return self.alive and self.run(self.engine.is_ready())

    def labels(self, model: str, output: str) -> list[str] | None:
        """Return the class labels of a model's output, or None.

        Parameters
        ----------
        model, output : str

        Raises
        ------
        NotFoundError, InvalidArgumentError
            If the model or the output does not exist.
        """
        served = self[model].served
        if output not in served.spec.outputs:
            known = ", ".join(map(repr, served.spec.outputs))
            raise InvalidArgumentError(f"unexpected inference output '{output}' for model '{model}': it has {known}")
        return served.output_labels.get(output)

    def index(self) -> list[IndexEntry]:
        """Return the repository index.

        Returns
        -------
        list of dict
            ``name`` of each model; ``version``, ``state``, and ``reason`` (of a failure) where there is one.
        """
        return self.run(self.engine.index())

    def _served_versions(self, name: str) -> str:
        """Return the ready versions of a model, as the end of an error message; empty if there are none."""
        versions = self.call(self.engine.table.ready_versions, name)
        return f"; ready: {', '.join(map(str, versions))}" if versions else ""

    def _like(self, name: str) -> str:
        """Return a model with a similar name, as the end of an error message."""
        return did_you_mean(name, self._names() - {name})

    def _names(self) -> set[str]:
        """Return the names of the index, or of the models that were loaded if a repository cannot be read."""
        try:
            return {model["name"] for model in self.index()}
        except InternalError:
            return set(self.call(lambda: list(self.engine.table.models)))

    def __repr__(self) -> str:
        return server_text(self) if self.alive else "<Server: stopped>"
