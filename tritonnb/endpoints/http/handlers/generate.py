"""The routes ``generate`` and ``generate_stream``: one response, or each response as it arrives.

The JSON is a flat object whose members are inputs, outputs, or parameters. In a request a member named like an input is
that input, and any other is a request parameter (``id`` too, which is also the request's ID); members of ``parameters``
are read in the same way. A tensor has no shape: it is derived from the number of elements and the dimensions in the
configuration. A response has the outputs by name.

Implements the generate extension as Triton's server does.
"""

from __future__ import annotations

from dataclasses import dataclass

from tornado.iostream import StreamClosedError

from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError, UnknownError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.shapes import element_count
from tritonnb.endpoints.http import json_fields, json_reader
from tritonnb.endpoints.http.handlers.inference import InferenceHandler, PendingRequests
from tritonnb.endpoints.http.handlers.metadata import error_body
from tritonnb.endpoints.http.infer_request import custom_parameter
from tritonnb.endpoints.http.infer_response import write_parameter
from tritonnb.endpoints.http.json_arrays import LongArray
from tritonnb.endpoints.http.tensor_data import read_strings, tensor_from_json, write_data, write_string
from tritonnb.endpoints.request_rules import version_number
from tritonnb.endpoints.tensors import response_size
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.model_config.schema import ModelSpec, TensorSpec

_ID = "id"
_NESTED = "parameters"

