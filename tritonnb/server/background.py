"""The base class of `Server`: the engine and its endpoints on their own thread and event loop.

Other threads run code on that loop and wait for it, and record its events. Ports are opened before models are loaded,
and closed after all accepted requests are answered.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

from tritonnb.core.copies import OfThisProcess, reach_server
from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.events import BatchExecuted, BatchSent, ModelStateChanged
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.forks import call_in_children, finalize, keep_forever
from tritonnb.core.packed_events import Packed, positions, unpack
from tritonnb.core.texts import listed
from tritonnb.endpoints.endpoint_set import Endpoints, ListenOptions
from tritonnb.endpoints.http.endpoint import HttpEndpoint
from tritonnb.engine.engine import Engine
from tritonnb.engine.execution.loop import REPLACED, BackgroundLoop, run_in_thread, stop_unused
from tritonnb.engine.options import EngineOptions, require_directories
from tritonnb.engine.repository.table import ExitTimeoutError
from tritonnb.recording.recording import Recording
from tritonnb.server.inference import forget_wakers
from tritonnb.telemetry.stream import EventStream

T = TypeVar("T")

#: Seconds between two progress reports of `BackgroundServer.stop`.
REPORT_INTERVAL_S = 1.0
#: Seconds after which a server that starts reports the models that it still loads.
REPORT_LOADING_AFTER_S = 10.0
#: Seconds after ``exit_timeout`` for sending the errors of the requests that the engine has abandoned.
_ERRORS_S = 1.0
#: Seconds that a recording waits at most for the batches in execution.
_LONGEST_WAIT_S = 1.0
#: The positions of what `BatchSent` and `BatchExecuted` have in common.
_BATCH = positions(BatchSent)

logger = logging.getLogger(__name__)


@with_short_tracebacks
class BackgroundServer(OfThisProcess):
    """A running engine with its endpoints.

    Parameters
    ----------
    options : EngineOptions
    listen : ListenOptions
    replaces : BackgroundServer, optional
        Stopped first; it continues if this one cannot start.

    Attributes
    ----------
    engine : Engine
        Used only on the server's event loop (`call`, `run`).
    endpoints : Endpoints
        The endpoints and their ports.
    """

    def __init__(self, options: EngineOptions, listen: ListenOptions, replaces: BackgroundServer | None = None) -> None:
        self._background = BackgroundLoop()
        self.engine = Engine(options)
        background, submitter = self._background, self.engine.submitter  # not the server, which the loop would keep
        background.on_closed = lambda: submitter.close(background.stopped_text)
        self.endpoints = Endpoints()
        stop = functools.partial(_stop, self._background, self.engine, self.endpoints)
        self._finalizer = finalize(self, stop_unused, stop)
        call_in_children(self._forked)
        try:
            if replaces is not None:
                self.run(_probe_startup(self.engine, listen.on_free_ports(replaces.endpoints)))
                replaces._background.stopped_text = REPLACED
                replaces.stop()
            report = _Progress(self._loading_text, REPORT_LOADING_AFTER_S).report
            self._background.run(_start(self.engine, self.endpoints, listen), report=report)
            self._background.url = self.url
        except BaseException:
            try:
                self.stop()
            except ExitTimeoutError as error:  # secondary to the cause, such as an interrupt while a model is loaded
                logger.error("%s", error)
            raise

    @property
    def alive(self) -> bool:
        """True if the server has not been stopped."""
        return self._background.alive

    def _not_copied(self) -> tuple[str, str]:
        return f"server {self.url}".rstrip(), reach_server(self.url)

    def _forked(self) -> None:
        """Fail all calls from now on: this is a forked child, without the server's threads."""
        self._background.abandon()
        self.engine.submitter.abandon(self._background.loop, self._background.stopped_text)
        forget_wakers()
        keep_forever(self.engine)
        keep_forever(self.endpoints)

    @property
    def stopped_text(self) -> str:
        """The message of calls to a stopped server."""
        return self._background.stopped_text

    @property
    def port(self) -> int:
        """The HTTP port.

        Raises
        ------
        UnavailableError
            If the server has no HTTP endpoint.
        """
        return self._http_endpoint.port

    @property
    def _http_endpoint(self) -> HttpEndpoint:
        if self.endpoints.http is None:
            raise UnavailableError("server: expected an HTTP endpoint, got allow_http=False")
        return self.endpoints.http

    @property
    def grpc_port(self) -> int | None:
        """The gRPC port, or None."""
        return None if self.endpoints.grpc is None else self.endpoints.grpc.port

    @property
    def metrics_port(self) -> int | None:
        """The metrics port, or None."""
        return None if self.endpoints.metrics is None else self.endpoints.metrics.port

    @property
    def openai_port(self) -> int | None:
        """The port of OpenAI's API; the HTTP port unless it has its own port, None if it is not served."""
        if self.endpoints.openai is not None:
            return self.endpoints.openai.port
        http = self.endpoints.http
        return http.port if http is not None and http.has_openai else None

    @property
    def url(self) -> str:
        """The URL of the HTTP endpoint on this machine; empty if there is none."""
        return "" if self.endpoints.http is None else self.endpoints.http.url

    @property
    def load_errors(self) -> Mapping[str, TritonError]:
        """Errors of the models that failed to load at start, by name."""
        return self.engine.load_errors

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Run a function on the server's event loop and wait for its result.

        Parameters
        ----------
        function : callable
            It must not block: it delays all requests.
        *args
            Its arguments.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0) as server:
        ...     print(server.call(server.engine.is_loaded, "double", -1))
        False
        """
        return self._background.call(function, *args)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's event loop and wait for its result.

        Parameters
        ----------
        coroutine : coroutine

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0) as server:
        ...     print(server.run(server.engine.is_ready()))
        True
        """
        return self._background.run(coroutine)

    def _loading_text(self) -> str:
        loading = self.call(self.engine.table.loading)
        served = f"; the models that are ready are served at {self.url}" if self.url else ""
        return f"still loading: {listed(loading)}{served}" if loading else ""

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Record the events of a ``with`` block.

        The recording is filled when the block ends and the batches that were sent are executed, but at most a second
        after the block: the execution of a generator ends after its last response. However the block ends, even if the
        server is stopped inside it, the recording has what happened until then.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0) as server:
        ...     @server.model(max_batch_size=8)
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     with server.record() as recording:
        ...         _ = server["double"](X=[[1.0]])
        >>> recording.batches[0].size
        1
        """
        events: list[Packed] = []
        recording = Recording()
        configs = self.call(self.engine.configs)

        def record(packed: Packed) -> None:
            events.append(packed)
            if packed[0] == ModelStateChanged.__name__:
                # Already here: if the server is stopped inside the block, its models are gone at the end.
                configs.update(self.engine.configs())

        self.call(self.engine.stream.attach, record)
        try:
            yield recording
        finally:
            try:
                with suppress(UnavailableError):  # the server was stopped inside the block: nothing more comes
                    try:
                        self.run(_wait_for_executions(self.engine.stream, events))
                    finally:  # an interrupt ends the wait
                        self.call(self.engine.stream.detach, record)
                    configs.update(self.call(self.engine.configs))
            finally:
                recording.fill(map(unpack, events.copy()), configs)

    def recent(self) -> Recording:
        """Return a recording of the latest events, without a ``with`` block.

        The event stream keeps the latest 65,536 events of all models: a few seconds at full load, or a long time at
        low load.

        Returns
        -------
        Recording
            Batches that were sent before the oldest of these events are not in it.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0) as server:
        ...     @server.model(max_batch_size=8)
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     _ = server["double"](X=[[1.0], [2.0]])
        ...     print(server.recent().for_model("double").batches[-1].size)
        2
        """
        recording = Recording()
        recording.fill(map(unpack, self.call(list, self.engine.stream.recent)), self.call(self.engine.configs))
        return recording

    def stop(self) -> None:
        """Answer all accepted requests, undo what is being loaded, stop the server and close its ports.

        A second call has no effect; while another thread stops the server, it waits for that.

        Raises
        ------
        ExitTimeoutError
            If it is not complete after ``exit_timeout``. The server has stopped; whoever waits has got an error.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> server = tnb.Server(port=0)
        >>> server.stop()
        >>> server
        <Server: stopped>
        """
        if self._finalizer.detach() is not None:
            _stop(self._background, self.engine, self.endpoints)
        self._background.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.stop)


async def _probe_startup(engine: Engine, options: ListenOptions) -> None:
    """Open the ports and close them again: failures occur before the other server is stopped."""
    await run_in_thread(functools.partial(require_directories, engine.options.model_repositories))
    endpoints = Endpoints()
    try:
        await endpoints.start(engine, options)
    finally:
        await endpoints.stop(0)


async def _wait_for_executions(stream: EventStream, events: Sequence[Packed]) -> None:
    """Wait until the batches that were sent so far are executed; ``events`` are the stream's events."""
    executing = _batches_of(BatchSent, events) - _batches_of(BatchExecuted, events)
    executed = asyncio.Event()

    def follow(packed: Packed) -> None:
        executing.difference_update(_batches_of(BatchExecuted, [packed]))
        if not executing:
            executed.set()

    if executing:
        stream.attach(follow)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(executed.wait(), _LONGEST_WAIT_S)
        finally:
            stream.detach(follow)


