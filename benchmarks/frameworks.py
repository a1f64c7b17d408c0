"""The models of `benchmarks.models` in other frameworks: OpenVINO, PyTorch 2 archives, TensorFlow, trees.

A framework whose package is not installed is left out; TensorFlow needs its own environment
(``make test-tensorflow`` installs one).
"""

from __future__ import annotations

import functools
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import servers
from benchmarks.baseline import RunBatch
from tritonnb.model_zoo import dense

REPOSITORY = servers.ROOT / "model_repository"
INSTANCES = 2
_PARAMETER = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'


@dataclass(frozen=True, slots=True)
class Case:
    """One model in one framework.

    Attributes
    ----------
    label, model : str
    input, output, datatype : str
    row : numpy.ndarray
        The input for one row.
    write : callable
        Writes the model directory, without the configuration of batching and instances, which is its result.
    load : callable
        Loads the file of a model directory without the server; what it returns creates a function for a thread.
    batching : dict of int to (int, str)
        By rows per request: the maximum batch size and the dynamic batcher's settings.
    """

    label: str
    model: str
    input: str
    output: str
    datatype: str
    row: npt.NDArray[Any]
    write: Callable[[Path], str]
    load: Callable[[Path], Callable[[], RunBatch]]
    batching: dict[int, tuple[int, str]]

    def repository(self, rows: int, scratch: Path) -> Path:
        """Write a repository with the model, for requests with a number of rows."""
        repository = scratch / f"{self.label}-{rows}".replace(" ", "-")
        directory = repository / self.model
        (directory / "1").mkdir(parents=True)
        size, settings = self.batching[rows]
        (directory / "config.pbtxt").write_text(
            f"{self.write(directory)}\nmax_batch_size: {size}\ndynamic_batching {{ {settings} }}\n"
            f"instance_group {{ count: {INSTANCES} kind: KIND_CPU }}\n"
        )
        return repository


def cases() -> Iterator[Case]:
    """Yield the cases of the frameworks that are installed."""
    random = np.random.default_rng(0)
    batched = {
        1: (64, "preferred_batch_size: [ 16 ] max_queue_delay_microseconds: 4000"),
        4: (64, "preferred_batch_size: [ 64 ] max_queue_delay_microseconds: 4000"),
    }
    if importlib.util.find_spec("openvino"):
        dense_tensors = ("dense", "INPUT", "OUTPUT", "FP32", random.random((1, 2048), np.float32))
        characters = random.integers(0, 256, (1, 2048), np.int32)
        magika_tensors = ("magika", "bytes", "target_label", "INT32", characters)
        for (model, name, output, datatype, row), classes, batching in (
            (dense_tensors, 2048, batched),
            (magika_tensors, 214, {1: (4, ""), 4: (4, "")}),
        ):
            config = _openvino_config(name, output, datatype, classes)
            yield Case(
                f"openvino {model}",
                model,
                name,
                output,
                datatype,
                row,
                _link(model, "model.onnx", config),
                lambda directory: _openvino(directory / "1" / "model.onnx"),
                batching,
            )
    if importlib.util.find_spec("torch"):
        tensors = ("dense", "INPUT__0", "OUTPUT__0", "FP32", random.random((1, 2048), np.float32))
        yield Case("pt2 dense", *tensors, _write_archive, _archive, batched)
    if importlib.util.find_spec("tensorflow"):
        tensors = ("dense", "x", "y", "FP32", random.random((1, 2048), np.float32))
        yield Case("tensorflow dense", *tensors, _write_saved_model, _saved_model, batched)
    if importlib.util.find_spec("treelite"):
        yield Case(
            "fil digits_trees",
            "digits_trees",
            "input__0",
            "output__0",
            "FP32",
            random.random((1, 64), np.float32),
            _link("digits_trees", "xgboost.ubj", _FIL),
            lambda directory: _trees(directory / "1" / "xgboost.ubj"),
            {4: (64, ""), 64: (256, "")},
        )


_FIL = """
backend: "fil"
input { name: "input__0" data_type: TYPE_FP32 dims: 64 }
output { name: "output__0" data_type: TYPE_FP32 dims: 10 }
""" + "".join(
    _PARAMETER.format(*parameter)
    for parameter in (("model_type", "xgboost_ubj"), ("is_classifier", "true"), ("predict_proba", "true"))
)


