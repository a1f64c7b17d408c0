"""The Python backend: runs ``TritonPythonModel`` objects.

Semantics, limits and error texts are those of Triton's Python backend, where each instance is a process; here it is a
thread. Unlike Triton's, this backend supports implicit state.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tritonnb.backends.batching import output_tensor
from tritonnb.backends.completion import merge_completed
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution, ResponseSender
from tritonnb.backends.parameters import boolean_parameter
from tritonnb.backends.python import module_import, pb_utils
from tritonnb.backends.python.coroutines import CoroutineRunner
from tritonnb.backends.python.instance_binding import InstanceBinding
from tritonnb.backends.python.model_config import ModelConfig
from tritonnb.backends.python.request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from tritonnb.backends.python.response import InferenceResponse, to_core_response
from tritonnb.backends.python.single_response import SingleResponseSender
from tritonnb.backends.python.tensor import to_core_tensor
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from tritonnb.core.failures import frames_to_notes
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.ownership import read_only_view, writeable_copy
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.json_config import parse_json
from tritonnb.model_config.schema import ModelSpec
from tritonnb.model_config.to_json import config_to_dict, config_to_json

logger = logging.getLogger(__name__)

#: The parameter of a model that says that ``execute`` may run on any thread.
ANY_THREAD = "EXECUTE_ON_ANY_THREAD"


class PythonBackend(Backend):
    """``backend: "python"``, or a backend written in Python.

    Parameters
    ----------
    file : path, optional
        The *model.py* of a backend that is written in Python, which runs all models of the backend. If omitted, each
        model has its own file.
    """

    name = "python"
    supports_batch_tensors = True  # Triton's accepts them, too, and passes nothing of them to the model

    def __init__(self, file: Path | str | None = None) -> None:
        self._file = None if file is None else Path(file)

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Call the model's ``auto_complete_config``, if it has one."""
        _check_parameters(context)
        path = self._file or _model_path(context)
        binding = InstanceBinding(context.version_directory)
        binding.enter()
        module = module_import.import_model(path, pb_utils.utilities_for(binding))
        try:
            function = getattr(module_import.model_class(module, path), "auto_complete_config", None)
            if function is None:
                return context.config
            completed = function(ModelConfig(config_to_dict(context.config)))
            if not isinstance(completed, ModelConfig):
                raise InternalError(
                    f"auto_complete_config function in model '{context.name}' must return a valid "
                    "pb.ModelConfig object."
                )
            text = json.dumps(completed.as_dict())
        except InternalError:
            raise
        except BaseException as error:
            raise InternalError(module_import.describe(error)) from error
        finally:
            module_import.forget_model(module)
        return _merge_completed(context.config, text)

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return PythonModel(context, self._file)


