"""``accumulator``: running totals of sequences, with one model for each way to store them.

* ``accumulator`` (Python) stores its totals itself, by correlation ID;
* ``accumulator_onnx`` uses implicit state, which the server initialises with zeros;
* ``accumulator_torchscript`` also uses implicit state, and resets it itself if the control input START is set.

``python -m tritonnb.model_zoo.accumulator model_repository`` writes the files of the last two.
"""

from __future__ import annotations

import sys
from pathlib import Path

#: The names of the arguments; the tensors of a model with implicit state are found by the index in their names.
_FORWARD = """
def forward(self, input, total, start):
    # type: (Tensor, Tensor, Tensor) -> Tuple[Tensor, Tensor]
    total = torch.where(start > 0, input, input + total)
    return total, total
"""


def write_onnx(path: Path) -> None:
    """Write the ONNX file.

    Raises
    ------
    ImportError
        If ``onnx`` is not installed.
    """
    from onnx import TensorProto, helper, save_model

    tensors = [
        helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", 1])
        for name in ("INPUT", "INPUT_STATE", "OUTPUT", "OUTPUT_STATE")
    ]
    nodes = [
        helper.make_node("Add", ["INPUT", "INPUT_STATE"], ["OUTPUT_STATE"]),
        helper.make_node("Identity", ["OUTPUT_STATE"], ["OUTPUT"]),
    ]
    graph = helper.make_graph(nodes, "accumulator", tensors[:2], tensors[2:])
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="tritonnb")
    save_model(model, path)


def write_torchscript(path: Path) -> None:
    """Write the TorchScript file.

    Raises
    ------
    ImportError
        If ``torch`` is not installed.
    """
    import torch

    module = torch.jit.ScriptModule()
    module.define(_FORWARD)
    module.save(str(path))


def main(repository: Path) -> None:
    """Write both files into a model repository."""
    write_onnx(repository / "accumulator_onnx" / "1" / "model.onnx")
    write_torchscript(repository / "accumulator_torchscript" / "1" / "model.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
