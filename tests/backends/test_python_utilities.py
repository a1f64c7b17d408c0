"""``triton_python_backend_utils``: tensors, requests, responses and errors, without a model."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.backends.models import request, rows
from tritonnb.backends.execution import ResponseSender
from tritonnb.backends.python import pb_utils as typed_utilities
from tritonnb.backends.python.response import InferenceResponseSender
from tritonnb.backends.python.tensor import to_core_tensor
from tritonnb.core import datatypes
from tritonnb.core.messages import discard_response

#: Untyped, as models use it: they may pass anything.
pb_utils: Any = typed_utilities


def test_dlpack_shares_memory_in_both_directions() -> None:
    import torch

    tensor = torch.arange(4, dtype=torch.float32)
    wrapped = pb_utils.Tensor.from_dlpack("X", tensor)
    assert wrapped.as_numpy().tolist() == [0, 1, 2, 3]
    back = torch.utils.dlpack.from_dlpack(wrapped)
    assert back.tolist() == tensor.tolist()
    assert torch.utils.dlpack.from_dlpack(wrapped.to_dlpack()).tolist() == tensor.tolist()


def test_model_cannot_read_a_non_utf8_id() -> None:
    from tritonnb.backends.python.request import InferenceRequest

    core_request = request(IN0=rows(0))
    core_request.id = core_request.correlation_id = "\udcff"
    core_request.parameters = {"name": "\udcff"}
    received = InferenceRequest.received(
        core_request, (), lambda _: ResponseSender(core_request, discard_response).send
    )
    for ask in (received.request_id, received.correlation_id, received.parameters):
        with pytest.raises(UnicodeDecodeError, match="can't decode byte 0xff"):
            ask()


def test_dlpack_capsule_keeps_its_tensor_alive() -> None:
    tensor = pb_utils.Tensor("X", np.arange(4, dtype=np.int64))
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == before + 1
    del capsule
    assert sys.getrefcount(tensor) == before


def test_bf16_is_converted_through_dlpack() -> None:
    import torch

    values = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    created = pb_utils.Tensor.from_dlpack("X", values)
    assert created.triton_dtype() == datatypes.BF16.number
    assert to_core_tensor(created).datatype is datatypes.BF16
    received = pb_utils.Tensor.received(to_core_tensor(created))
    for tensor in (created, received, pb_utils.Tensor.from_dlpack("X", created)):
        back = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
        assert back.dtype is torch.bfloat16
        assert back.tolist() == [1.5, -2.0]
        with pytest.raises(
            pb_utils.TritonModelException, match="Tensor dtype is BF16 and cannot be converted to NumPy"
        ):
            tensor.as_numpy()


def test_dlpack_refuses_strings_and_noncontiguous_arrays() -> None:
    import torch

    with pytest.raises(pb_utils.TritonModelException, match="does not have support for string tensors"):
        pb_utils.Tensor("X", np.array([b"a"])).to_dlpack()
    with pytest.raises(pb_utils.TritonModelException, match="DLPack tensor is not contiguous"):
        pb_utils.Tensor.from_dlpack("X", torch.zeros(2, 3).t())


def test_pb_utils_has_the_types_of_tritons_module() -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_FP16") is np.float16
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb_utils.Tensor("S", np.array(["ä", b"b"], object)).triton_dtype() == 13
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool
    assert [pb_utils.numpy_to_triton_type(dtype) for dtype in (np.int8, np.dtype("f2"), np.bytes_, "U2")] == [
        6, 10, 13, None,
    ]  # fmt: skip
    assert [pb_utils.triton_to_numpy_type(number) for number in (1, 13, 14)] == [np.bool_, np.object_, None]
    with pytest.raises(pb_utils.TritonModelException, match="Correlation ID must be integer or string"):
        pb_utils.InferenceRequest(model_name="m", inputs=[], requested_output_names=[], correlation_id=1.5)


def test_strings_are_serialized_as_bytes() -> None:
    encoded = pb_utils.serialize_byte_tensor(np.array([b"a", "ä", b""], object))
    assert encoded == b"\x01\0\0\0a\x02\0\0\0\xc3\xa4\0\0\0\0"
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == [b"a", "ä".encode(), b""]
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(np.array(["text"])) is None


def test_error_code_is_one_of_tritons() -> None:
    with pytest.raises(TypeError, match=r"expected an error code such as TritonError\.INTERNAL, got 3"):
        pb_utils.TritonError("no", 3)


def test_arguments_of_the_wrong_type_are_refused() -> None:
    array = np.zeros(1, np.int32)
    tensor = pb_utils.Tensor("X", array)
    arguments = {"inputs": [tensor], "requested_output_names": ["Y"], "model_name": "m"}
    for name, array_like in ((None, array), ("X", None)):
        with pytest.raises(TypeError):
            pb_utils.Tensor(name, array_like)
    with pytest.raises(pb_utils.TritonModelException, match="Tensor name cannot be an empty string"):
        pb_utils.Tensor("", array)
    with pytest.raises(pb_utils.TritonModelException, match="must be a DLPack capsule"):
        pb_utils.Tensor.from_dlpack("X", None)
    with pytest.raises(pb_utils.TritonModelException, match="should not be empty"):
        pb_utils.InferenceRequest(**{**arguments, "inputs": [None]})
    for field in ("model_name", "request_id", "correlation_id", "model_version", "flags", "timeout"):
        with pytest.raises(TypeError):
            pb_utils.InferenceRequest(**{**arguments, field: None})
    with pytest.raises(TypeError):
        pb_utils.InferenceResponse(error="text")
    with pytest.raises(TypeError):
        pb_utils.TritonError(ValueError("text"))
    sender: Any = InferenceResponseSender(lambda response: None, request(IN0=rows(0)), ())
    with pytest.raises(TypeError):
        sender.send([])
    with pytest.raises(RuntimeError, match="-1 is not an unsigned 64-bit integer"):
        pb_utils.InferenceRequest(**{**arguments, "correlation_id": -1})
    for field, value in (
        ("flags", -1), ("timeout", -1), ("timeout", 1.5), ("requested_output_names", "Y"), ("preferred_memory", 1),
        ("trace", 1),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            pb_utils.InferenceRequest(**{**arguments, field: value})
    with pytest.raises(pb_utils.TritonModelException, match=r"Requested output name .* should not be empty"):
        pb_utils.InferenceRequest(**{**arguments, "requested_output_names": [""]})
    with pytest.raises(pb_utils.TritonModelException, match="Expect dict, got <class 'list'>"):
        pb_utils.InferenceRequest(**{**arguments, "parameters": [1]})
    with pytest.raises(pb_utils.TritonModelException, match="Expect parameters keys to have type str"):
        pb_utils.InferenceRequest(**{**arguments, "parameters": {1: 2}})
    for parameters, text in (({"a": None}, "values to have type bool/int/str"), ([1], "Expect dict")):
        with pytest.raises(pb_utils.TritonModelException, match=text):
            pb_utils.InferenceResponse([tensor], parameters=parameters)
    with pytest.raises(TypeError):
        pb_utils.InferenceResponse({})
    with pytest.raises(pb_utils.TritonModelException, match="Output tensor for inference response should not be"):
        pb_utils.InferenceResponse([None])
    for values in ((None,), ("text", None), ("text", 1)):
        with pytest.raises(TypeError):
            pb_utils.Logger.log(*values)


def test_integers_of_a_request_may_be_numpy_scalars() -> None:
    created = pb_utils.InferenceRequest(
        inputs=[], requested_output_names=[], model_name="m",
        model_version=np.int64(2), flags=np.uint8(1), timeout=np.int32(3),
    )  # fmt: skip
    assert (created.flags(), created.timeout()) == (1, 3)
    assert type(created._request.model_version) is int
    created.set_flags(np.int64(2))
    assert created.flags() == 2