_EVENTS = "text/event-stream; charset=utf-8"
_NOT_ONE_RESPONSE = UnknownError(
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


def read_generate_request(spec: ModelSpec, version: int, raw: bytes, max_input_size: int) -> InferRequest:
    """Read one request.

    Parameters
    ----------
    spec : ModelSpec
        Of the requested model.
    version : int
    raw : bytes
        The body, a JSON document.
    max_input_size : int
        ``--http-max-input-size``, in bytes.

    Raises
    ------
    TritonError
        If the request is invalid; with Triton's text.
    """
    document = json_reader.parse_request(raw, max_input_size, tensors=True)
    reader = _GenerateReader(InferRequest(spec.name, {}, model_version=version), spec, max_input_size)
    names = json_fields.names(document)
    assert isinstance(document, dict)  # it has names
    # The ID is read before the other members, so that errors about them can name it.
    if _ID in document:
        reader.request.id = json_fields.read_field(_ID, json_fields.string, document[_ID])
    reader.read_members(names, document)
    return reader.request


@dataclass(frozen=True, slots=True)
class _GenerateReader:
    """A reader that puts the members of an object into a request."""

    request: InferRequest
    spec: ModelSpec
    max_input_size: int

    def read_members(self, names: list[str], document: dict[str, object]) -> None:
        """Read the members of the document."""
        size = 0
        for name in names:
            if name == _NESTED:
                size += self._read_nested(document[name], size)
            else:
                size += self._read_member(name, document[name], size)

    def _read_nested(self, value: object, preceding: int) -> int:
        if not isinstance(value, dict):
            raise InternalError(
                f"Expected JSON object for keyword: '{_NESTED}': attempt to access JSON non-object as object"
            )
        size = 0
        try:
            for name in json_fields.names(value):
                size += self._read_member(name, value[name], preceding + size)
        except TritonError as error:
            # Triton puts this prefix before any error of a nested member, and keeps its status.
            raise TritonError(f"Converting keyword: '{_NESTED}': {error.message}", error.status) from None
        return size

    def _read_member(self, name: str, value: object, preceding: int) -> int:
        """Read an input or a parameter; the size of an input in bytes, else 0.

        ``preceding`` is the size of the inputs before it, which have a limit together.
        """
        if name in self.spec.inputs:
            return self._read_input(self.spec.inputs[name], value, preceding)
        # Here even `sequence_id` and `triton_...` are ordinary parameters, unlike in an inference request: so Triton's
        # generate extension has it.
        self.request.parameters[name] = custom_parameter(name, value)
        return 0

    def _read_input(self, tensor: TensorSpec, value: object, preceding: int) -> int:
        name, request = tensor.name, self.request
        elements = value if isinstance(value, list | LongArray) else [value]
        size = (
            len(read_strings(elements)) if tensor.datatype.variable_size else len(elements) * tensor.datatype.itemsize
        )
        # All inputs share the limit, nested inputs as well since release 26.10.
        if preceding + size > self.max_input_size:
            raise InvalidArgumentError(
                f"request size of {preceding} bytes with input '{name}' of size {size} bytes exceeds the maximum "
                f"allowed input size of {self.max_input_size}. Use --http-max-input-size to increase the limit."
            )
        dims = (-1, *tensor.dims) if self.spec.max_batch_size > 0 else tensor.dims
        shape = _shape(name, len(elements), dims)
        if name in request.inputs:
            raise InvalidArgumentError(f"{request.id_prefix}input '{name}' already exists in request")
        request.unchecked_inputs[name] = tensor_from_json(name, tensor.datatype, shape, elements, self.max_input_size)
        return size


def write_generate_response(request: InferRequest, response: InferResponse) -> bytes:
    """Return one response as a JSON object, its members sorted by name.

    Raises
    ------
    TritonError
        If an output cannot be members as JSON.
    """
    members = {
        "model_name": write_string(request.model_name.encode()),
        "model_version": b'"%d"' % request.model_version,
    }
    if request.id:
        members[_ID] = write_string(request.id.encode("utf-8", "surrogateescape"))
    for name, value in (response.parameters or {}).items():
        members[name] = write_parameter(value)
    for tensor in response.outputs:
        members[tensor.name] = _write_output(tensor)
    # Sorted by bytes, hence upper case first, as the responses recorded from Triton.
    in_order = sorted((name.encode(), value) for name, value in members.items())
    return b"{" + b",".join([write_string(name) + b":" + value for name, value in in_order]) + b"}"


def _write_output(tensor: Tensor) -> bytes:
    data = write_data(tensor.array, tensor.datatype)
    return data if tensor.array.size == 1 else b"[" + data + b"]"


def _shape(name: str, count: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Choose the variable dimensions: the innermost takes the remaining elements, others are 1."""
    # Flat JSON says nothing about the shape. The innermost dimension is one choice of several; it is Triton's.
    fixed = element_count([dim for dim in dims if dim != -1])
    left, remainder = divmod(count, fixed) if fixed else (0, count)
    shape = list(dims)
    for index in reversed(range(len(dims))):
        if shape[index] == -1:
            shape[index], left = left, 1
    if remainder or left != 1:
        raise InvalidArgumentError(f"The schema can not convert input '{name}' to tensor with proper shape")
    return tuple(shape)


class GenerateHandler(InferenceHandler):
    """``/v2/models/M[/versions/V]/generate``."""

    async def post(self, model: str, version: str | None = None) -> None:
        """Run an inference; its status is the status of the first response."""
        served = self.engine.model(model, version_number(version))
        trace = self.trace(model)
        read = await self.outcome(len(self.request.body), lambda: self._read(served))
        pending = PendingRequests(served, lambda: [read()], self.streaming_calls)
        self.submit(pending, lambda: trace)
        try:
            await self._respond(pending)
        except StreamClosedError:  # the client has disconnected, which may not have been reported yet
            self.on_connection_close()

    def _read(self, served: ServedModel) -> InferRequest:
        if self.request.headers.get("Content-Encoding", "identity") != "identity":
            raise InvalidArgumentError("Unsupported content-encoding, only 'identity' is supported.")
        request = read_generate_request(served.spec, served.version, self.request.body, self.max_input_size)
        # Here, and not when the request is submitted, since the check decodes strings.
        served.check(request)
        return request

    async def _respond(self, pending: PendingRequests) -> None:
        first, count = None, 0
        async for _, response in pending.responses():
            if not response.empty:
                # Of a decoupled model that sends many, only the first is kept: the others could fill the memory.
                first, count = first or response, count + 1
        # Triton 2.51 responds with 400 to every first error, because it reads the code of an error object that it has
        # freed; the intended status is used here.
        if first is not None and first.error is not None:
            raise first.error.fresh()
        if first is None or count != 1:
            # Status 200 in spite of the error, as recorded from Triton.
            self.write(error_body(_NOT_ONE_RESPONSE.message))
        else:
            self.write(await self._written(pending.requests[0], first))
        await self.flush()  # chunked, as on Triton

    async def _written(self, request: InferRequest, response: InferResponse) -> bytes:
        def write() -> bytes:
            written = write_generate_response(request, response)
            response.outputs = []  # freed here: a million strings at the same time as the inputs would be a long step
            return written

        return (await self.outcome(response_size(response), write))()


class GenerateStreamHandler(GenerateHandler):
    """``/v2/models/M[/versions/V]/generate_stream``."""

    async def _respond(self, pending: PendingRequests) -> None:
        self.set_header("Content-Type", _EVENTS)
        begun = False
        async for _, response in pending.responses():
            if response.empty:
                continue
            # Later errors cannot change the status any more, so they are events, and the stream goes on.
            if response.error is not None and not begun:
                self.set_status(response.error.status.http)
            begun = True
            self.write(b"data: %s\n\n" % await self._event(pending.requests[0], response))
            await self.flush()
        await self.flush()  # sends the head if there was no response

    async def _event(self, request: InferRequest, response: InferResponse) -> bytes:
        if response.error is not None:
            return error_body(response.error.message)
        try:
            return await self._written(request, response)
        except TritonError as error:
            return error_body(error.message)
