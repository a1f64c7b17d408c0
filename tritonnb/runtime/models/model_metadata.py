"""What a model version says about itself: its metadata and its class labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritonnb.backends.contract import ModelContext
from tritonnb.core.json_types import JsonDict, JsonValue
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.schema import ModelSpec, TensorSpec


def describe(config: pb.ModelConfig, spec: ModelSpec, versions: Sequence[int]) -> JsonDict:
    """Model metadata of the v2 protocol; ``versions`` are those to list, ascending."""
    return {
        "name": config.name,
        "versions": [str(each) for each in versions],
        "platform": config.platform or config.backend,
        "inputs": _tensors(spec, spec.inputs),
        "outputs": _tensors(spec, spec.outputs),
    }


def read_labels(context: ModelContext) -> dict[str, list[str]]:
    """The lines of every output's ``label_filename``, by output."""
    return {
        output.name: (context.directory / output.label_filename).read_text("utf-8", "replace").splitlines()
        for output in context.config.output
        if output.label_filename
    }


def _tensors(spec: ModelSpec, tensors: Mapping[str, TensorSpec]) -> list[JsonValue]:
    batch = [-1] if spec.max_batch_size > 0 else []
    return [
        {"name": each.name, "datatype": each.datatype.name, "shape": [*batch, *each.dims]} for each in tensors.values()
    ]
