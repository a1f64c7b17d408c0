"""Warm-up: the requests of ``model_warmup`` that an instance executes before its model is ready.

Each entry creates ``batch_size`` requests of one row, which are executed together ``count`` times without the
scheduler. Inputs that are not in the model's configuration, such as control tensors, are passed to the model unchecked.
Implements ``ModelWarmup`` of *model_config.proto*.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonnb.backends.contract import ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import BY_NUMBER, INVALID, DataType
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.messages import (
    InferRequest,
    InferResponse,
    Tensor,
    UndecodedTensor,
    discard_response,
    read_only_tensors,
    zeros,
)
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.model_files import check_warmup_sample, model_file
from tritonnb.model_config.schema import ModelSpec
from tritonnb.runtime.execution.instance import Instance
from tritonnb.runtime.models.tensor_files import read_array
from tritonnb.runtime.models.validation import RequestValidator


@dataclass(frozen=True, slots=True)
class Sample:
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


def warmup_samples(context: ModelContext) -> list[Sample]:
    """The samples of a model, validated like other requests.

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
            requests = tuple(_request(context, spec, validator, sample) for _ in range(sample.batch_size))
            samples.append(Sample(sample.name, max(1, sample.count), requests))
    return samples


class WarmUp:
    """One execution of a sample on an instance; used on the server's event loop.

    Parameters
    ----------
    sample : Sample
    instance : Instance
        An instance that runs nothing else.
    max_batch_size : int
    number : int
        The number of the execution in the event stream.

    Raises
    ------
    InvalidArgumentError
        If the sample is too large for the model.
    """

    def __init__(self, sample: Sample, instance: Instance, max_batch_size: int, number: int) -> None:
        if sample.rows > max_batch_size > 0:
            error = f"batch size {sample.rows} for '{instance.spec.name}', max allowed is {max_batch_size}"
            raise _sample_error(sample, [error] * len(sample.requests))
        self._sample = sample
        self._instance = instance
        self._loop = asyncio.get_running_loop()
        self._completed: asyncio.Future[None] = self._loop.create_future()
        self._streamed: list[InferResponse] = []
        requests = [request.clone(dict(request.inputs), discard_response) for request in sample.requests]
        for request in requests:
            request.received_ns = request.queued_ns = time.monotonic_ns()
        self.execution = Execution(requests, sample.rows, self._respond_threadsafe, number)

    async def run(self) -> TritonError | None:
        """Execute the sample; returns the error that ``execute`` raised."""
        return await self._instance.execute_alone(self.execution)

    async def finish(self, decoupled: bool) -> None:
        """Wait until every request has its final response.

        Raises
        ------
        InvalidArgumentError
            If a response is an error.
        """
        if decoupled:
            await self._completed
        responses = [*self._streamed, *(response for response in self.execution.responses if response is not None)]
        errors = [response.error.message for response in responses if response.error is not None]
        if errors:
            raise _sample_error(self._sample, errors)

    def _respond_threadsafe(self, request: InferRequest, response: InferResponse) -> None:
        self._loop.call_soon_threadsafe(self._respond, response)

    def _respond(self, response: InferResponse) -> None:
        self._streamed.append(response)
        if sum(response.final for response in self._streamed) == len(self.execution.requests):
            self._completed.set_result(None)


def _sample_error(sample: Sample, messages: list[str]) -> InvalidArgumentError:
    """The error for a failed sample, with a message for every request that failed."""
    failures = "".join(f"{message}; " for message in messages)
    return InvalidArgumentError(f"failed to run warmup sample '{sample.name}': {failures}")


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
