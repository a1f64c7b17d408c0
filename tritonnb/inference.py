"""In-process inference: NumPy arrays in, NumPy arrays out, without a socket.

Calls come from any thread or event loop; the request itself is handled on the server's loop like
any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import BF16, BYTES, as_bytes_array, bf16_to_float32, float32_to_bf16
from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError, UnavailableError
from tritonnb.core.messages import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferRequest,
    InferResponse,
    ParameterValue,
    Tensor,
    nobody,
)
from tritonnb.model_config.schema import ModelSpec, TensorSpec
from tritonnb.runtime.engine import Engine
from tritonnb.runtime.loop import STOPPED

logger = logging.getLogger(__name__)

Outputs = dict[str, npt.NDArray[Any]]


class Submitter:
    """Carries requests from other threads to the engine's loop, many with one wake-up."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._waiting: deque[InferRequest] = deque()
        self._called = False

    def submit(self, request: InferRequest) -> None:
        """Hand over a request; every outcome, refusals too, comes through ``request.respond``.

        Raises
        ------
        UnavailableError
            If the server has been stopped.
        """
        self._waiting.append(request)
        # `_take` lowers the flag before it empties the queue, so a request that finds it raised is
        # in time to be taken.
        if not self._called:
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError as error:  # the loop is closed
                self._called = False
                raise UnavailableError(STOPPED) from error

    def cancel(self, request: InferRequest) -> None:
        """Nobody waits for the request any more."""
        with contextlib.suppress(RuntimeError):  # the server has been stopped, and answered it
            self._loop.call_soon_threadsafe(self._engine.cancel, request)

    def _take(self) -> None:
        self._called = False
        waiting = self._waiting
        while waiting:
            request = waiting.popleft()
            try:
                self._engine.submit(request)
            except TritonError as error:
                request.respond(request, InferResponse(error=error))
            except Exception as error:  # whatever it is, somebody waits for an answer
                logger.exception("submitting a request to model '%s' failed", request.model_name)
                request.respond(request, InferResponse(error=InternalError(f"{type(error).__name__}: {error}")))


class Waker:
    """Tells a caller's event loop which of its requests were answered, many with one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._finished: deque[asyncio.Future[None]] = deque()
        self._called = False

    def wake(self, future: asyncio.Future[None]) -> None:
        """Finish a future, from any thread."""
        self._finished.append(future)
        if not self._called:
            self._called = True
            loop = self._loop()
            # The caller's loop may be gone: nobody is left to wake then.
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._called = False
        while self._finished:
            future = self._finished.popleft()
            if not future.done():
                future.set_result(None)


_wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Waker] = weakref.WeakKeyDictionary()


class Collector:
    """Gathers the responses of one request, and says when the final one is there.

    ``done`` is called once, on the server's loop.
    """

    __slots__ = ("_done", "responses")

    def __init__(self, done: Callable[[], None]) -> None:
        self.responses: list[InferResponse] = []
        self._done = done

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Take one response."""
        if not response.empty:
            self.responses.append(response)
        if response.final:
            self._done()

    def outputs(self) -> list[Outputs]:
        """What the model answered, one dict for each response.

        Raises
        ------
        TritonError
            The first error among the responses.
        """
        for response in self.responses:
            if response.error is not None:
                raise response.error
        return [{each.name: _to_numpy(each) for each in response.outputs} for response in self.responses]


def infer(submitter: Submitter, request: InferRequest) -> list[Outputs]:
    """Run a request and wait for it in this thread; an interrupt cancels it."""
    finished = threading.Lock()
    finished.acquire()
    collector = Collector(finished.release)
    request.respond = collector.respond
    submitter.submit(request)
    try:
        finished.acquire()
    except KeyboardInterrupt:
        submitter.cancel(request)
        raise
    return collector.outputs()


