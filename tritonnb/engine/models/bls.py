"""Calls from models to the server that runs them: inference, loading and unloading of other models, metrics.

An instance that waits for another model does nothing else, so models that call each other in a cycle could
wait forever. So does a model that needs a resource of the rate limiter that its callers hold. The call that would
complete such a cycle fails.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from tritonnb.core.errors import InternalError, TritonError, UnavailableError, UnsupportedError
from tritonnb.core.events import StepSent
from tritonnb.core.messages import InferRequest, InferResponse, RequestTrace
from tritonnb.engine.execution.instance import Instance, instance_that_waits
from tritonnb.engine.execution.loop import SIGNAL_CHECK_S, STOPPED
from tritonnb.engine.models.ensemble_driver import EnsembleDriver
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.submission import Submission, Submitter
from tritonnb.scheduling.reasons import BLS_REQUEST
from tritonnb.telemetry.custom_metrics import CustomMetrics

P = ParamSpec("P")
T = TypeVar("T")


class CalledEngine(Protocol):
    """What calls by models need of the engine, an `Engine`.

    Attributes
    ----------
    submitter : Submitter
    """

    submitter: Submitter

    def check_model_control(self) -> None:
        """Raise UnavailableError unless the model control mode is ``"explicit"``."""

    def model(self, name: str, version: int = -1) -> ServedModel:
        """Return a model that is ready."""

    async def load(self, name: str, parameters: Mapping[str, str | bytes] | None = None, *, trusted: bool) -> None:
        """Load a model."""

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model."""

    async def model_ready(self, name: str, version: int = -1) -> bool:
        """Return whether a model is ready."""
        return False


class ModelCalls:
    """The `ServerCalls` of an engine.

    Parameters
    ----------
    engine : CalledEngine

    Attributes
    ----------
    metrics : CustomMetrics
    loop : asyncio.AbstractEventLoop
        The server's event loop; set when the engine starts.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, engine: CalledEngine) -> None:
        self.metrics = CustomMetrics()
        self._engine = engine

    # --- on threads of models -----------------------------------------------------------------

    def infer(self, request: InferRequest, *, decoupled: bool, cause: InferRequest | None = None) -> None:
        """Run a request; responses and errors are passed to ``request.respond`` on the event loop.

        Raises
        ------
        UnsupportedError
            If the event loop itself executes the model, like all calls that wait.
        """
        if cause is not None:
            request.caller = (cause.model_name, cause.model_version, cause.serial)
        start = functools.partial(self._start, decoupled, cause)
        self._engine.submitter.submit(Submission(functools.partial(request.respond, request)), request, start)

    def cancel(self, request: InferRequest) -> None:
        """Cancel a request."""
        with contextlib.suppress(RuntimeError):  # the server has been stopped, and has answered it
            self.loop.call_soon_threadsafe(request.cancel)

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        """Load a model; its files may be part of the request, since the caller is code already."""
        self._engine.check_model_control()
        self._run(self._engine.load, name, parameters, trusted=True)

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model."""
        self._engine.check_model_control()
        self._run(self._engine.unload, name, unload_dependents)

    def is_model_ready(self, name: str, version: int) -> bool:
        """Return whether a model is ready."""
        return self._run(self._engine.model_ready, name, version)

    def _run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        instance_that_waits()
        coroutine = function(*args, **kwargs)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise UnavailableError(STOPPED) from None
        try:
            # The loop cancels what it runs when it ends, but it may have ended before it took this call.
            while not concurrent.futures.wait([future], SIGNAL_CHECK_S).done:
                if self.loop.is_closed():
                    raise UnavailableError(STOPPED)
            return future.result()
        except concurrent.futures.CancelledError:
            raise UnavailableError(STOPPED) from None

    # --- on the event loop --------------------------------------------------------------------

    def _start(
        self,
        decoupled: bool,
        cause: InferRequest | None,
        submission: Submission,
        request: InferRequest,
        caller: Instance | None,
    ) -> None:
        served = self._callee(request, decoupled)
        submit_call(submission, served, request, caller, None if cause is None else cause.child_trace(request))

    def _callee(self, request: InferRequest, decoupled: bool) -> ServedModel:
        name = request.model_name
        try:
            served = self._engine.model(name, request.model_version)
        except TritonError:
            # Triton's text, its grammar included.
            raise InternalError(f"Failed for execute the inference request. Model '{name}' is not ready.") from None
        if served.decoupled and not decoupled:
            raise UnsupportedError(
                f"Model {name} is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
                "calls for decoupled models.'"
            )
        return served


