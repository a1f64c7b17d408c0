"""The Python backend: running ``TritonPythonModel`` objects.

Semantics, limits and error texts are those of Triton's Python backend; there each instance is a
process, here a thread. Beyond Triton, implicit state works here too.
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
from tritonnb.backends.contract import (
    Backend,
    BackendModel,
    BackendModelInstance,
    Execution,
    InstanceSpec,
    ModelContext,
    ResponseSender,
)
from tritonnb.backends.python import module_import, pb_utils
from tritonnb.backends.python.coroutines import Coroutines
from tritonnb.backends.python.instance_binding import Host
from tritonnb.backends.python.model_config import ModelConfig
from tritonnb.backends.python.request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from tritonnb.backends.python.response import InferenceResponse, to_core
from tritonnb.backends.python.single_response import OneResponseSender
from tritonnb.backends.python.tensor import to_core_tensor
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.core.failures import frames_to_notes
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.ownership import read_only_view, writeable_copy
from tritonnb.model_config.diff import replaced
from tritonnb.model_config.json_config import parse_json
from tritonnb.model_config.schema import ModelSpec
from tritonnb.model_config.to_json import config_to_dict, config_to_json

logger = logging.getLogger(__name__)


class PythonBackend(Backend):
    """``backend: "python"``, or a backend written in Python.

    Parameters
    ----------
    file : pathlib.Path, optional
        The *model.py* that serves all models of such a backend; each model has its own otherwise.
    """

    name = "python"
    takes_batch_tensors = True  # Triton's reads them too, and passes nothing on to the model

    def __init__(self, file: Path | None = None) -> None:
        self._file = file

    def auto_complete(self, context: ModelContext) -> Any:
        """Ask the model's ``auto_complete_config``, if it has one."""
        _check_parameters(context)
        path = self._file or _model_path(context)
        host = Host(context.version_directory)
        host.enter()
        module = module_import.import_model(path, pb_utils.bound_to(host))
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
        return _take_over(context.config, text)

    def create_model(self, context: ModelContext) -> BackendModel:
        """A model."""
        return PythonModel(context, self._file)


class PythonModel(BackendModel):
    """A *model.py*."""

    def __init__(self, context: ModelContext, file: Path | None = None) -> None:
        super().__init__(context)
        self._path = file or _model_path(context)

    def initialize(self) -> None:
        """Check the parameters; the file itself is imported by each instance."""
        _check_parameters(self.context)

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """An instance with a ``TritonPythonModel`` of its own."""
        return PythonInstance(self.context, spec, self._path)