async def infer_async(submitter: Submitter, request: InferRequest) -> list[Outputs]:
    """Run a request and wait for it in the caller's event loop; cancelling the task cancels it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    waker = _wakers.get(loop)
    if waker is None:
        waker = _wakers[loop] = Waker(loop)
    collector = Collector(functools.partial(waker.wake, future))
    request.respond = collector.respond
    submitter.submit(request)
    try:
        await future
    except asyncio.CancelledError:
        submitter.cancel(request)
        raise
    return collector.outputs()


def _is_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and bool(value >= 0)


def _is_parameters(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(each, (str, int, float, bool)) for name, each in value.items()
    )


def _are_names(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value)


#: What a request may be told besides its inputs: whether a value is possible, and what it must be.
REQUEST_OPTIONS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "id": (lambda value: isinstance(value, str), "a text"),
    "outputs": (lambda value: value is None or _are_names(value), "a list of output names"),
    "parameters": (lambda value: value is None or _is_parameters(value), "a dict of texts, numbers or bools by name"),
    "priority": (_is_count, "a whole number from 0 on"),
    "timeout_us": (_is_count, "a whole number from 0 on"),
    "sequence_id": (lambda value: isinstance(value, str) or _is_count(value), "a whole number from 0 on or a text"),
    "sequence_start": (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
    "sequence_end": (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
}


def checked_options(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """`REQUEST_OPTIONS` of a request, with NumPy's numbers as Python's.

    Raises
    ------
    InvalidArgumentError
        If one is not what it must be.
    """
    for name, value in options.items():
        possible, words = REQUEST_OPTIONS[name]
        if not possible(value):
            raise InvalidArgumentError(f"model '{model}': {name} must be {words}, got {value!r}")
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}


def make_request(
    spec: ModelSpec,
    version: int,
    inputs: Mapping[str, npt.ArrayLike],
    *,
    id: str = "",
    outputs: Sequence[str] | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    priority: int = 0,
    timeout_us: int = 0,
    sequence_id: int | str = 0,
    sequence_start: bool = False,
    sequence_end: bool = False,
) -> InferRequest:
    """A request from NumPy arrays or nested lists.

    Raises
    ------
    InvalidArgumentError
        If there is no such input, or an array is not of the input's datatype; lists are converted.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in inputs.items():
        wanted = spec.inputs.get(name)
        if wanted is None:
            raise InvalidArgumentError(
                f"unexpected inference input '{name}' for model '{spec.name}': "
                f"it has {', '.join(map(repr, spec.inputs))}"
            )
        tensors[name] = Tensor(name, wanted.datatype, _from_numpy(spec.name, wanted, value))
    return InferRequest(
        spec.name,
        tensors,
        nobody,
        model_version=version,
        id=id,
        requested_outputs=None if outputs is None else tuple(outputs),
        parameters=dict(parameters or {}),
        priority=priority,
        timeout_us=timeout_us,
        correlation_id=sequence_id,
        flags=SEQUENCE_START * sequence_start | SEQUENCE_END * sequence_end,
    )


def _from_numpy(model: str, wanted: TensorSpec, value: npt.ArrayLike) -> npt.NDArray[Any]:
    datatype = wanted.datatype
    if isinstance(value, np.ndarray) and value.dtype == datatype.numpy and datatype is not BYTES:
        return value
    if datatype is BYTES:
        return as_bytes_array(value)
    what = f"input '{wanted.name}' of model '{model}' is {datatype.name}"
    if value is None:
        raise InvalidArgumentError(f"{what}, and None is no array")
    # Lists are converted; arrays, whosesoever they are, have a datatype already. None has NumPy's for BF16.
    has_datatype = hasattr(value, "__array__") and datatype is not BF16
    given = np.dtype(np.float32) if datatype is BF16 else datatype.numpy
    try:
        array = np.asarray(value) if has_datatype else np.asarray(value, given)
    except Exception as error:  # arrays of other libraries raise what they like
        raise InvalidArgumentError(f"{what}, and {error}") from None
    if datatype is BF16:
        return float32_to_bf16(array)
    if array.dtype == datatype.numpy:
        return array
    what += f" (NumPy {datatype.numpy}), got "
    if isinstance(value, np.ndarray):
        raise InvalidArgumentError(
            f"{what}an array of {array.dtype}: convert it, such as with .astype('{datatype.numpy}')"
        )
    raise InvalidArgumentError(f"{what}{array.dtype} in a {type(value).__name__}: convert it to {datatype.numpy}")


def _to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    return bf16_to_float32(tensor.array) if tensor.datatype is BF16 else tensor.array