def _openvino_config(name: str, output: str, datatype: str, classes: int) -> str:
    parameters = {"NUM_STREAMS": str(INSTANCES), "INFERENCE_NUM_THREADS": str(INSTANCES)}
    return (
        f'backend: "openvino"\ndefault_model_filename: "model.onnx"\n'
        f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: 2048 }}\n'
        f'output {{ name: "{output}" data_type: TYPE_FP32 dims: {classes} }}\n'
        + "".join(_PARAMETER.format(*parameter) for parameter in parameters.items())
    )


def _link(model: str, filename: str, config: str) -> Callable[[Path], str]:
    def write(directory: Path) -> str:
        (directory / "1" / filename).symlink_to(REPOSITORY / model / "1" / filename)
        return config

    return write


def _openvino(path: Path) -> Callable[[], RunBatch]:
    import openvino as ov

    compiled = ov.Core().compile_model(path, "CPU", {"NUM_STREAMS": INSTANCES, "INFERENCE_NUM_THREADS": INSTANCES})
    name = compiled.input(0).any_name

    def new_run() -> RunBatch:
        request = compiled.create_infer_request()
        return lambda batch: request.infer({name: batch}, share_inputs=True, share_outputs=True)

    return new_run


def _write_archive(directory: Path) -> str:
    compiled, config = _compiled_dense()
    (directory / "1" / "model.pt2").symlink_to(compiled)
    return config


@functools.cache
def _compiled_dense() -> tuple[Path, str]:
    """*dense*, compiled with PyTorch once, and its configuration without batching."""
    import torch

    from tritonnb.backends.pt2_export import export_pt2

    directory = Path(tempfile.mkdtemp()) / "dense"
    layers: list[Any] = []
    for weight in dense.layer_weights():
        layers += [torch.nn.Linear(weight.shape[0], weight.shape[1], bias=False), torch.nn.ReLU()]
        layers[-2].weight.data = torch.from_numpy(np.ascontiguousarray(weight.T))
    text = export_pt2(torch.nn.Sequential(*layers[:-1]), (torch.zeros(1, 2048),), directory, max_batch_size=64)
    kept = [line for line in text.splitlines() if not line.startswith(("max_batch_size", "dynamic_batching"))]
    # PyTorch holds the interpreter lock while a program runs: in one process, instances would take turns.
    parameters = {"INTRA_OP_THREAD_COUNT": "1", "EXECUTION_PROCESS": "isolated"}
    config = [*kept, *(_PARAMETER.format(*parameter) for parameter in parameters.items())]
    return directory / "1" / "model.pt2", "\n".join(config)


def _archive(directory: Path) -> Callable[[], RunBatch]:
    import torch

    torch.set_num_threads(1)
    program = torch._inductor.aoti_load_package(str(directory / "1" / "model.pt2"))

    def new_run() -> RunBatch:
        torch.set_num_threads(1)
        return lambda batch: program(torch.from_numpy(batch))

    return new_run


_TENSORFLOW = """
backend: "tensorflow"
platform: "tensorflow_savedmodel"
input { name: "x" data_type: TYPE_FP32 dims: 2048 }
output { name: "y" data_type: TYPE_FP32 dims: 2048 }
""" + _PARAMETER.format("TF_NUM_INTRA_THREADS", "1")


@functools.cache
def _tensorflow() -> Any:
    """TensorFlow with one thread for each call, as the server has it; this cannot be set later."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    return tf


def _write_saved_model(directory: Path) -> str:
    tf = _tensorflow()
    module = tf.Module()
    module.weights = [tf.Variable(weight) for weight in dense.layer_weights()]

    @tf.function(input_signature=[tf.TensorSpec((None, 2048), tf.float32)])  # type: ignore[untyped-decorator]
    def serve(x: Any) -> dict[str, Any]:
        for weight in module.weights[:-1]:
            x = tf.nn.relu(tf.matmul(x, weight))
        return {"y": tf.matmul(x, module.weights[-1])}

    tf.saved_model.save(module, str(directory / "1" / "model.savedmodel"), signatures={"serving_default": serve})
    return _TENSORFLOW


def _saved_model(directory: Path) -> Callable[[], RunBatch]:
    tf = _tensorflow()
    function = tf.saved_model.load(str(directory / "1" / "model.savedmodel")).signatures["serving_default"]
    return lambda: lambda batch: function(x=tf.constant(batch))["y"].numpy()


def _trees(path: Path) -> Callable[[], RunBatch]:
    import treelite

    model = treelite.frontend.load_xgboost_model(path, format_choice="ubjson")
    return lambda: lambda batch: treelite.gtil.predict(model, batch, nthread=1)