class PythonInstance(BackendModelInstance):
    """One ``TritonPythonModel``."""

    error_responses_fail = False

    def __init__(self, context: ModelContext, spec: InstanceSpec, path: Path) -> None:
        self._context = context
        self._spec = spec
        self._path = path
        self._host = Host(context.version_directory, context.server, spec.name)
        model = ModelSpec.from_config(context.config)
        self._outputs = tuple(model.outputs)
        self._reshaped = {name: each for name, each in model.outputs.items() if each.reshape is not None}
        self._batching = model.max_batch_size > 0
        self._states = tuple(each.output_name for each in context.config.sequence_batching.state)
        self._decoupled = bool(context.config.model_transaction_policy.decoupled)
        self._coroutines = Coroutines()

    def initialize(self) -> None:
        """Import the file, make the object, and call its ``initialize``."""
        self._host.enter()
        utilities = pb_utils.bound_to(self._host)
        self._received = utilities.InferenceRequest.received
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
        self._host.executing = True

    def execute(self, execution: Execution) -> None:
        """Call the model's ``execute``."""
        if self._batching:
            _check_inputs(execution.requests)
        senders: _Senders = {}
        requests = [
            self._received(
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
            failure = self._failed(self._describe(error))
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
            except UnicodeError as error:  # a string that is none
                self._close_senders(execution, senders)
                raise self._failed(self._describe(error)) from error
        elif responses is not None:
            raise self._failed(
                f"Python model '{self._spec.name}' is using the decoupled mode and the execute function must return "
                "None."
            )

    def finalize(self) -> None:
        """Call the model's ``finalize``; what it raises is logged and ignored."""
        self._host.executing = False
        if hasattr(self._model, "finalize"):
            try:
                self._model.finalize()
            except BaseException:
                logger.exception("finalize of model instance '%s' failed", self._spec.name)
        del self._model  # its metrics go with it
        module_import.forget_model(self._module)
        self._coroutines.close()

    def _run(self, coroutine: Coroutine[Any, Any, Any], execution: Execution) -> Any:
        if not self._decoupled:
            return self._coroutines.run(coroutine)

        def failed(error: BaseException) -> None:
            answer = InferResponse(error=self._failed(module_import.describe(error)))
            for sender in map(execution.sender, range(len(execution.requests))):
                if not sender.closed:
                    sender.send(answer)

        self._coroutines.start(coroutine, failed)
        return None

    def _sender(self, execution: Execution, index: int, made: _Senders) -> ResponseSender:
        if self._decoupled:
            sender = execution.sender(index)
            return sender if not self._reshaped else _ConfiguredSender(sender, self._configure)
        if index not in made:
            made[index] = OneResponseSender(execution, index, self._configure)
        return made[index]

    def _close_senders(self, execution: Execution, made: _Senders) -> None:
        if not self._decoupled:
            for index in range(len(execution.requests)):
                self._sender(execution, index, made).closed = True

    def _answer(self, execution: Execution, responses: Any, senders: _Senders) -> None:
        if responses is None and senders:
            responses = [None] * len(execution.requests)
        if not isinstance(responses, list):
            raise self._failed(f"Expected a list in the execute return, found type '{type(responses)}'.")
        if len(responses) != len(execution.requests):
            raise self._failed(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(execution.requests)}, and InferenceResponse(s) size "
                f"is:{len(responses)}\n"
            )
        for index, response in enumerate(responses):
            if response is None and (index in senders or index in execution.rescheduled):
                continue
            if index in execution.rescheduled:
                raise self._failed(
                    "Expected a None object in the execute function return list for reschduled request, found type "
                    f"'{type(response)}'."
                )
            if type(response) is not InferenceResponse:
                raise self._failed(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{type(response)}'."
                )
            if index in senders:
                self._returned(senders[index])
        for index, response in enumerate(responses):
            if response is None:
                if index not in execution.rescheduled:
                    execution.sender(index)  # the response comes by it, if it has not come
                continue
            request = execution.requests[index]
            if self._states and not response.has_error():
                self._publish_states(request, response)
            wanted = request.requested_outputs if request.requested_outputs is not None else self._outputs
            execution.answer(index, self._configure(to_core(response, wanted)))

    def _returned(self, sender: ResponseSender) -> None:
        assert isinstance(sender, OneResponseSender)
        try:
            sender.returned(InferResponse())
        except InternalError as error:
            raise self._failed(error.message) from None

    def _configure(self, answer: InferResponse) -> InferResponse:
        if self._reshaped:
            answer.outputs = [self._as_configured(each) for each in answer.outputs]
        return answer

    def _as_configured(self, tensor: Tensor) -> Tensor:
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

    def _failed(self, message: str) -> InternalError:
        return InternalError(f"Failed to process the request(s) for model '{self._spec.name}', message: {message}")


#: The response senders of a batch that a model has asked for, by the number of the request.
_Senders = dict[int, ResponseSender]


class _ConfiguredSender(ResponseSender):
    """Undoes a ``reshape`` of the outputs."""

    def __init__(self, sender: ResponseSender, configure: Callable[[InferResponse], InferResponse]) -> None:
        self._sender = sender
        self._configure = configure
        self.closed = False

    def send(self, response: InferResponse) -> None:
        self._sender.send(self._configure(response))
        self.closed = self._sender.closed


def _check_inputs(requests: Sequence[InferRequest]) -> None:
    """Triton takes the size of a batch from the first input of each request, so that there must be one."""
    for each in requests:
        if not each.inputs:
            raise InvalidArgumentError(f"{each.id_prefix}out of bounds index 0: request has 0 inputs")


def _model_path(context: ModelContext) -> Path:
    return context.version_directory / (context.config.default_model_filename or "model.py")


def _check_parameters(context: ModelContext) -> None:
    """The parameters that concern the stub process on Triton."""
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
            f"EXECUTION_ENV_PATH of model '{context.name}': every model runs in this process's environment"
        )


def _take_over(config: Any, text: str) -> Any:
    """What core takes from a completed configuration; the rest is discarded.

    None if it cannot be read, or has another scheduler: Triton drops it without a word to the client.
    """
    try:
        completed = parse_json(text)
    except InvalidArgumentError as error:
        logger.warning("model '%s': auto_complete_config gave no configuration: %s", config.name, error.message)
        return None
    taken = replaced(config, completed, {"max_batch_size", "input", "output"})
    given, asked = config.WhichOneof("scheduling_choice"), completed.WhichOneof("scheduling_choice")
    if given is None and asked is not None:
        taken = replaced(taken, completed, {asked})
    elif given != asked:
        return None
    if completed.HasField("model_transaction_policy"):
        taken.model_transaction_policy.decoupled = completed.model_transaction_policy.decoupled
    return taken
