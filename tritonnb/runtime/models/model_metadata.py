"""The metadata and the class labels of a model version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritonnb.backends.contract import ModelContext
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.v2_json import ModelMetadata, TensorMetadata
from tritonnb.model_config.model_files import model_file
from tritonnb.model_config.schema import ModelSpec, TensorSpec


def describe(config: pb.ModelConfig, spec: ModelSpec, versions: Sequence[int]) -> ModelMetadata:
    """The model metadata of the v2 protocol; ``versions`` are the versions to list, ascending."""
    return {
        "name": config.name,
        "versions": [str(version) for version in versions],
        "platform": config.platform or config.backend,
        "inputs": _tensors(spec, spec.inputs),
        "outputs": _tensors(spec, spec.outputs),
    }


def read_labels(context: ModelContext) -> dict[str, list[str]]:
    """The lines of the ``label_filename`` of every output, by output name."""
    return {
        output.name: model_file(context.directory, output.label_filename).read_text("utf-8", "replace").splitlines()
        for output in context.config.output
        if output.label_filename
    }


def _tensors(spec: ModelSpec, tensors: Mapping[str, TensorSpec]) -> list[TensorMetadata]:
    batch = [-1] if spec.max_batch_size > 0 else []
    return [
        {"name": tensor.name, "datatype": tensor.datatype.name, "shape": [*batch, *tensor.dims]}
        for tensor in tensors.values()
    ]