def submit_call(
    submission: Submission,
    served: ServedModel,
    request: InferRequest,
    caller: Instance | None,
    trace: RequestTrace | None = None,
) -> None:
    """Submit a request that another thread has sent, and emit the event of the call if a model has sent it.

    Parameters
    ----------
    submission : Submission
    served : ServedModel
        The model that the request is for.
    request : InferRequest
    caller : Instance or None
        The instance whose thread waits; None if no model calls.
    trace : RequestTrace, optional

    Raises
    ------
    UnavailableError
        As for `register_wait`.
    """
    register_wait(request, served, caller)
    submission.submit(served, request, trace)
    if request.caller is not None and request.serial:  # 0 if it was refused before it was numbered
        model, version, serial = request.caller
        called = served.name, served.version, request.serial
        served.stream.emit(StepSent(time.monotonic_ns(), model, version, serial, 0, *called, 0, BLS_REQUEST))


def register_wait(request: InferRequest, served: ServedModel, caller: Instance | None) -> None:
    """Record that an instance waits for a model, until the final response to its request.

    Parameters
    ----------
    request : InferRequest
        Not submitted yet.
    served : ServedModel
        The model that the request is for.
    caller : Instance or None
        The instance whose thread waits; None if no model calls.

    Raises
    ------
    UnavailableError
        If no response is possible, because all instances of that model wait for the caller, or need resources that
        instances hold that wait for them.
    """
    if caller is None:
        return
    # Entered before the question: a caller that is not waiting yet could not be stuck.
    _begin_wait(caller, served)
    stuck = _stuck_instances()
    if caller in stuck:
        lacking = _lacking_resources(served, stuck)
        _end_wait(caller, served)
        if lacking:
            names = " and ".join(map(repr, sorted(lacking)))
            raise UnavailableError(
                f"model '{served.name}' cannot be executed: instances that wait for its response hold the resource "
                f"{names} that it needs: increase --rate-limit-resource, or let only the called models need it"
            )
        raise UnavailableError(
            f"all instances of model '{served.name}' wait for one another: a model that calls itself, directly or "
            "through other models, needs more instances than calls in progress"
        )

    instance = caller

    def stop_waiting(request: InferRequest, response: InferResponse) -> None:
        if response.final:
            _end_wait(instance, served)

    request.observe_responses(stop_waiting)


#: The instances of all servers of the process that wait for responses, and the model versions that they wait for.
_waiting: dict[Instance, list[ServedModel]] = {}


def models_waited_for(instance: Instance) -> list[ServedModel]:
    """Return the model versions whose responses the code on the thread of an instance waits for."""
    return list(_waiting.get(instance, ()))


def _begin_wait(caller: Instance, served: ServedModel) -> None:
    _waiting.setdefault(caller, []).append(served)
    # Lets the called model overtake batches that wait for the resources of its caller.
    if caller.limiter is not None:
        caller.limiter.waiting += 1


def _end_wait(caller: Instance, served: ServedModel) -> None:
    models = _waiting[caller]
    models.remove(served)
    if not models:
        del _waiting[caller]
    if caller.limiter is not None:
        caller.limiter.waiting -= 1


def _stuck_instances() -> set[Instance]:
    """Return the instances that wait for responses that cannot come.

    First all that wait count as stuck. Then each is freed if the models that it waits for can respond without those
    that are stuck, until none is freed. Several servers with their own event loops may take part, so what they change
    is copied first.
    """
    # Whoever cannot be shown to end is stuck, so cycles of any length are found without a search for cycles.
    stuck = set(_waiting)
    while freed := {
        caller for caller in stuck if all(_can_respond(model, stuck) for model in models_waited_for(caller))
    }:
        stuck -= freed
    return stuck


def _can_respond(served: ServedModel, stuck: set[Instance]) -> bool:
    """Return whether an instance of the model, and of each model of an ensemble, can be executed."""
    if isinstance(served.driver, EnsembleDriver):
        return all(_can_respond(model, stuck) for model in served.driver.needed_models())
    active = [instance for instance in served.instances if not instance.spec.passive]
    free = [instance for instance in active if instance not in stuck]
    return not active or any(not _lacks(instance, stuck) for instance in free)


def _lacking_resources(served: ServedModel, stuck: set[Instance]) -> set[str]:
    """Return the names of the resources because of which a model, or one of an ensemble's models, cannot respond."""
    if isinstance(served.driver, EnsembleDriver):
        return set().union(*(_lacking_resources(model, stuck) for model in served.driver.needed_models()))
    return set().union(*(_lacks(instance, stuck) for instance in served.instances if instance not in stuck))


def _lacks(instance: Instance, stuck: set[Instance]) -> set[str]:
    """Return the names of the resources that an instance needs, and that stuck executions hold."""
    if instance.limiter is None:
        return set()
    holders = [other for other in stuck if other.busy and other.limiter is instance.limiter]
    held = [resource for holder in holders for resource in holder.spec.resources]
    return instance.limiter.lacking(instance.spec.resources, held)
