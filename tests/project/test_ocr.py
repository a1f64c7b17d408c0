"""The ensemble `ocr` reads what was drawn, and so do its parts one by one."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http

from tritonnb.core.errors import TritonError
from tritonnb.model_zoo import materialize, ocr
from tritonnb.server.server import Server

EXAMPLES = Path(__file__).parents[2] / "model_repository"
LINES = ["The quick brown fox", "jumps over 13 lazy dogs"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("rapidocr_onnxruntime") is None, reason="the networks are not installed"
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    materialize(EXAMPLES)
    with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["ocr", "ocr_upright"]) as server:
        assert not server.load_errors
        yield server


def read(server: Server, image: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The text and the boxes."""
    outputs = server["ocr"](IMAGE=image)
    assert len(outputs["SCORE"]) == len(outputs["TEXT"])
    return [line.decode() for line in outputs["TEXT"]], outputs["BOXES"]


def read_step_by_step(server: Server, image: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The same, from the parts."""
    text_map = server["ocr_detection"](IMAGE=image[np.newaxis])["TEXT_MAP"][0]
    cut = server["ocr_crop"](IMAGE=image, TEXT_MAP=text_map)
    (probabilities,) = server["ocr_recognition"](x=cut["CROPS"]).values()
    outputs = server["ocr_text"](PROBABILITIES=probabilities, BOXES=cut["BOXES"])
    return [line.decode() for line in outputs["TEXT"]], outputs["TEXT_BOXES"]


def test_lines_are_read_from_top_to_bottom(server: Server) -> None:
    text, boxes = read(server, ocr.draw(LINES))
    assert text == LINES
    assert (boxes[0, [0, 1]] < boxes[0, [2, 3]]).all()
    assert boxes[0, 3] <= boxes[1, 1]


def test_ensemble_equals_its_steps(server: Server) -> None:
    image = ocr.draw(LINES)
    text, boxes = read(server, image)
    text_by_steps, boxes_by_steps = read_step_by_step(server, image)
    assert text == text_by_steps
    assert (boxes == boxes_by_steps).all()


def test_client_over_http_gets_the_text(server: Server) -> None:
    image = ocr.draw(LINES)
    tensor = http.InferInput("IMAGE", list(image.shape), "UINT8").set_data_from_numpy(image)
    answer = http.InferenceServerClient(server.url.removeprefix("http://")).infer("ocr", [tensor])
    assert [line.decode() for line in answer.as_numpy("TEXT")] == LINES


def test_batch_of_a_step_may_hold_the_lines_of_several_images(server: Server) -> None:
    images = [ocr.draw([f"page {number}", "of four"]) for number in range(1, 5)]

    async def together() -> list[dict[str, np.ndarray]]:
        return await asyncio.gather(*(server["ocr"].infer_async(IMAGE=image) for image in images))

    with server.record() as rec:
        answers = asyncio.run(together())
    assert [answer["TEXT"].tolist() for answer in answers] == [
        [f"page {number}".encode(), b"of four"] for number in range(1, 5)
    ]
    rows = sum(batch.size for batch in rec.batches if batch.model == "ocr_recognition")
    assert rows == 2 * len(images)


def test_text_line_box_contains_its_letters(server: Server) -> None:
    image = ocr.draw(["Hello"])
    _, ((left, top, right, bottom),) = read(server, image)
    dark = np.argwhere(image.min(axis=2) < 128)
    assert (dark.min(axis=0) >= [top, left]).all()
    assert (dark.max(axis=0) < [bottom, right]).all()


def test_line_wider_than_others_is_read_completely(server: Server) -> None:
    line = "a line that goes on and on, up to the 64th letter of its length."
    assert read(server, ocr.draw([line]))[0] == [line]


@pytest.mark.parametrize("size", [(20, 20), (33, 65)])
def test_image_without_text_yields_no_text(server: Server, size: tuple[int, int]) -> None:
    text, boxes = read(server, np.full((*size, 3), 255, np.uint8))
    assert (text, boxes.shape) == ([], (0, 4))


def test_images_of_one_size_are_detected_in_one_batch(server: Server) -> None:
    images = np.stack([ocr.draw(["one"]), ocr.draw(["two"])])
    together = server["ocr_detection"](IMAGE=images)["TEXT_MAP"]
    alone = [server["ocr_detection"](IMAGE=image[np.newaxis])["TEXT_MAP"][0] for image in images]
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("quarter_turns", [0, 1, 2, 3])
def test_image_is_rotated_until_it_can_be_read(server: Server, quarter_turns: int) -> None:
    lying = np.ascontiguousarray(np.rot90(ocr.draw(LINES), -quarter_turns))
    outputs = server["ocr_upright"](IMAGE=lying)
    assert [line.decode() for line in outputs["TEXT"]] == LINES
    assert outputs["QUARTER_TURNS"].tolist() == [quarter_turns]


def test_image_without_text_is_tried_in_every_orientation(server: Server) -> None:
    before = server["ocr"].stats()["inference_count"]
    outputs = server["ocr_upright"](IMAGE=np.full((40, 40, 3), 255, np.uint8))
    assert (outputs["TEXT"].tolist(), outputs["QUARTER_TURNS"].tolist()) == ([], [0])
    assert server["ocr"].stats()["inference_count"] == before + 4


def test_error_of_the_ensemble_is_the_answer(server: Server) -> None:
    with pytest.raises(TritonError, match="in ensemble 'ocr'"):
        server["ocr_upright"](IMAGE=np.zeros((0, 40, 3), np.uint8))