def _batches_of(kind: type[BatchSent | BatchExecuted], events: Iterable[Packed]) -> set[Packed]:
    """Return model, version and number of the batches with an event."""
    sought = kind.__name__
    return {(event[_BATCH.model], event[_BATCH.version], event[_BATCH.batch]) for event in events if event[0] == sought}


async def _start(engine: Engine, endpoints: Endpoints, options: ListenOptions) -> None:
    """Open the ports first: the models are not loaded if that fails."""
    try:
        await endpoints.start(engine, options)
        await engine.start()
    except BaseException:
        await endpoints.stop(0)
        raise


def _stop(background: BackgroundLoop, engine: Engine, endpoints: Endpoints) -> None:
    if not background.alive:
        return

    async def close() -> None:
        # The engine answers the accepted requests while the endpoints wait for the responses to be sent.
        timeout = engine.options.exit_timeout
        try:
            await asyncio.gather(engine.stop(), endpoints.stop_inference(timeout + _ERRORS_S))
        finally:
            await endpoints.stop(timeout)

    try:
        background.run(close(), REPORT_INTERVAL_S, _Progress(lambda: _unfinished_text(background, engine)).report)
    finally:
        background.stop()


def _unfinished_text(background: BackgroundLoop, engine: Engine) -> str:
    unfinished = background.call(engine.unfinished)
    timeout = engine.options.exit_timeout
    return unfinished and f"stop() waits for {unfinished}, at most {timeout:g} s (exit_timeout)"


class _Progress:
    """Messages about the models that a starting or stopping server waits for, printed when they change.

    Nothing is printed if the log shows them, as with ``tritonnb serve``.
    """

    def __init__(self, describe: Callable[[], str], delay_s: float = 0.0) -> None:
        self._describe = describe
        self._first_s = time.monotonic() + delay_s
        self._last = ""

    def report(self) -> None:
        if time.monotonic() < self._first_s or (logger.hasHandlers() and logger.isEnabledFor(logging.INFO)):
            return
        text = self._describe()
        if text not in ("", self._last):
            self._last = text
            print(text)
