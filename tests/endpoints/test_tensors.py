"""Writing tensors, as HTTP and gRPC share it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.datatypes import INT32
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import Tensor
from tritonnb.endpoints.tensors import fill_region
from tritonnb.engine.shared_memory import SystemPart


@pytest.mark.parametrize(("platform", "prefix"), [("", ""), ("ensemble", "in ensemble 'm', ")])
def test_output_too_large_for_its_region_is_refused_and_the_error_names_the_ensemble(
    platform: str, prefix: str
) -> None:
    served = cast("Any", SimpleNamespace(name="m", config=pb.ModelConfig(platform=platform)))
    tensor = Tensor("Y", INT32, np.arange(2, dtype=np.int32))
    room = bytearray(8)
    with pytest.raises(InternalError) as raised:
        fill_region(served, tensor, SystemPart(memoryview(room)[:4]))
    assert raised.value.message == (
        f"{prefix}shared memory size specified with the request for output 'Y' (4 bytes) should be at least 8 bytes "
        "to hold the results"
    )
    fill_region(served, tensor, SystemPart(memoryview(room)))
    assert np.frombuffer(room, np.int32).tolist() == [0, 1]
