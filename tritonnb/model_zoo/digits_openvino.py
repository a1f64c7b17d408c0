"""``digits_openvino``: the network of `tritonnb.model_zoo.digits` as OpenVINO IR.

``python -m tritonnb.model_zoo.digits_openvino REPOSITORY`` converts *digits/1/model.pt* again.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(source: Path, target: Path) -> None:
    """Convert the TorchScript file to *model.xml* and *model.bin*.

    Parameters
    ----------
    source : pathlib.Path
        *model.pt*.
    target : pathlib.Path
        *model.xml*.

    Raises
    ------
    ImportError
        If ``torch`` or ``openvino`` is not installed.
    """
    import openvino as ov
    import torch

    module = torch.jit.load(str(source)).eval()  # type: ignore[no-untyped-call]
    model = ov.convert_model(module, example_input=torch.zeros(1, 8, 8), input=[-1, 8, 8])
    model.input(0).set_names({"image"})
    model.output(0).set_names({"scores"})
    for port in (*model.inputs, *model.outputs):
        ov.layout_helpers.set_layout(port, ov.Layout("N..."))
    ov.save_model(model, target, compress_to_fp16=False)


if __name__ == "__main__":
    repository = Path(sys.argv[1])
    convert(repository / "digits" / "1" / "model.pt", repository / "digits_openvino" / "1" / "model.xml")
