"""Warm-up: the requests of ``model_warmup`` that an instance runs before its model is ready.

Each entry makes ``batch_size`` requests of one row, which run as one execution, ``count`` times, past the
scheduler. Inputs that the model's configuration does not know, such as control tensors, are handed to the
model as they are. Implements ``ModelWarmup`` of *model_config.proto*.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonnb.backends.contract import Execution, ModelContext
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
from tritonnb.model_config.model_files import check_warmup_sample
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
        How often it runs.
    requests : tuple of InferRequest
        They run together.
    """

    name: str
    count: int
    requests: tuple[InferRequest, ...]

    @property
    def rows(self) -> int:
        """Of all requests together."""
        return sum(each.batch_size for each in self.requests)


def warmup_samples(context: ModelContext) -> list[Sample]:
    """The samples of a model, checked like any request.

    Raises
    ------
    InvalidArgumentError, InternalError
        If one does not fit the configuration, or its file cannot be read.
    """
    spec = ModelSpec.from_config(context.config)
    validator = RequestValidator(spec)
    samples = []
    for each in context.config.model_warmup:
        if each.batch_size:  # otherwise it is skipped unseen, whatever it says
            check_warmup_sample(each, context.directory)
            requests = tuple(_request(context, spec, validator, each) for _ in range(each.batch_size))
            samples.append(Sample(each.name, max(1, each.count), requests))
    return samples


class WarmUp:
    """One execution of a sample on an instance; used on the server's loop.

    Parameters
    ----------
    sample : Sample
    instance : Instance
        It does nothing else.
    max_batch_size : int
    number : int
        Of the execution in the event stream.

    Raises
    ------
    InvalidArgumentError
        If the sample is too large for the model.
    """

    def __init__(self, sample: Sample, instance: Instance, max_batch_size: int, number: int) -> None:
        if sample.rows > max_batch_size > 0:
            error = f"batch size {sample.rows} for '{instance.spec.name}', max allowed is {max_batch_size}"
            raise _failed(sample, [error] * len(sample.requests))
        self._sample = sample
        self._instance = instance
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._streamed: list[InferResponse] = []
        requests = [each.clone(dict(each.inputs), discard_response) for each in sample.requests]
        for request in requests:
            request.received_ns = request.queued_ns = time.monotonic_ns()
        self.execution = Execution(requests, sample.rows, self._respond_threadsafe, number)

    async def run(self) -> TritonError | None:
        """Execute it; what ``execute`` raised."""
        return await self._instance.execute_alone(self.execution)

    async def finish(self, decoupled: bool) -> None:
        """Wait until every request is answered.

        Raises
        ------
        InvalidArgumentError
            If one of them with an error.
        """
        if decoupled:
            await self._over
        answers = [*self._streamed, *(each for each in self.execution.responses if each is not None)]
        errors = [each.error.message for each in answers if each.error is not None]
        if errors:
            raise _failed(self._sample, errors)

    def _respond_threadsafe(self, request: InferRequest, response: InferResponse) -> None:
        self._loop.call_soon_threadsafe(self._respond, response)

    def _respond(self, response: InferResponse) -> None:
        self._streamed.append(response)
        if sum(each.final for each in self._streamed) == len(self.execution.requests):
            self._over.set_result(None)


def _failed(sample: Sample, errors: list[str]) -> InvalidArgumentError:
    """What a failed load says of a sample; it has an error for every request that failed."""
    return InvalidArgumentError(f"failed to run warmup sample '{sample.name}': " + "".join(f"{e}; " for e in errors))


def _request(
    context: ModelContext, spec: ModelSpec, validator: RequestValidator, sample: pb.ModelWarmup
) -> InferRequest:
    tensors = {name: _tensor(context, spec, name, sample.inputs[name]) for name in sorted(sample.inputs)}
    request = InferRequest(context.name, {}, discard_response, model_version=context.version)
    inputs = request.unchecked_inputs
    inputs.update({name: tensor for name, tensor in tensors.items() if name in spec.inputs})
    validator.check(request)
    inputs.update({name: tensor for name, tensor in tensors.items() if name not in spec.inputs})
    # Every run of the sample has these inputs.
    request.inputs = read_only_tensors(request.inputs)
    return request


def _tensor(
    context: ModelContext, spec: ModelSpec, name: str, sample_input: pb.ModelWarmup.Input
) -> Tensor | UndecodedTensor:
    datatype = BY_NUMBER.get(sample_input.data_type, INVALID)
    shape = (1, *sample_input.dims) if spec.max_batch_size > 0 else tuple(sample_input.dims)
    choice = sample_input.WhichOneof("input_data_type")
    if choice == "input_data_file":
        path = context.directory / "warmup" / sample_input.input_data_file
        if datatype.variable_size and name in spec.inputs:
            # The check of the request says what is wrong with them, if anything is.
            return UndecodedTensor(name, datatype, shape, path.read_bytes())
        has_contents = sample_input.dims or datatype.variable_size
        return Tensor(name, datatype, read_array(path, datatype, shape) if has_contents else zeros(datatype, shape))
    # Triton has no random strings either.
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
