"""The generate extension's JSON: flat objects whose members are inputs, outputs, or parameters.

In a request a member named like an input is that input, and any other is a request parameter (``id``
too, which is also the request's ID); members of ``parameters`` are read in the same way. A tensor has no shape of its
own: it is derived from the number of elements and the dimensions in the configuration. A response has the outputs by
name.

Implements the generate extension as Triton's server does.
"""

from __future__ import annotations

import math
from typing import Any

from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError
from tritonnb.core.messages import InferRequest, InferResponse, Respond, Tensor
from tritonnb.endpoints.http import json_fields, json_reader
from tritonnb.endpoints.http.infer_request import custom_parameter
from tritonnb.endpoints.http.infer_response import write_parameter
from tritonnb.endpoints.http.input_tensors import tensor_from_json
from tritonnb.endpoints.http.tensor_data import read_strings, write_data, write_string
from tritonnb.model_config.schema import ModelSpec, TensorSpec

_ID = "id"
_NESTED = "parameters"


def read_generate_request(
    spec: ModelSpec, version: int, raw: bytes, max_input_size: int, respond: Respond
) -> InferRequest:
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
    respond : callable
        Called with each response.

    Raises
    ------
    TritonError
        If the request is invalid; with Triton's text.
    """
    document = json_reader.parse(raw)
    request = InferRequest(spec.name, {}, respond, model_version=version)
    names = json_fields.names(document)
    if _ID in document:
        request.id = json_fields.read_field(_ID, json_fields.string, document[_ID])
    for name in names:
        if name == _NESTED:
            _read_nested(document[name], request, spec, max_input_size)
        else:
            _read_member(name, document[name], request, spec, max_input_size)
    return request


def write_generate_response(request: InferRequest, response: InferResponse) -> bytes:
    """One response as a JSON object, its members sorted by name.

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
    in_order = sorted((name.encode(), value) for name, value in members.items())
    return b"{" + b",".join([write_string(name) + b":" + value for name, value in in_order]) + b"}"


def _write_output(tensor: Tensor) -> bytes:
    data = write_data(tensor.array, tensor.datatype)
    return data if tensor.array.size == 1 else b"[" + data + b"]"


def _read_nested(value: Any, request: InferRequest, spec: ModelSpec, max_input_size: int) -> None:
    if not isinstance(value, dict):
        raise InternalError(
            f"Expected JSON object for keyword: '{_NESTED}': attempt to access JSON non-object as object"
        )
    try:
        for name in json_fields.names(value):
            _read_member(name, value[name], request, spec, max_input_size)
    except TritonError as error:
        raise TritonError(f"Converting keyword: '{_NESTED}': {error.message}", error.status) from None


def _read_member(name: str, value: Any, request: InferRequest, spec: ModelSpec, max_input_size: int) -> None:
    if name in spec.inputs:
        _read_input(spec.inputs[name], value, request, spec, max_input_size)
    else:
        request.parameters[name] = custom_parameter(name, value)


def _read_input(tensor: TensorSpec, value: Any, request: InferRequest, spec: ModelSpec, max_input_size: int) -> None:
    elements = value if type(value) is list else [value]
    if tensor.datatype.variable_size:
        read_strings(elements)  # a wrong type is reported before a wrong number of elements
    dims = (-1, *tensor.dims) if spec.max_batch_size > 0 else tensor.dims
    shape = _shape(tensor.name, len(elements), dims)
    if tensor.name in request.inputs:
        raise InvalidArgumentError(f"{request.id_prefix}input '{tensor.name}' already exists in request")
    inputs = request.unchecked_inputs
    inputs[tensor.name] = tensor_from_json(tensor.name, tensor.datatype, shape, elements, max_input_size)


def _shape(name: str, count: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The innermost variable dimension takes what the fixed ones leave; other variable ones are 1."""
    fixed = math.prod(dim for dim in dims if dim != -1)
    left, remainder = divmod(count, fixed) if fixed else (0, count)
    shape = list(dims)
    for index in reversed(range(len(dims))):
        if shape[index] == -1:
            shape[index], left = left, 1
    if remainder or left != 1:
        raise InvalidArgumentError(f"The schema can not convert input '{name}' to tensor with proper shape")
    return tuple(shape)
