"""The example models are what they claim to be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

from tritonnb.model_zoo import dense, magika, materialize
from tritonnb.model_zoo.digits import held_out
from tritonnb.server import Server

EXAMPLES = Path(__file__).parents[2] / "model_repository"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    materialize(EXAMPLES)
    with Server(EXAMPLES, port=0) as server:
        assert not server.load_errors
        yield server


def test_materializing_again_leaves_everything_as_it_is():
    assert [line for line in materialize(EXAMPLES).lines if not line.endswith(": there")] == []


def test_a_damaged_file_is_made_anew(tmp_path: Path):
    shutil.copytree(EXAMPLES / "magika", tmp_path / "magika")
    (tmp_path / "magika" / "1" / "model.onnx").write_bytes(b"damaged")
    report = materialize(tmp_path)
    assert "magika/1/model.onnx: made, 3.2 MB" in report.lines


def test_digits_is_right_on_images_it_has_not_seen(server: Server):
    images, classes = held_out()
    found = np.concatenate([server["digits"](image=images[k : k + 60])["scores"] for k in range(0, len(images), 60)])
    assert (found.argmax(axis=1) == classes).mean() >= 0.95
    with torch.inference_mode():
        plain = torch.jit.load(str(EXAMPLES / "digits/1/model.pt"))(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-6)


def test_dense_is_the_network_of_its_seed(server: Server):
    x = np.random.default_rng(0).random((3, dense.WIDTH), dtype=np.float32)
    session = ort.InferenceSession(EXAMPLES / "dense/1/model.onnx")
    np.testing.assert_allclose(
        server["dense"](INPUT=x)["OUTPUT"], session.run(None, {"INPUT": x})[0], rtol=1e-4, atol=1e-4
    )


def test_magika_says_what_the_package_says(server: Server):
    from magika import Magika

    labels = server.labels("magika", "target_label")
    contents = [
        each.read_bytes() for each in (Path(__file__), EXAMPLES / "digits/1/model.pt", EXAMPLES.parent / "LICENSE")
    ]
    for content in contents:
        scores = server["magika"](bytes=magika.features(content))["target_label"][0]
        official = Magika().identify_bytes(content)
        assert labels[scores.argmax()] == official.dl.label
        assert scores.max() == pytest.approx(official.score, abs=1e-3)


def test_strings_are_made_capital(server: Server):
    assert server["string_upper"](TEXT=[["straße"]])["UPPER"].tolist() == [[b"STRASSE"]]
