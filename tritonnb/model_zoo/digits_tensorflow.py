"""``digits_tensorflow``: the network of `tritonnb.model_zoo.digits` as a SavedModel of TensorFlow.

It is written only where TensorFlow is installed, since a server cannot load it elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

#: Checksum of the weights, sorted by their bytes.
SHA256 = "0e11e7cfd3c0ac94b8fcb3aafd32e33ecd0709228c911ba04d2b974ace995cbd"
_CONFIG = """# The network of digits as a SavedModel, converted by tritonnb.model_zoo.digits_tensorflow.
name: "digits_tensorflow"
platform: "tensorflow_savedmodel"
max_batch_size: 64
input [ { name: "image" data_type: TYPE_FP32 dims: [ 8, 8 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { max_queue_delay_microseconds: 500 }
"""
_MIN_BYTES = 40  # of a weight: the shortest has ten elements


def write(path: Path) -> None:
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
    from tritonnb.model_zoo.digits import load_network

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


def digest(path: Path) -> str:
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
