"""Writes a gRPC message for ``ModelInfer`` of the model *identity_fp32* to the standard output."""

from __future__ import annotations

import struct
import sys

import numpy as np
from tritonclient.grpc import service_pb2 as pb


def main() -> None:
    """Write it, with gRPC's prefix."""
    request = pb.ModelInferRequest(model_name="identity_fp32")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(np.arange(16, dtype="<f4").tobytes())
    data = request.SerializeToString()
    sys.stdout.buffer.write(struct.pack(">BI", 0, len(data)) + data)


if __name__ == "__main__":
    main()
