"""A TensorFlow model file as a session: SavedModel and GraphDef, their tensors, and the parameters of a session.

Names and values of parameters follow Triton's TensorFlow backend.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# TensorFlow's C++ library writes to stderr: 2 leaves errors only.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import saved_model_pb2

from tritonnb.backends.contract import InstanceSpec, ModelContext
from tritonnb.backends.model_checks import ModelTensor, find_model_file, integer_parameter
from tritonnb.core.datatypes import DATATYPES
from tritonnb.core.errors import InternalError, InvalidArgumentError, NotFoundError, UnsupportedError

logging.getLogger("tensorflow").setLevel(logging.ERROR)

SAVED_MODEL, GRAPH_DEF = "tensorflow_savedmodel", "tensorflow_graphdef"
_FILES = {SAVED_MODEL: "model.savedmodel", GRAPH_DEF: "model.graphdef"}
DEFAULT_TAG, DEFAULT_SIGNATURE = "serve", "serving_default"

_DATATYPES = {
    tf.as_dtype(datatype.numpy).as_datatype_enum: datatype for datatype in DATATYPES if not datatype.bit_pattern
}


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output of a model.

    Attributes
    ----------
    name : str
        As in the configuration.
    graph_name : str
        In the graph: the name of the operation and the index of its output.
    data_type : int
        ``DataType`` of TensorFlow.
    shape : tuple of int or None
        -1 is a variable dimension; None if not even the number of dimensions is known.
    """

    name: str
    graph_name: str
    data_type: int
    shape: tuple[int, ...] | None

    def as_model_tensor(self) -> ModelTensor:
        """Return the tensor with Triton's datatype.

        Raises
        ------
        InvalidArgumentError
            If Triton does not have the datatype.
        """
        datatype = _DATATYPES.get(self.data_type)
        if datatype is None:
            kind = types_pb2.DataType.Name(self.data_type)
            raise InvalidArgumentError(f"tensor '{self.name}': expected a datatype that Triton has, got {kind}")
        return ModelTensor(self.name, datatype, self.shape or ())


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of a model by name; for a GraphDef, every placeholder and the results of every operation."""

    inputs: Mapping[str, GraphTensor]
    outputs: Mapping[str, GraphTensor]


def check_platform(context: ModelContext) -> str:
    """Return the platform of a model.

    Raises
    ------
    InvalidArgumentError
        If TensorFlow does not have it.
    """
    platform: str = context.config.platform
    if platform not in _FILES:
        raise InvalidArgumentError(f"platform {platform} not supported for TensorFlow model '{context.name}'")
    return platform


def graph_tag(context: ModelContext) -> str:
    """Return the tag of the graph in a SavedModel."""
    return context.parameters.get("TF_GRAPH_TAG") or DEFAULT_TAG


def read_signature(context: ModelContext) -> Tensors:
    """Return the tensors of the signature of a SavedModel, read from its *saved_model.pb*.

    Raises
    ------
    NotFoundError, InternalError
        If the file does not exist, or is not a SavedModel.
    InvalidArgumentError
        If it does not have the tag or the signature.
    """
    path = find_model_file(context, _FILES[check_platform(context)], may_be_directory=True)
    content = saved_model_pb2.SavedModel()
    try:
        # Parsed without loading: the signature is needed before there is a session, and a model may be gigabytes.
        content.ParseFromString((path / "saved_model.pb").read_bytes())
    except Exception as error:  # OSError, and protobuf's DecodeError
        raise InternalError(f"unable to load '{path}' of model '{context.name}' as a SavedModel: {error}") from error
    tag = graph_tag(context)
    graphs = {known: graph for graph in content.meta_graphs for known in graph.meta_info_def.tags}
    if tag not in graphs:
        raise InvalidArgumentError(
            f"unable to load '{path}' of model '{context.name}': expected a graph with the tag '{tag}' (TF_GRAPH_TAG), "
            f"got {', '.join(map(repr, sorted(graphs))) or 'none'}"
        )
    signatures = graphs[tag].signature_def
    # `__saved_model_init_op` is a signature for TensorFlow itself.
    known = [name for name in sorted(signatures) if not name.startswith("__")]
    name = context.parameters.get("TF_SIGNATURE_DEF", "")
    if not name:  # as on Triton: the default, otherwise any
        name = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in known or not known else known[0]
    if name not in signatures:
        raise InvalidArgumentError(
            f"unable to load '{path}' of model '{context.name}': expected a signature '{name}' (TF_SIGNATURE_DEF), got "
            f"{', '.join(map(repr, known)) or 'none'}"
        )
    signature = signatures[name]
    return Tensors(_graph_tensors(signature.inputs), _graph_tensors(signature.outputs))


def _graph_tensors(tensors: Mapping[str, Any]) -> dict[str, GraphTensor]:
    return {
        name: GraphTensor(
            name,
            tensor.name,
            tensor.dtype,
            None if tensor.tensor_shape.unknown_rank else tuple(dim.size for dim in tensor.tensor_shape.dim),
        )
        for name, tensor in sorted(tensors.items())
    }


def _session_config(context: ModelContext, spec: InstanceSpec) -> Any:
    """Return the options of a session, from the parameters and the ``--backend-config`` settings."""
    config = tf.compat.v1.ConfigProto()
    config.allow_soft_placement = context.settings.get("allow-soft-placement", "true").lower() == "true"
    for name, field in (
        ("TF_NUM_INTRA_THREADS", "intra_op_parallelism_threads"),
        ("TF_NUM_INTER_THREADS", "inter_op_parallelism_threads"),
    ):
        count = integer_parameter(context, name, 0)
        if count < 0:
            raise InvalidArgumentError(
                f"parameter '{name}' must be non-negative number for TensorFlow model '{context.name}'"
            )
        setattr(config, field, count)
    per_session = context.parameters.get("TF_USE_PER_SESSION_THREADS", "").lower()
    config.use_per_session_threads = per_session in ("true", "on", "1", "yes")
    if spec.kind == "KIND_GPU":
        if not tf.config.list_physical_devices("GPU"):
            raise UnsupportedError(
                f"model '{context.name}': expected a TensorFlow with GPU support for an instance of KIND_GPU, got one "
                "without; set instance_group { kind: KIND_CPU }"
            )
        config.gpu_options.visible_device_list = str(spec.device_id)
        config.gpu_options.allow_growth = "gpu-memory-fraction" not in context.settings
        config.gpu_options.per_process_gpu_memory_fraction = float(context.settings.get("gpu-memory-fraction", 0))
    else:
        # Otherwise TensorFlow takes nearly all memory of every GPU that it sees, even for a model on the CPU.
        config.device_count["GPU"] = 0
    return config


def open_session(context: ModelContext, spec: InstanceSpec) -> tuple[Any, Tensors]:
    """Load a model file into a new session for an instance, and run its initialisation.

    Returns
    -------
    session : tensorflow.compat.v1.Session
    tensors : Tensors

    Raises
    ------
    TritonError
        If the file cannot be loaded, a parameter has an invalid value, or the instance runs on a GPU, and TensorFlow
        has none.
    """
    config = _session_config(context, spec)
    platform = check_platform(context)
    path = find_model_file(context, _FILES[platform], may_be_directory=True)
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph, config=config)
    try:
        with graph.as_default():
            if platform == SAVED_MODEL:
                tensors = read_signature(context)
                tf.compat.v1.saved_model.load(session, [graph_tag(context)], str(path))
            else:
                definition = tf.compat.v1.GraphDef()
                definition.ParseFromString(path.read_bytes())
                # An empty name, or each tensor would be called `import/...` and match no configuration.
                tf.import_graph_def(definition, name="")
                tensors = _potential_tensors(graph)
        if operations := _init_operations(context):
            session.run([graph.get_operation_by_name(name) for name in operations])
    except (InvalidArgumentError, InternalError):
        session.close()
        raise
    except Exception as error:  # TensorFlow, protobuf and OS errors of many kinds
        session.close()
        raise InternalError(
            f"unable to load '{path}' of model '{context.name}': {' '.join(str(error).split())}"
        ) from error
    return session, tensors


def _potential_tensors(graph: Any) -> Tensors:
    """Return the placeholders of a graph, which are inputs, and the first result of every operation."""
    tensors = {}
    for operation in graph.get_operations():
        if operation.outputs:
            result = operation.outputs[0]
            rank = result.shape.rank
            shape = None if rank is None else tuple(-1 if dim is None else dim for dim in result.shape.as_list())
            tensors[operation.name] = GraphTensor(operation.name, result.name, result.dtype.as_datatype_enum, shape)
    placeholders = {operation.name for operation in graph.get_operations() if operation.type == "Placeholder"}
    return Tensors({name: tensors[name] for name in placeholders}, tensors)


def _init_operations(context: ModelContext) -> list[str]:
    """Return the operations that ``TF_INIT_OPS_FILE`` lists."""
    name = context.parameters.get("TF_INIT_OPS_FILE")
    if not name:
        return []
    for directory in (context.version_directory, context.directory):
        path = directory / name
        if path.is_file():
            try:
                operations: list[str] = json.loads(path.read_text())["init_ops"]
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidArgumentError(
                    f"model '{context.name}': '{path}' expected JSON with a list 'init_ops', got {error!r}"
                ) from error
            return operations
    raise NotFoundError(f"unable to find '{name}' (TF_INIT_OPS_FILE) for model '{context.name}'")
