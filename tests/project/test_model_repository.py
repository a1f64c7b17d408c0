"""The example models are what they claim to be."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from tritonclient import http

from tests.lazy_import import LazyModule
from tritonnb.model_zoo import accumulator, dense, magika, materialize
from tritonnb.model_zoo.digits import held_out
from tritonnb.server.server import Server

if TYPE_CHECKING:
    import xgboost
else:
    xgboost = LazyModule("xgboost")

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "model_repository"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    skipped = {line.partition("/")[0] for line in materialize(EXAMPLES).lines if "skipped" in line}
    with Server(EXAMPLES, port=0) as server:
        assert set(server.load_errors) <= skipped
        yield server


def test_materializing_again_changes_nothing() -> None:
    skipped = [line for line in materialize(EXAMPLES).lines if "skipped" in line]
    assert [line for line in materialize(EXAMPLES).lines if not line.endswith(": already there")] == skipped


def test_damaged_file_is_created_again(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "magika", tmp_path / "magika")
    (tmp_path / "magika" / "1" / "model.onnx").write_bytes(b"damaged")
    report = materialize(tmp_path)
    assert "magika/1/model.onnx: created, 3.2 MB" in report.lines
    assert "digits_pt2/1/model.pt2: skipped, compiling takes a while: tritonnb models --compile" in report.lines
    assert all((model / "config.pbtxt").is_file() for model in tmp_path.iterdir()), "a model that cannot be loaded"


def test_chosen_models_include_their_dependencies(tmp_path: Path) -> None:
    materialize(tmp_path, ["digits_openvino", "ocr_upright"])
    steps = {"ocr", "ocr_crop", "ocr_detection", "ocr_recognition", "ocr_text"}
    assert {path.name for path in tmp_path.iterdir()} == {"digits_openvino", "ocr_upright"} | steps
    assert all(any(path.glob("1/*")) or path.name == "ocr" for path in tmp_path.iterdir())


def test_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected names of example models \(accumulator, .*\), got 'digit'"):
        materialize(tmp_path, ["digit"])
    assert list(tmp_path.iterdir()) == []


def test_all_missing_packages_of_chosen_models_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    missing = {"onnxruntime", "magika", "silero_vad"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name))
    with pytest.raises(ImportError) as raised:
        materialize(tmp_path, ["magika", "silero_vad"])
    assert str(raised.value).splitlines() == [
        "magika, silero_vad: a package is missing",
        "onnxruntime is not installed: pip install onnxruntime",
        "magika is not installed: pip install magika",
        "silero-vad is not installed: pip install silero-vad",
    ]


def test_digits_is_right_on_images_it_has_not_seen(server: Server) -> None:
    images, classes = held_out()
    scores = np.concatenate([server["digits"](image=images[k : k + 60])["scores"] for k in range(0, len(images), 60)])
    assert (scores.argmax(axis=1) == classes).mean() >= 0.95
    with torch.inference_mode():
        plain = torch.jit.load(str(EXAMPLES / "digits/1/model.pt"))(torch.from_numpy(images)).numpy()  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(scores, plain, rtol=1e-4, atol=1e-6)


def test_digits_openvino_is_the_network_of_digits(server: Server) -> None:
    images, _ = held_out()
    scores = server["digits_openvino"](image=images[:60])["scores"]
    # OpenVINO computes in BF16 on processors that have it.
    np.testing.assert_allclose(scores, server["digits"](image=images[:60])["scores"], rtol=0, atol=0.03)


def test_digits_trees_is_right_on_images_it_has_not_seen(server: Server) -> None:
    images, classes = held_out()
    rows = images.reshape(len(images), -1)
    scores = np.concatenate(
        [server["digits_trees"](input__0=rows[k : k + 60])["output__0"] for k in range(0, len(rows), 60)]
    )
    assert (scores.argmax(axis=1) == classes).mean() >= 0.95
    booster = xgboost.Booster(model_file=EXAMPLES / "digits_trees/1/xgboost.ubj")
    np.testing.assert_allclose(scores, booster.inplace_predict(rows), rtol=0, atol=1e-6)


def test_dense_model_is_determined_by_its_seed(server: Server) -> None:
    x = np.random.default_rng(0).random((3, dense.WIDTH), dtype=np.float32)
    session = ort.InferenceSession(EXAMPLES / "dense/1/model.onnx")
    np.testing.assert_allclose(
        server["dense"](INPUT=x)["OUTPUT"], session.run(None, {"INPUT": x})[0], rtol=1e-4, atol=1e-4
    )


def test_magika_model_equals_the_package(server: Server) -> None:
    from magika import Magika

    labels = server.labels("magika", "target_label")
    contents = [
        path.read_bytes() for path in (Path(__file__), EXAMPLES / "digits/1/model.pt", EXAMPLES.parent / "LICENSE")
    ]
    for content in contents:
        scores = server["magika"](bytes=magika.features(content))["target_label"][0]
        official = Magika().identify_bytes(content)
        assert labels[scores.argmax()] == official.dl.label  # type: ignore[index]
        assert scores.max() == pytest.approx(official.score, abs=1e-3)


def test_strings_are_converted_to_upper_case(server: Server) -> None:
    assert server["string_upper"](TEXT=[["straße"]])["UPPER"].tolist() == [[b"STRASSE"]]


# --- accumulator ---------------------------------------------------------------------------------


def test_accumulators_equal_the_output_of_the_documented_command(tmp_path: Path) -> None:
    accumulator.write_onnx(tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx").graph == onnx.load(EXAMPLES / "accumulator_onnx/1/model.onnx").graph
    accumulator.write_torchscript(tmp_path / "model.pt")
    written, committed = (
        torch.jit.load(path)  # type: ignore[no-untyped-call]
        for path in (tmp_path / "model.pt", EXAMPLES / "accumulator_torchscript/1/model.pt")
    )
    assert written.code == committed.code


ACCUMULATORS = [
    ("accumulator", "INPUT", "OUTPUT"),
    ("accumulator_onnx", "INPUT", "OUTPUT"),
    ("accumulator_torchscript", "INPUT__0", "OUTPUT__0"),
]


class Accumulator:
    """One of the accumulators, over HTTP."""

    def __init__(self, server: Server, model: str, name: str, result: str) -> None:
        self._client = http.InferenceServerClient(server.url.removeprefix("http://"))
        self._model, self._name, self._result = model, name, result

    def add(self, value: int, sequence: int, **flags: bool) -> int:
        """The sequence's total."""
        tensor = http.InferInput(self._name, [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[value]], np.int32))
        answer = self._client.infer(self._model, [tensor], sequence_id=sequence, **flags)
        return int(answer.as_numpy(self._result).item())

    def totals(self, sequence: int, values: range) -> list[int]:
        """Those of a whole sequence."""
        last = values[-1]
        return [
            self.add(value, sequence, sequence_start=value == values[0], sequence_end=value == last) for value in values
        ]


@pytest.mark.parametrize(("model", "name", "result"), ACCUMULATORS)
def test_interleaved_sequences_have_separate_totals(server: Server, model: str, name: str, result: str) -> None:
    accumulator = Accumulator(server, model, name, result)
    sums = [
        [accumulator.add(sequence * step, sequence, sequence_start=step == 1) for sequence in (3, 1, 2)]
        for step in (1, 2, 3)
    ]
    assert sums == [[3, 1, 2], [9, 3, 6], [18, 6, 12]]
    assert accumulator.add(5, 3, sequence_start=True) == 5
    assert accumulator.add(5, 2, sequence_end=True) == 17


@pytest.mark.parametrize(("model", "name", "result"), ACCUMULATORS)
def test_twelve_concurrent_sequences_on_eight_slots_add_up(server: Server, model: str, name: str, result: str) -> None:
    def run(sequence: int) -> list[int]:
        return Accumulator(server, model, name, result).totals(sequence, range(sequence, sequence + 6))

    sequences = range(101, 113)
    with ThreadPoolExecutor(len(sequences)) as pool:
        sums = list(pool.map(run, sequences))
    assert sums == [np.cumsum(range(first, first + 6)).tolist() for first in sequences]
