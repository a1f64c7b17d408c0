"""Batches that a ``TritonPythonModel`` object executes: its requests, and the checks of its responses."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from tritonnb.backends.batching import with_configured_shape
from tritonnb.backends.execution import Execution
from tritonnb.backends.python import module_import
from tritonnb.backends.python.coroutines import CoroutineRunner
from tritonnb.backends.python.declared_outputs import DeclaredInputs, DeclaredOutputs
from tritonnb.backends.python.request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from tritonnb.backends.python.response import InferenceResponse, Send, to_core_response
from tritonnb.backends.python.tensor import to_core_tensor
from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError
from tritonnb.core.failures import frames_to_notes
from tritonnb.core.messages import ExpectedTensor, InferRequest, InferResponse, Tensor
from tritonnb.core.ownership import read_only_view, writeable_copy
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import fits
from tritonnb.core.texts import printable
from tritonnb.model_config.schema import ModelSpec

# A name of another module is looked up in two dictionaries each time.
_RESCHEDULE: Final = TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


class SingleResponseSender:
    """The sender of the only response to a request, for a model that is not decoupled; usable from any thread.

    Such a model returns the response from ``execute``, or returns None and sends it with the request's response sender,
    during ``execute`` or later. The first response is sent to the client; the final flag only closes the sender. If the
    model drops a sender without having sent a response, the client gets an error.

    Parameters
    ----------
    execution : Execution
        The batch that contains the request.
    index : int
        Index of the request in the batch.
    configure : callable
        Applied to the response before it is sent.

    Attributes
    ----------
    closed : bool
        Whether nothing more can be sent.
    """

    __slots__ = ("_configure", "_execution", "_index", "_lock", "_response", "closed")

    def __init__(self, execution: Execution, index: int, configure: Callable[[InferResponse], InferResponse]) -> None:
        self._execution = execution
        self._index = index
        self._configure = configure
        self._response = execution.responses[index]  # if `execute` has returned it
        self._lock = threading.Lock()
        self.closed = self._response is not None

    def send(self, response: InferResponse) -> None:
        """Send the response, the final flag, or both.

        Raises
        ------
        InternalError
            If there already is a response, the sender is closed, or the final flag is sent before a response.
        """
        with self._lock:
            self._check(response)
            self.closed = response.final
            if response.empty:
                return
            self._response = response
        # A model that is not decoupled has one response; Triton waits for the final flag, and its client may wait
        # forever.
        response.final = True
        self._execution.sender(self._index).send(self._configure(response))

    def record_returned(self) -> None:
        """Record that ``execute`` has returned the response.

        Raises
        ------
        InternalError
            As for `send`.
        """
        response = InferResponse()
        with self._lock:
            self._check(response)
            self._response, self.closed = response, True

    def __del__(self) -> None:
        # `__del__` is unusual, but the only sign that a model has lost its sender; on Triton the client would never
        # hear.
        if self._response is None and not self.closed:
            self.send(InferResponse(error=InternalError("the model dropped the response sender without a response")))

    def _check(self, response: InferResponse) -> None:
        if not response.empty and self._response is not None:
            raise InternalError("Unable to send response. Non-decoupled model cannot send more than one response.")
        if response.empty and self._response is None:
            raise InternalError(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )
        if self.closed:
            raise InternalError("Unable to send response. Response sender has been closed.")


class StreamSender:
    """What sends the responses to one request of a decoupled model; usable from any thread.

    The request and its response senders hold it, and nothing else does: once the model has dropped all of them without
    the final flag, nobody can end the request, and the client gets an error.

    Parameters
    ----------
    execution : Execution
        The batch that contains the request.
    index : int
        Index of the request in the batch.
    configure : callable
        Applied to each response before it is sent.

    Attributes
    ----------
    has_failed : bool
        Whether ``execute`` raised, so that its exception is the last response.
    """

    __slots__ = ("_configure", "_index", "_rescheduled", "_sender", "has_failed")

    def __init__(self, execution: Execution, index: int, configure: Callable[[InferResponse], InferResponse]) -> None:
        self._sender = execution.sender(index)
        self._rescheduled = execution.rescheduled
        self._index = index
        self._configure = configure
        self.has_failed = False

    def send_function(self, index: int) -> Send:
        """Return the function that sends a response; ``index`` is the index of the request."""
        return self.send

    def send(self, response: InferResponse) -> None:
        """Send a response, the final flag, or both.

        Raises
        ------
        InternalError
            If the final flag was already sent.
        """
        self._sender.send(self._configure(response))

    def __del__(self) -> None:
        # On Triton the client would never hear, as for a model that is not decoupled.
        if not (self._sender.closed or self.has_failed or self._index in self._rescheduled):
            self._sender.send(InferResponse(error=InternalError(_DROPPED_STREAM)))


_DROPPED_STREAM: Final = "the model dropped the request and its response senders without the final flag"

#: The response senders of a batch that the model has requested, by index of the request.
_Senders = dict[int, SingleResponseSender]


class ModelExecutor:
    """The calls of a model object's ``execute``.

    Parameters
    ----------
    config : inference.ModelConfig
    instance : str
        Name of the model instance, for error messages.
    path : pathlib.Path
        The model's file.
    model : object
        The ``TritonPythonModel``.
    new_request : callable
        Makes the ``InferenceRequest`` of a request, from the requested outputs, a function that returns the function
        that sends the responses of a request of the batch, and the index of the request.
    coroutines : CoroutineRunner
        Runs ``async def execute``.
    """

    def __init__(
        self,
        config: pb.ModelConfig,
        instance: str,
        path: Path,
        model: Any,
        new_request: Callable[..., Any],
        coroutines: CoroutineRunner,
    ) -> None:
        self._instance = instance
        self._path = path
        self._model = model
        self._new_request = new_request
        self._coroutines = coroutines
        spec = ModelSpec.from_config(config)
        self._reshaped = {name: output for name, output in spec.outputs.items() if output.reshape is not None}
        self._batching = spec.max_batch_size > 0
        self._states = tuple([state.output_name for state in config.sequence_batching.state])
        self._outputs = DeclaredOutputs(spec.outputs, spec.name, self._states)
        self._expected = {
            name: ExpectedTensor(output.datatype, output.dims, output.reshape is not None)
            for name, output in spec.outputs.items()
        }
        self._output_specs = dict(spec.outputs)
        self._inputs = DeclaredInputs(list(spec.inputs), spec.name)
        self._decoupled = bool(config.model_transaction_policy.decoupled)

    def execute(self, execution: Execution) -> None:
        """Call the model with the requests of a batch, and pass on its responses.

        Raises
        ------
        InternalError
            What the model raised, or what is wrong with its responses, with Triton's text.
        """
        if self._batching:
            _check_inputs(execution.requests)
        senders: _Senders = {}
        streams: list[StreamSender] = []
        if self._decoupled:
            streams = [StreamSender(execution, index, self._configure) for index in range(len(execution.requests))]
        send_function = functools.partial(self._send_function, execution, senders)
        requests = [
            self._new_request(
                request,
                request.requested_outputs if request.requested_outputs is not None else self._outputs,
                streams[index].send_function if streams else send_function,
                index,
                self._inputs,
            )
            for index, request in enumerate(execution.requests)
        ]
        execution.compute_started()
        self._inputs.hint = ""
        try:
            # A copy, since a model may take the requests out of its list.
            responses = self._model.execute(requests.copy())
            if type(responses) is not list and inspect.iscoroutine(responses):
                responses = self._run(responses, execution)
        # `sys.exit` in a model must fail its batch and not end the server.
        except BaseException as error:
            self._close_senders(execution, senders, streams)
            failure = self._error(self._describe(error))
            # Most often the model used the None that it got.
            if isinstance(error, (AttributeError, TypeError)) and "NoneType" in failure.message:
                failure.hint = self._inputs.hint
            failure.model_error = frames_to_notes(error)
            # `model_error` has the frames of the model already; a chained traceback would show them twice.
            raise failure from None
        execution.compute_ended()
        for index, request in enumerate(requests):
            if request.release_flags == _RESCHEDULE:
                execution.reschedule(index)
        if not self._decoupled:
            try:
                self._answer(execution, responses, senders)
            except InternalError:
                self._close_senders(execution, senders, streams)
                raise
        elif responses is not None:
            self._close_senders(execution, senders, streams)
            raise self._error(
                f"Python model '{self._instance}' is using the decoupled mode and the execute function must return "
                "None."
            )

    def _run(self, coroutine: Coroutine[Any, Any, object], execution: Execution) -> object:
        if not self._decoupled:
            return self._coroutines.run(coroutine)

        def send_failure(error: BaseException) -> None:
            response = InferResponse(error=self._error(module_import.describe(error)))
            for sender in map(execution.sender, range(len(execution.requests))):
                if not sender.closed:
                    sender.send(response)

        self._coroutines.start(coroutine, send_failure)
        return None

    def _send_function(self, execution: Execution, senders: _Senders, index: int) -> Send:
        return self._single_sender(execution, index, senders).send

    def _single_sender(self, execution: Execution, index: int, senders: _Senders) -> SingleResponseSender:
        if index not in senders:
            senders[index] = SingleResponseSender(execution, index, self._configure)
        return senders[index]

    def _close_senders(self, execution: Execution, senders: _Senders, streams: list[StreamSender]) -> None:
        for stream in streams:
            stream.has_failed = True
        if not self._decoupled:
            for index in range(len(execution.requests)):
                self._single_sender(execution, index, senders).closed = True

    def _answer(self, execution: Execution, responses: object, senders: _Senders) -> None:
        # A model may return None instead of a list if it has taken the senders of its requests.
        if responses is None and senders:
            responses = [None] * len(execution.requests)
        if not isinstance(responses, list):
            raise self._error(f"Expected a list in the execute return, found type '{type(responses)}'.")
        if len(responses) != len(execution.requests):
            raise self._error(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(execution.requests)}, and InferenceResponse(s) size "
                f"is:{len(responses)}\n"
            )
        for index, response in enumerate(responses):
            if response is None and (index in senders or index in execution.rescheduled):
                continue
            if index in execution.rescheduled:
                raise self._error(
                    "Expected a None object in the execute function return list for reschduled request, found type "
                    f"'{type(response)}'."
                )
            # An exact type, since the class is compiled in production and cannot be inherited from there.
            if type(response) is not InferenceResponse:
                raise self._error(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{type(response)}'."
                )
            if index in senders:
                try:
                    senders[index].record_returned()
                except InternalError as error:
                    raise self._error(error.message) from None
        for index, response in enumerate(responses):
            if response is None:
                if index not in execution.rescheduled:
                    execution.sender(index)  # sends the response, or has sent it
                continue
            execution.answer(index, self._converted(execution.requests[index], response))

    def _converted(self, request: InferRequest, response: InferenceResponse) -> InferResponse:
        """Return the server's form of a returned response; an error of this response alone if that is not possible."""
        output_names = request.requested_outputs if request.requested_outputs is not None else self._outputs
        try:
            # An error leaves the state of the sequence as it was.
            if self._states and not response.has_error():
                try:
                    self._publish_states(request, response)
                except TritonError as error:
                    return InferResponse(error=error)
            return self._configure(to_core_response(response, output_names))
        except TritonError:
            raise
        except (Exception, SystemExit) as error:  # a string that UTF-8 cannot express; elements may raise anything
            return InferResponse(error=self._error(f"{type(error).__name__}: {printable(error)}"))

    def _configure(self, response: InferResponse) -> InferResponse:
        # The checks end with the first warning, so that a model that always differs does not pay for them.
        if not self._outputs.has_differed:
            for output in response.outputs:
                expected = self._expected.get(output.name)
                # Most outputs are as declared, and the check with its words is interpreted.
                if expected is not None and not self._is_as_declared(output, expected):
                    self._outputs.check(output, self._output_specs[output.name], self._batching)
        if self._reshaped:
            response.outputs = [
                with_configured_shape(output, self._reshaped.get(output.name), self._batching)
                for output in response.outputs
            ]
        return response

    def _is_as_declared(self, output: Tensor, expected: ExpectedTensor) -> bool:
        shape = output.shape
        return (
            output.datatype is expected.datatype
            and not expected.is_reshaped
            and fits(shape[1:] if self._batching and shape else shape, expected.dims)
        )

    def _publish_states(self, request: InferRequest, response: InferenceResponse) -> None:
        for tensor in response.output_tensors():
            if tensor.name() in self._states and request.states is not None:
                request.states.update(tensor.name(), read_only_view(writeable_copy(to_core_tensor(tensor).array)))

    def _describe(self, error: BaseException) -> str:
        if isinstance(error, AttributeError) and not hasattr(self._model, "execute"):
            return f"Python model {self._path} does not implement `execute` method."
        return module_import.describe(error)

    def _error(self, message: str) -> InternalError:
        return InternalError(f"Failed to process the request(s) for model '{self._instance}', message: {message}")


def _check_inputs(requests: Sequence[InferRequest]) -> None:
    """Check that each request has an input: Triton takes the batch size from the first input."""
    for request in requests:
        if not request.inputs:
            raise InvalidArgumentError(f"{request.id_prefix}out of bounds index 0: request has 0 inputs")
