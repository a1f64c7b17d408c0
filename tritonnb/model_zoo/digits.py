"""``digits``: a small network for scikit-learn's handwritten digits, as TorchScript.

``python -m tritonnb.model_zoo.digits PATH`` trains the network again. Two models have the same network:

* ``digits_pt2`` is compiled with PyTorch for this machine. An archive runs on machines with the same kind of processor
  and the same version of PyTorch, so that it is not part of this package. Compiling it takes about half a minute, and
  needs a C++ compiler.
* ``digits_tensorflow`` is a SavedModel of TensorFlow. It is written only where TensorFlow is installed, since a server
  cannot load it elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritonnb.model_zoo.sources import bundled_repository

if TYPE_CHECKING:
    from torch import nn

#: Checksum of the classes that the compiled network predicts for random images. All ten classes occur, and each has a
#: clearly higher score than the next one.
PT2_SHA256 = "e0d9ad44d645c457f565a4b7f8df802cfc3be63f298be8a9594aef6198cef379"
#: Checksum of the weights of the SavedModel, sorted by their bytes.
TENSORFLOW_SHA256 = "0e11e7cfd3c0ac94b8fcb3aafd32e33ecd0709228c911ba04d2b974ace995cbd"
_CONFIG = """# The network of digits as a SavedModel, converted by tritonnb.model_zoo.digits.
name: "digits_tensorflow"
platform: "tensorflow_savedmodel"
max_batch_size: 64
input [ { name: "image" data_type: TYPE_FP32 dims: [ 8, 8 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { max_queue_delay_microseconds: 500 }
"""
_MIN_BYTES = 40  # of a weight: the shortest has ten elements

_Examples = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def held_out() -> _Examples:
    """Return the images and classes that the network was not trained on.

    Returns
    -------
    images : numpy.ndarray
        FP32 of shape [360, 8, 8], values 0 to 1.
    classes : numpy.ndarray
        INT64 of shape [360].
    """
    return split()[1]


def train(path: Path) -> float:
    """Train the network and write it to a file; return the accuracy on the held-out images."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    (images, classes), (test_images, test_classes) = split()
    network = _new_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    inputs, targets = torch.from_numpy(images), torch.from_numpy(classes)
    for _ in range(300):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(torch.log(network(inputs) + 1e-9), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    network.eval()
    torch.jit.script(network).save(str(path))  # type: ignore[no-untyped-call]
    with torch.inference_mode():
        predicted = network(torch.from_numpy(test_images)).argmax(dim=1).numpy()
    return float((predicted == test_classes).mean())


def load_network() -> nn.Sequential:
    """Return the trained network, with the weights of the TorchScript file in this package.

    Raises
    ------
    ImportError
        If ``torch`` is not installed.
    """
    import torch

    trained = torch.jit.load(str(bundled_repository() / "digits" / "1" / "model.pt"))  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=[]):  # the weights before those of the file are random
        network = _new_network()
    network.load_state_dict(trained.state_dict())
    return network.eval()


def _new_network() -> nn.Sequential:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10), nn.Softmax(dim=1))


def split() -> tuple[_Examples, _Examples]:
    """Return the images and classes for training, and the held-out ones, as `held_out` returns them."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)
    classes = digits.target.astype(np.int64)
    train_images, test_images, train_classes, test_classes = train_test_split(
        images, classes, test_size=0.2, random_state=0
    )
    return (train_images, train_classes), (test_images, test_classes)


def write_pt2(path: Path) -> None:
    """Compile the network, and write the archive and the *config.pbtxt* of its model.

    Parameters
    ----------
    path : pathlib.Path
        *MODEL/1/FILE*; the configuration is written to *MODEL/config.pbtxt*.

    Raises
    ------
    ImportError
        If ``torch`` or a C++ compiler is not installed.
    """
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ImportError("expected a C++ compiler, got none", name="g++")
    import torch

    from tritonnb.backends.pt2_export import export_pt2

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / path.parents[1].name
        export_pt2(load_network(), (torch.zeros(1, 8, 8),), directory, max_batch_size=64)
        shutil.move(directory / "1" / "model.pt2", path)
        shutil.move(directory / "config.pbtxt", path.parents[1] / "config.pbtxt")


def digest_pt2(path: Path) -> str:
    """Return the SHA-256 of the classes that an archive finds in some images; the file differs from machine to machine.

    Raises
    ------
    ImportError
        If ``torch`` is not installed.
    ValueError
        If PyTorch cannot run the archive on this machine.
    """
    import torch

    images = (np.random.default_rng(0).random((64, 8, 8)) < 0.25).astype(np.float32)
    try:
        with path.open("rb") as file:  # a path would have to end in .pt2
            scores = torch._inductor.aoti_load_package(file)(torch.from_numpy(images))
    except OSError:
        raise
    except Exception as error:  # zipfile, JSON and PyTorch errors of all kinds
        raise ValueError(f"{path}: expected an archive for this machine, got an error: {error}") from error
    return hashlib.sha256(scores.argmax(dim=1).numpy().astype(np.uint8).tobytes()).hexdigest()


def write_tensorflow(path: Path) -> None:
    """Convert the network, and write its *saved_model.pb*, the files beside it, and the *config.pbtxt* of its model.

    The weights are constants of the graph, in *saved_model.pb*.

    Parameters
    ----------
    path : pathlib.Path
        *MODEL/1/model.savedmodel/FILE*; the configuration is written to *MODEL/config.pbtxt*.

    Raises
    ------
    ImportError
        If ``tensorflow`` or ``torch`` is not installed.
    """
    tf = importlib.import_module("tritonnb.backends.tensorflow_model").tf  # its log is silenced there
    state = {name: tensor.numpy() for name, tensor in load_network().state_dict().items()}

    @tf.function(input_signature=[tf.TensorSpec((None, 8, 8), tf.float32, name="image")])  # type: ignore[untyped-decorator]
    def serve(image: Any) -> dict[str, Any]:
        units = tf.nn.relu(tf.matmul(tf.reshape(image, (-1, 64)), state["1.weight"].T) + state["1.bias"])
        return {"scores": tf.nn.softmax(tf.matmul(units, state["3.weight"].T) + state["3.bias"])}

    with tempfile.TemporaryDirectory() as scratch:
        tf.saved_model.save(tf.Module(), scratch, signatures={"serving_default": serve})
        name = "saved_model.pb"
        shutil.copytree(scratch, path.parent, ignore=shutil.ignore_patterns(name), dirs_exist_ok=True)
        shutil.copyfile(Path(scratch) / name, path)
    (path.parents[2] / "config.pbtxt").write_text(_CONFIG)


def digest_tensorflow(path: Path) -> str:
    """Return the SHA-256 of the weights in a file; the rest of the file depends on the version of TensorFlow.

    Raises
    ------
    ImportError
        If ``tensorflow`` is not installed.
    ValueError
        If it is not a SavedModel.
    """
    from google.protobuf.message import DecodeError

    backend = importlib.import_module("tritonnb.backends.tensorflow_model")
    try:
        content = backend.saved_model_pb2.SavedModel.FromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError(f"{path}: expected a SavedModel") from error
    weights = {
        node.attr["value"].tensor.tensor_content
        for graph in content.meta_graphs
        for function in graph.graph_def.library.function
        for node in function.node_def
        if node.op == "Const"
    }
    return hashlib.sha256(b"".join(sorted(w for w in weights if len(w) >= _MIN_BYTES))).hexdigest()


if __name__ == "__main__":
    print(f"accuracy on held-out images: {train(Path(sys.argv[1])):.3f}")