class PythonModel(BackendModel):
    """A model that is written in Python."""

    def __init__(self, context: ModelContext, file: Path | None = None) -> None:
        super().__init__(context)
        self._path = file or _model_path(context)

    def initialize(self) -> None:
        """Check the parameters; the file itself is imported by each instance."""
        _check_parameters(self.context)

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance with its own ``TritonPythonModel``."""
        return PythonInstance(self.context, spec, self._path)


class PythonInstance(BackendModelInstance):
    """One ``TritonPythonModel``."""

    error_responses_fail = False

    def __init__(self, context: ModelContext, spec: InstanceSpec, path: Path) -> None:
        self._context = context
        self._spec = spec
        self._path = path
        self._binding = InstanceBinding(context.version_directory, context.server, spec.name)
        model = ModelSpec.from_config(context.config)
        self._outputs = tuple(model.outputs)
        self._reshaped = {name: spec for name, spec in model.outputs.items() if spec.reshape is not None}
        self._batching = model.max_batch_size > 0
        self._states = tuple(state.output_name for state in context.config.sequence_batching.state)
        self._decoupled = bool(context.config.model_transaction_policy.decoupled)
        self._coroutines = CoroutineRunner()
        self._any_thread = boolean_parameter(context, ANY_THREAD, False)

    @property
    def any_thread(self) -> bool:
        """The parameter ``EXECUTE_ON_ANY_THREAD``: models may keep what belongs to the thread of ``initialize``."""
        return self._any_thread and not inspect.iscoroutinefunction(self._model.execute)

    def initialize(self) -> None:
        """Import the file, create the object, and call its ``initialize``."""
        self._binding.enter()
        utilities = pb_utils.utilities_for(self._binding)
        self._new_request = utilities.InferenceRequest.received
        self._module = module_import.import_model(self._path, utilities)
        try:
            model = module_import.model_class(self._module, self._path)()
            if hasattr(model, "initialize"):
                model.initialize(self._arguments())
        except InternalError:
            module_import.forget_model(self._module)
            raise
        except BaseException as error:
            module_import.forget_model(self._module)
            raise InternalError(module_import.describe(error), model_error=frames_to_notes(error)) from None
        self._model = model
        self._binding.executing = True

    def execute(self, execution: Execution) -> None:
        """Call the model's ``execute``."""
        if self._any_thread:
            self._binding.call(self._execute, execution)
        else:
            self._execute(execution)

    def _execute(self, execution: Execution) -> None:
        if self._batching:
            _check_inputs(execution.requests)
        senders: _Senders = {}
        requests = [
            self._new_request(
                request,
                request.requested_outputs if request.requested_outputs is not None else self._outputs,
                functools.partial(self._sender, execution, index, senders),
            )
            for index, request in enumerate(execution.requests)
        ]
        execution.compute_started()
        try:
            responses = self._model.execute(requests)
            if inspect.iscoroutine(responses):
                responses = self._run(responses, execution)
        except BaseException as error:
            self._close_senders(execution, senders)
            failure = self._error(self._describe(error))
            failure.model_error = frames_to_notes(error)
            raise failure from None
        execution.compute_ended()
        for index, request in enumerate(requests):
            if request.release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
                execution.reschedule(index)
        if not self._decoupled:
            try:
                self._answer(execution, responses, senders)
            except InternalError:
                self._close_senders(execution, senders)
                raise
            except UnicodeError as error:  # a string that cannot be encoded in UTF-8
                self._close_senders(execution, senders)
                raise self._error(self._describe(error)) from error
        elif responses is not None:
            raise self._error(
                f"Python model '{self._spec.name}' is using the decoupled mode and the execute function must return "
                "None."
            )

    def readiness_check(self) -> Callable[[], None] | None:
        """The model's ``is_ready``, if it has one."""
        return self._check_ready if hasattr(self._model, "is_ready") else None

    def _check_ready(self) -> None:
        try:
            ready = self._model.is_ready()
            if inspect.iscoroutine(ready):
                ready = self._coroutines.run_from_other_thread(ready)
        except BaseException as error:
            raise InternalError(module_import.describe(error)) from None
        if not isinstance(ready, bool):
            raise InternalError("is_ready() must return a boolean value")
        if not ready:
            raise UnavailableError(f"Model '{self._spec.name}' is not ready (user-defined check failed).")

    def finalize(self) -> None:
        """Call the model's ``finalize``; what it raises is logged and ignored."""
        self._binding.executing = False
        if hasattr(self._model, "finalize"):
            try:
                self._model.finalize()
            except BaseException:
                logger.exception("finalize of model instance '%s' failed", self._spec.name)
        self._model = None  # also deletes its metrics
        module_import.forget_model(self._module)
        self._coroutines.close()

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

    def _sender(self, execution: Execution, index: int, senders: _Senders) -> ResponseSender:
        if self._decoupled:
            sender = execution.sender(index)
            return sender if not self._reshaped else _ConfiguredSender(sender, self._configure)
        if index not in senders:
            senders[index] = SingleResponseSender(execution, index, self._configure)
        return senders[index]

    def _close_senders(self, execution: Execution, senders: _Senders) -> None:
        if not self._decoupled:
            for index in range(len(execution.requests)):
                self._sender(execution, index, senders).closed = True

    def _answer(self, execution: Execution, responses: object, senders: _Senders) -> None:
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
            if type(response) is not InferenceResponse:
                raise self._error(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{type(response)}'."
                )
            if index in senders:
                self._record_returned(senders[index])
        for index, response in enumerate(responses):
            if response is None:
                if index not in execution.rescheduled:
                    execution.sender(index)  # sends the response, or has sent it
                continue
            request = execution.requests[index]
            if self._states and not response.has_error():
                self._publish_states(request, response)
            output_names = request.requested_outputs if request.requested_outputs is not None else self._outputs
            execution.answer(index, self._configure(to_core_response(response, output_names)))

    def _record_returned(self, sender: ResponseSender) -> None:
        assert isinstance(sender, SingleResponseSender)
        try:
            sender.record_returned(InferResponse())
        except InternalError as error:
            raise self._error(error.message) from None

    def _configure(self, response: InferResponse) -> InferResponse:
        if self._reshaped:
            response.outputs = [self._undo_reshape(output) for output in response.outputs]
        return response

    def _undo_reshape(self, tensor: Tensor) -> Tensor:
        spec = self._reshaped.get(tensor.name)
        if spec is None or spec.datatype is not tensor.datatype:
            return tensor
        return output_tensor(spec, tensor.array, self._batching)

    def _publish_states(self, request: InferRequest, response: InferenceResponse) -> None:
        for tensor in response.output_tensors():
            if tensor.name() in self._states and request.states is not None:
                request.states.update(tensor.name(), read_only_view(writeable_copy(to_core_tensor(tensor).array)))

    def _arguments(self) -> dict[str, str]:
        context, spec = self._context, self._spec
        return {
            "model_config": config_to_json(context.config),
            "model_instance_kind": spec.kind.removeprefix("KIND_"),
            "model_instance_name": spec.name,
            "model_instance_device_id": str(spec.device_id),
            "model_repository": str(context.directory),
            "model_version": str(context.version),
            "model_name": context.name,
        }

    def _describe(self, error: BaseException) -> str:
        if isinstance(error, AttributeError) and not hasattr(self._model, "execute"):
            return f"Python model {self._path} does not implement `execute` method."
        return module_import.describe(error)

    def _error(self, message: str) -> InternalError:
        return InternalError(f"Failed to process the request(s) for model '{self._spec.name}', message: {message}")


