"""``dense``: four fully connected layers of 2048 units, with random weights from a seed.

Most of its time is spent reading 64 MB of weights, once per batch, so that batching increases the throughput. The
weights are integers below 2^8 scaled by a power of two, so they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

WIDTH = 2048
LAYERS = 4
SEED = 20

#: Checksum of the graph.
SHA256 = "650a642fe4172cc406d0e54f6f6347bf2c3a4a4d56b2611d7c71084a732fd7ab"


def layer_weights() -> Iterator[npt.NDArray[np.float32]]:
    """Yield the weights of each layer, of shape [2048, 2048]: inputs first."""
    random = np.random.Generator(np.random.PCG64(SEED))
    for _ in range(LAYERS):
        yield random.integers(-128, 128, (WIDTH, WIDTH), dtype=np.int16).astype(np.float32) / np.float32(2**12)


def write(path: Path) -> None:
    """Write the ONNX file.

    Raises
    ------
    ImportError
        If ``onnx`` is not installed.
    """
    from onnx import TensorProto, helper, numpy_helper, save_model

    nodes, weights = [], []
    previous = "INPUT"
    for layer, weight in enumerate(layer_weights()):
        weights.append(numpy_helper.from_array(weight, f"weight_{layer}"))
        last = layer == LAYERS - 1
        product = "OUTPUT" if last else f"product_{layer}"
        nodes.append(helper.make_node("MatMul", [previous, f"weight_{layer}"], [product]))
        if not last:
            nodes.append(helper.make_node("Relu", [product], [f"layer_{layer}"]))
            previous = f"layer_{layer}"
    input, output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in ("INPUT", "OUTPUT")
    )
    graph = helper.make_graph(nodes, "dense", [input], [output], weights)
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="tritonnb")
    save_model(model, path)
