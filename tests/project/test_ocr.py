"""The parts of `ocr` read what was drawn."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tritonnb.model_zoo import materialize, ocr
from tritonnb.server import Server

EXAMPLES = Path(__file__).parents[2] / "model_repository"
PARTS = ["ocr_detection", "ocr_crop", "ocr_recognition", "ocr_text"]
LINES = ["The quick brown fox", "jumps over 13 lazy dogs"]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("rapidocr_onnxruntime") is None, reason="the networks are not installed"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    materialize(EXAMPLES)
    with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=PARTS) as server:
        yield server


def read(server: Server, image: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The text and the boxes, step by step."""
    text_map = server["ocr_detection"](IMAGE=image[np.newaxis])["TEXT_MAP"][0]
    cut = server["ocr_crop"](IMAGE=image, TEXT_MAP=text_map)
    (probabilities,) = server["ocr_recognition"](x=cut["CROPS"]).values()
    said = server["ocr_text"](PROBABILITIES=probabilities, BOXES=cut["BOXES"])
    return [each.decode() for each in said["TEXT"]], said["TEXT_BOXES"]


def test_lines_are_read_from_top_to_bottom(server: Server):
    text, boxes = read(server, ocr.draw(LINES))
    assert text == LINES
    assert (boxes[0, [0, 1]] < boxes[0, [2, 3]]).all()
    assert boxes[0, 3] <= boxes[1, 1]


def test_the_box_of_a_line_holds_its_letters(server: Server):
    image = ocr.draw(["Hello"])
    _, ((left, top, right, bottom),) = read(server, image)
    dark = np.argwhere(image.min(axis=2) < 128)
    assert (dark.min(axis=0) >= [top, left]).all()
    assert (dark.max(axis=0) < [bottom, right]).all()


def test_a_line_wider_than_others_is_read_whole(server: Server):
    line = "a line that goes on and on, up to the 64th letter of its length."
    assert read(server, ocr.draw([line]))[0] == [line]


@pytest.mark.parametrize("size", [(20, 20), (33, 65)])
def test_an_image_without_text_says_nothing(server: Server, size: tuple[int, int]):
    text, boxes = read(server, np.full((*size, 3), 255, np.uint8))
    assert (text, boxes.shape) == ([], (0, 4))


def test_images_of_one_size_are_detected_in_one_batch(server: Server):
    images = np.stack([ocr.draw(["one"]), ocr.draw(["two"])])
    together = server["ocr_detection"](IMAGE=images)["TEXT_MAP"]
    alone = [server["ocr_detection"](IMAGE=each[np.newaxis])["TEXT_MAP"][0] for each in images]
    np.testing.assert_allclose(together, alone, atol=1e-5)