#: The response senders of a batch that the model has requested, by index of the request.
_Senders = dict[int, ResponseSender]


class _ConfiguredSender(ResponseSender):
    """Sends responses after it has undone the ``reshape`` of their outputs."""

    def __init__(self, sender: ResponseSender, configure: Callable[[InferResponse], InferResponse]) -> None:
        self._sender = sender
        self._configure = configure
        self.closed = False

    def send(self, response: InferResponse) -> None:
        self._sender.send(self._configure(response))
        self.closed = self._sender.closed


def _check_inputs(requests: Sequence[InferRequest]) -> None:
    """Each request needs an input: Triton takes the batch size from the first one."""
    for request in requests:
        if not request.inputs:
            raise InvalidArgumentError(f"{request.id_prefix}out of bounds index 0: request has 0 inputs")


def _model_path(context: ModelContext) -> Path:
    return context.version_directory / (context.config.default_model_filename or "model.py")


def _check_parameters(context: ModelContext) -> None:
    """Check the parameters that configure the stub process on Triton."""
    cpu_only = context.parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
    if cpu_only not in ("yes", "no"):
        # The stray quote is Triton's.
        raise UnsupportedError(f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {cpu_only}'")
    environment = context.parameters.get("EXECUTION_ENV_PATH", "")
    if environment:
        path = environment.replace("$$TRITON_MODEL_DIRECTORY", str(context.directory))
        if not Path(path).exists():
            raise InternalError(f"Failed to get the canonical path for {path}.")
        raise UnsupportedError(
            f"model '{context.name}': EXECUTION_ENV_PATH is not supported, since every model runs in this process's "
            "environment; install its packages there and remove the parameter"
        )


def _merge_completed(config: pb.ModelConfig, text: str) -> pb.ModelConfig | None:
    """`merge_completed` for JSON; None if it cannot be read, too."""
    try:
        completed = parse_json(text)
    except InvalidArgumentError as error:
        logger.warning(
            "model '%s': expected a model configuration from auto_complete_config, got: %s", config.name, error.message
        )
        return None
    return merge_completed(config, completed)
