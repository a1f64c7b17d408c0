"""``@server.model``: a Python function becomes a served model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as httpclient

import tritonnb as tnb
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.server.server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(port=0) as server:
        yield server


def test_decorated_function_is_served_and_stays_a_function(server: Server) -> None:
    @server.model(max_batch_size=8, dynamic_batching={"max_queue_delay_microseconds": 100})
    def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X * 2

    assert double(21) == 42
    assert server["double"](X=[[1.0], [2.0]])["OUTPUT"].tolist() == [[2.0], [4.0]]
    assert server["double"].config.dynamic_batching.preferred_batch_size == [8]


def test_model_answers_over_http(server: Server) -> None:
    @server.model
    def shout(TEXT: tnb.BYTES[1]) -> tnb.BYTES[1]:
        return [line.upper() for line in TEXT]  # type: ignore[attr-defined]

    client = httpclient.InferenceServerClient(f"127.0.0.1:{server.port}")
    tensor = httpclient.InferInput("TEXT", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"hello"], object))
    assert client.infer("shout", [tensor]).as_numpy("OUTPUT").tolist() == [b"HELLO"]


def test_model_can_have_several_inputs_and_outputs(server: Server) -> None:
    @server.model(max_batch_size=4)
    def both(A: tnb.INT32[2], B: tnb.INT32[2]) -> {"SUM": tnb.INT32[2], "PRODUCT": tnb.INT32[2]}:  # type: ignore[misc]  # noqa: F821, UP037
        return {"SUM": A + B, "PRODUCT": A * B}  # type: ignore[operator]

    outputs = server["both"](A=[[1, 2]], B=[[3, 4]])
    assert outputs["SUM"].tolist() == [[4, 6]]
    assert outputs["PRODUCT"].tolist() == [[3, 8]]


def test_defining_the_model_again_replaces_it(server: Server) -> None:
    for factor in (2, 3):

        @server.model(name="scale")
        def scale(X: tnb.FP64[1], factor=factor) -> tnb.FP64[1]:  # type: ignore[no-untyped-def]
            return X * factor

    assert server["scale"](X=[1.0])["OUTPUT"].tolist() == [3.0]


def test_configuration_of_a_remote_model_can_be_changed(server: Server) -> None:
    @server.model(max_batch_size=2)
    def same(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    config = server["same"].config
    config.max_batch_size = 3
    assert config.apply() == "reloaded"
    assert server["same"](X=[[1.0]] * 3)["OUTPUT"].shape == (3, 1)


def test_fields_below_the_configuration_are_given_by_their_names_alone(server: Server) -> None:
    @server.model(max_batch_size=8, count=2, dynamic_batching={}, max_queue_delay_microseconds=500)
    def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X * 2

    config = server["double"].config
    assert [group.count for group in config.instance_group] == [2]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500


def test_exception_of_a_function_is_the_response(server: Server) -> None:
    @server.model
    def refuse(X: tnb.FP32[1]) -> tnb.FP32[1]:
        raise ValueError("no")

    with pytest.raises(InternalError, match="ValueError: no"):
        server["refuse"](X=[1.0])


def test_error_names_an_output_of_the_wrong_shape(server: Server) -> None:
    @server.model
    def flat(X: tnb.FP32[2]) -> tnb.FP32[2]:
        return X.sum()  # type: ignore[attr-defined]

    with pytest.raises(InternalError, match=r"model 'flat': output 'OUTPUT' expected shape \[2\], got \[\]"):
        server["flat"](X=[1.0, 2.0])


def test_parameter_needs_a_tensor_type(server: Server) -> None:
    with pytest.raises(InvalidArgumentError, match="the parameter 'x' has no annotation: expected a tensor type"):

        @server.model
        def untyped(x) -> tnb.FP32[1]:  # type: ignore[no-untyped-def]
            return x


def test_unknown_field_is_refused(server: Server) -> None:
    with pytest.raises(InvalidArgumentError, match="max_batch_sise"):

        @server.model(max_batch_sise=3)
        def same(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X
