"""``ocr``: reading text from an image, four models in an ensemble.

The networks are PaddleOCR's, from the package ``rapidocr-onnxruntime`` (Apache-2.0). ``ocr_detection`` computes for
each pixel the probability that it belongs to text, ``ocr_crop`` crops the lines, ``ocr_recognition`` computes the
probabilities of the characters of each, and ``ocr_text`` converts these to strings. `draw` draws an image to read.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tritonnb.model_zoo.sources import package_directory

#: Without dependencies, since only the data files of the package are needed.
INSTALL = "pip install --no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4"
DETECTION_SHA256 = "529a2fe84959eac28dfb49439e47a4c401e6b497efc40ac6df0facec19a34233"
RECOGNITION_SHA256 = "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"
CHARACTERS_SHA256 = "a1c84d9bdb9ab29043c58896224d32941783eb821629618416dcb08f12886492"

_STRIDE = 32
_RECOGNITION = "ch_PP-OCRv4_rec_infer.onnx"


def draw(lines: Sequence[str], size: float = 24) -> npt.NDArray[np.uint8]:
    """Draw lines of text, black on white.

    Parameters
    ----------
    lines : sequence of str
    size : float
        Font size in points; 100 pixels are 72 points.

    Returns
    -------
    numpy.ndarray
        UINT8 of shape [height, width, 3].
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    step = size / 72 * 2
    width = (max(map(len, lines)) + 4) * size / 72 * 0.7
    figure = Figure(figsize=(width, step * (len(lines) + 1)), dpi=100)
    for number, line in enumerate(lines):
        y = 1 - (number + 1) / (len(lines) + 1)
        figure.text(size / 72 / width, y, line, fontsize=size, verticalalignment="center")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels: npt.NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(pixels[..., :3])


def write_detection(path: Path) -> None:
    """Write the text detection network with its preprocessing: IMAGE to TEXT_MAP.

    The preprocessing of the package is part of the graph: pixels from 0 to 255 in the order red, green, blue are scaled
    and put into the order blue, green, red, and the image is padded to a multiple of 32.

    Raises
    ------
    ImportError
        If ``onnx`` or the package is not installed.
    """
    from onnx import TensorProto, helper, load_model, numpy_helper, save_model

    model = load_model(_models() / "ch_PP-OCRv4_det_infer.onnx")
    graph = model.graph
    constants: dict[str, npt.NDArray[np.generic]] = {
        "scale": np.array(127.5, np.float32),
        "one": np.array(1, np.float32),
        "bgr": np.array([2, 1, 0], np.int64),
        "height_at": np.array([2], np.int64),
        "width_at": np.array([4], np.int64),
        "stride": np.array([_STRIDE], np.int64),
        "nothing": np.zeros(2, np.int64),
        "nothing_six_times": np.zeros(6, np.int64),
        "height_and_width": np.array([2, 3], np.int64),
    }
    before = [
        helper.make_node("Cast", ["IMAGE"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["pixels", "scale"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "one"], ["centred"]),
        helper.make_node("Transpose", ["centred"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Gather", ["planes", "bgr"], ["turned"], axis=1),
        helper.make_node("Shape", ["turned"], ["shape"]),
        helper.make_node("Slice", ["shape", "height_at", "width_at"], ["size"]),
        helper.make_node("Neg", ["size"], ["negative_size"]),
        helper.make_node("Mod", ["negative_size", "stride"], ["missing"]),
        helper.make_node("Concat", ["nothing_six_times", "missing"], ["padding"], axis=0),
        helper.make_node("Pad", ["turned", "padding"], [graph.input[0].name]),
    ]
    after = [
        helper.make_node("Slice", [graph.output[0].name, "nothing", "size", "height_and_width"], ["cut"]),
        helper.make_node("Squeeze", ["cut"], ["TEXT_MAP"], axes=[1]),
    ]
    image = helper.make_tensor_value_info("IMAGE", TensorProto.UINT8, ["batch", "height", "width", 3])
    text_map = helper.make_tensor_value_info("TEXT_MAP", TensorProto.FLOAT, ["batch", "height", "width"])
    initializers = [*graph.initializer, *(numpy_helper.from_array(array, name) for name, array in constants.items())]
    graph.CopyFrom(
        helper.make_graph([*before, *graph.node, *after], "ocr_detection", [image], [text_map], initializers)
    )
    save_model(model, path)


def write_recognition(path: Path) -> None:
    """Copy the text recognition network from the installed package."""
    shutil.copyfile(_models() / _RECOGNITION, path)


def write_characters(path: Path) -> None:
    """Write the characters that the network distinguishes, one per line; they are stored in its ONNX file."""
    from onnx import load_model

    properties = {item.key: item.value for item in load_model(_models() / _RECOGNITION).metadata_props}
    path.write_text(properties["character"] + "\n", encoding="utf-8")


def _models() -> Path:
    return package_directory("rapidocr_onnxruntime") / "models"
