"""Warm-up: the requests of ``model_warmup`` that an instance executes before its model is ready.

Each entry creates ``batch_size`` requests of one row, which are executed together ``count`` times without the
scheduler. Inputs that are not in the model's configuration, such as control tensors, are passed to the model unchecked.
Implements ``ModelWarmup`` of *model_config.proto*.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonnb.backends.contract import ModelContext
from tritonnb.backends.execution import Execution, batch_numbers, complete_responses
from tritonnb.core.datatypes import BY_NUMBER, INVALID, DataType, zeros
from tritonnb.core.errors import IncompleteStringError, InvalidArgumentError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor, UndecodedTensor, discard_response
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.execution.instance import Instance
from tritonnb.engine.models.sequence_inputs import SequenceInputs, read_array, read_only_tensors
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.models.validation import RequestValidator
from tritonnb.model_config.model_files import check_warmup_sample, model_file
from tritonnb.model_config.schema import ModelSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One entry of ``model_warmup``.

    Attributes
    ----------
    name : str
    count : int
        The number of executions.
    requests : tuple of InferRequest
        The requests of one execution.
    """

    name: str
    count: int
    requests: tuple[InferRequest, ...]

    @property
    def rows(self) -> int:
        """The number of rows of all requests together."""
        return sum(request.batch_size for request in self.requests)


def warmup_samples(context: ModelContext) -> list[WarmupSample]:
    """Return the samples of a model, validated like other requests.

    Raises
    ------
    InvalidArgumentError, InternalError
        If a sample does not fit the configuration, or its file cannot be read.
    """
    spec = ModelSpec.from_config(context.config)
    validator = RequestValidator(spec)
    samples = []
    for sample in context.config.model_warmup:
        if sample.batch_size:  # others are skipped without validation
            check_warmup_sample(sample, context.directory)
            try:
                requests = tuple(_request(context, spec, validator, sample) for _ in range(sample.batch_size))
            except IncompleteStringError as error:  # which Triton finds only when it runs the sample
                raise _sample_error(sample.name, [error.message]) from error
            samples.append(WarmupSample(sample.name, max(1, sample.count), requests))
    return samples


async def warm_up(
    served: ServedModel,
    instance: Instance,
    sequences: SequenceInputs | None,
    samples: Sequence[WarmupSample],
    check: Callable[[], None],
) -> None:
    """Run the samples on a new instance of a model, which runs nothing else; they are counted in the statistics.

    Parameters
    ----------
    served : ServedModel
    instance : Instance
    sequences : SequenceInputs or None
        For a model with ``sequence_batching``: the requests have states, which are discarded.
    samples : sequence of WarmupSample
    check : callable
        Called before each execution; the exception that it raises ends the warm-up.

    Raises
    ------
    InvalidArgumentError
        If a sample is too large for the model, or one of its responses is an error.
    """
    for sample in samples:
        for iteration in range(1, sample.count + 1):
            check()
            logger.debug(
                "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                served.name, instance.spec.name, sample.name, iteration,
            )  # fmt: skip
            if sample.rows > served.spec.max_batch_size > 0:
                limit = f"max allowed is {served.spec.max_batch_size}"
                error = f"batch size {sample.rows} for '{instance.spec.name}', {limit}"
                raise _sample_error(sample.name, [error] * len(sample.requests))
            await _execute(served, instance, sequences, sample)


async def _execute(
    served: ServedModel, instance: Instance, sequences: SequenceInputs | None, sample: WarmupSample
) -> None:
    loop = asyncio.get_running_loop()
    completed: asyncio.Future[None] = loop.create_future()
    responses: list[InferResponse] = []

    def respond(response: InferResponse) -> None:
        responses.append(response)
        if sum(response.final for response in responses) == len(sample.requests):
            completed.set_result(None)

    def respond_threadsafe(_: InferRequest, response: InferResponse) -> None:
        loop.call_soon_threadsafe(respond, response)

    # Cloned, since the execution changes a request, and the next instance runs the same sample.
    requests = [request.clone(dict(request.inputs)) for request in sample.requests]
    for request in requests:
        request.received_ns = request.queued_ns = time.monotonic_ns()
        if sequences is not None:
            sequences.attach_scratch_states(request)
    execution, name = Execution(requests, sample.rows, respond_threadsafe, next(batch_numbers)), instance.spec.name
    raised = await instance.execute_alone(execution)
    errors_fail = instance.backend_instance.error_responses_fail
    failures = complete_responses(served.name, name, execution, raised, served.decoupled, errors_fail)
    if served.decoupled:
        await completed
    responses += [response for response in execution.responses if response is not None]
    if errors := [response.error.message for response in responses if response.error is not None]:
        raise _sample_error(sample.name, errors)
    # Counted like traffic, as on Triton: a sample of 3 requests with count 2 shows 6 inferences before the first
    # client.
    served.emit_executed(execution, name, failures, time.monotonic_ns())


def _sample_error(name: str, messages: list[str]) -> InvalidArgumentError:
    """Return the error for a failed sample, with a message for every request that failed."""
    failures = "".join(f"{message}; " for message in messages)
    return InvalidArgumentError(f"failed to run warmup sample '{name}': {failures}")


def _request(
    context: ModelContext, spec: ModelSpec, validator: RequestValidator, sample: pb.ModelWarmup
) -> InferRequest:
    tensors = {name: _tensor(context, spec, name, sample.inputs[name]) for name in sorted(sample.inputs)}
    request = InferRequest(context.name, {}, discard_response, model_version=context.version)
    inputs = request.unchecked_inputs
    inputs.update({name: tensor for name, tensor in tensors.items() if name in spec.inputs})
    validator.check(request)
    inputs.update({name: tensor for name, tensor in tensors.items() if name not in spec.inputs})
    # All executions of the sample share these inputs.
    request.inputs = read_only_tensors(request.inputs)
    return request


def _tensor(
    context: ModelContext, spec: ModelSpec, name: str, sample_input: pb.ModelWarmup.Input
) -> Tensor | UndecodedTensor:
    datatype = BY_NUMBER.get(sample_input.data_type, INVALID)
    shape = (1, *sample_input.dims) if spec.max_batch_size > 0 else tuple(sample_input.dims)
    choice = sample_input.WhichOneof("input_data_type")
    if choice == "input_data_file":
        path = model_file(context.directory / "warmup", sample_input.input_data_file)
        if datatype.variable_size and name in spec.inputs:
            # The validation of the request checks them.
            return UndecodedTensor(name, datatype, shape, path.read_bytes())
        has_contents = sample_input.dims or datatype.variable_size
        return Tensor(name, datatype, read_array(path, datatype, shape) if has_contents else zeros(datatype, shape))
    # Triton does not generate random strings either.
    random = choice == "random_data" and datatype.itemsize
    return Tensor(name, datatype, _random(datatype, shape) if random else zeros(datatype, shape))


def _random(datatype: DataType, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    generator = np.random.default_rng()
    if datatype.numpy.kind in "iu":
        bounds = np.iinfo(datatype.numpy.name)
        return generator.integers(bounds.min, bounds.max, shape, datatype.numpy, endpoint=True)
    if datatype.numpy.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    return generator.standard_normal(shape).astype(datatype.numpy)
