"""A short description of each configuration field, and the schema for the editor.

The descriptions state what our schedulers do, which is what Triton's do.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb

#: Descriptions by message (without its package) and field.
HELP = {
    "ModelConfig.name": "The model's name, which is its directory's name. Optional.",
    "ModelConfig.platform": "Used instead of backend in older configurations; `ensemble` for an ensemble.",
    "ModelConfig.backend": "What executes the model: `onnxruntime`, `pytorch`, `python`, or a backend of your own.",
    "ModelConfig.version_policy": "Which of the numbered version directories are served. Default: the latest.",
    "ModelConfig.max_batch_size": (
        "The maximum number of rows in a batch. With 1 or more, every tensor has a batch dimension, which is not part "
        "of dims. 0: the model does not batch, and dims is the whole shape."
    ),
    "ModelConfig.input": "An input tensor.",
    "ModelConfig.output": "An output tensor.",
    "ModelConfig.dynamic_batching": (
        "Combines waiting requests into batches. Empty braces are enough: an idle instance then gets the waiting "
        "requests, up to max_batch_size rows, and requests are not delayed."
    ),
    "ModelConfig.sequence_batching": (
        "For stateful models: all requests of a sequence, identified by its correlation ID, go to the same instance."
    ),
    "ModelConfig.ensemble_scheduling": "A pipeline of models: outputs of one are inputs of others.",
    "ModelConfig.instance_group": "How many instances of the model execute in parallel, and on which devices.",
    "ModelConfig.default_model_filename": "The name of the model file, if it is not the default.",
    "ModelConfig.parameters": "Settings of the backend, such as `intra_op_thread_count`.",
    "ModelConfig.model_warmup": "Requests executed when the model is loaded, so that the first real one is not slow.",
    "ModelConfig.model_transaction_policy": "Whether a request may get any number of responses (`decoupled: true`).",
    "ModelConfig.response_cache": "Caches responses for requests with the same inputs.",
    "ModelConfig.optimization": "Optimizations of the backend.",
    "ModelInput.name": "The name that clients use.",
    "ModelInput.data_type": "The type of an element, such as `TYPE_FP32`.",
    "ModelInput.dims": (
        "The shape, without the batch dimension if max_batch_size is 1 or more. -1: any size."
    ),
    "ModelInput.optional": "Whether requests may omit this input.",
    "ModelInput.allow_ragged_batch": "Whether requests with different shapes may be in one batch.",
    "ModelInput.reshape": "The shape that the backend gets instead of dims; `{ }` for one value per row.",
    "ModelOutput.name": "The name that clients use.",
    "ModelOutput.data_type": "The type of an element, such as `TYPE_FP32`.",
    "ModelOutput.dims": "The shape, without the batch dimension if max_batch_size is 1 or more. -1: any size.",
    "ModelOutput.label_filename": "A file with one class name per line, for classification requests.",
    "ModelOutput.reshape": "The shape that the backend returns instead of dims.",
    "ModelInstanceGroup.name": "The name of the group. Default: derived from the model's name.",
    "ModelInstanceGroup.kind": "The device of the instances. AUTO: a GPU if there is one, otherwise the CPU.",
    "ModelInstanceGroup.count": "Instances per device: how many batches are executed at the same time.",
    "ModelInstanceGroup.gpus": "The CUDA device IDs. Default: all.",
    "ModelInstanceGroup.passive": "Whether the instances are loaded but never get requests.",
    "ModelDynamicBatching.preferred_batch_size": (
        "A batch of one of these sizes is sent without further delay. Others are sent after the delay. "
        "Only useful if the model is known to be faster at some sizes."
    ),
    "ModelDynamicBatching.max_queue_delay_microseconds": (
        "How long a request may be delayed for others to join its batch while an instance is idle. 0: no delay. "
        "Time spent waiting for a busy instance does not count."
    ),
    "ModelDynamicBatching.preserve_ordering": "Whether responses are sent in the order in which the requests arrived.",
    "ModelDynamicBatching.priority_levels": (
        "The number of priorities. Requests of priority 1 are executed before all of priority 2, and so on."
    ),
    "ModelDynamicBatching.default_priority_level": "The priority of requests that do not set one.",
    "ModelDynamicBatching.default_queue_policy": "How long the queue may be, and how long a request may wait.",
    "ModelDynamicBatching.priority_queue_policy": "The queue policy of individual priorities, instead of the default.",
    "ModelQueuePolicy.timeout_action": (
        "What happens to a request that waited too long: REJECT fails it, DELAY executes it after all others."
    ),
    "ModelQueuePolicy.default_timeout_microseconds": "How long a request may wait. 0: without limit.",
    "ModelQueuePolicy.allow_timeout_override": "Whether a request may set a shorter timeout.",
    "ModelQueuePolicy.max_queue_size": "How many requests may wait; further ones are rejected. 0: no limit.",
    "ModelSequenceBatching.direct": (
        "Each sequence has a batch slot of an instance for itself until it ends. For models that keep state by slot."
    ),
    "ModelSequenceBatching.oldest": (
        "Each sequence is assigned to an instance; batches are formed from the oldest requests of different sequences. "
        "For models that keep state by correlation ID, and for implicit state."
    ),
    "ModelSequenceBatching.max_sequence_idle_microseconds": (
        "A sequence without a request for this long loses its slot, as if it had ended. Default: one second."
    ),
    "ModelSequenceBatching.control_input": "Input tensors for the start, end, ready and correlation ID signals.",
    "ModelSequenceBatching.state": "A tensor that the server keeps for each sequence (implicit state).",
    "ModelSequenceBatching.iterative_sequence": "Whether a request is rescheduled until the model has completed it.",
    "ModelSequenceBatching.StrategyDirect.max_queue_delay_microseconds": (
        "How long a ready slot may wait for others while minimum_slot_utilization is not reached."
    ),
    "ModelSequenceBatching.StrategyDirect.minimum_slot_utilization": (
        "The share of slots, from 0 to 1, that must be ready for a batch to be sent before the delay is over."
    ),
    "ModelSequenceBatching.StrategyOldest.max_candidate_sequences": "How many sequences an instance has at a time.",
    "ModelSequenceBatching.StrategyOldest.preferred_batch_size": "As in dynamic_batching.",
    "ModelSequenceBatching.StrategyOldest.max_queue_delay_microseconds": "As in dynamic_batching.",
    "ModelSequenceBatching.StrategyOldest.preserve_ordering": "As in dynamic_batching.",
    "ModelVersionPolicy.latest": "Serve the versions with the highest numbers.",
    "ModelVersionPolicy.all": "Serve every version.",
    "ModelVersionPolicy.specific": "Serve the listed versions.",
    "ModelVersionPolicy.Latest.num_versions": "How many of the latest versions are served.",
    "ModelVersionPolicy.Specific.versions": "The versions to serve.",
}  # fmt: skip


def schema() -> dict[str, dict[str, Json]]:
    """Return the fields of each message of a configuration, by message name without its package.

    A field has its ``type`` as text, its ``help``, the name of its ``message`` if it is one, and the ``values`` of an
    enum.
    """
    known: dict[str, dict[str, Json]] = {}
    _add(pb.ModelConfig.DESCRIPTOR, known)
    return known


def _add(message: Any, known: dict[str, dict[str, Json]]) -> None:
    name = _name(message)
    if name in known:
        return
    fields = known[name] = {}
    for field in message.fields:
        entry: Json = {"type": _type(field), "help": HELP.get(f"{name}.{field.name}", "")}
        if field.message_type is not None:
            entry["message"] = _name(field.message_type)
            _add(field.message_type, known)
        if field.enum_type is not None:
            entry["values"] = [value.name for value in field.enum_type.values]
        fields[field.name] = entry


def _type(field: Any) -> str:
    if field.message_type is not None:
        kind = _name(field.message_type)
    elif field.enum_type is not None:
        kind = field.enum_type.name
    else:
        kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {kind}" if field.is_repeated else kind


def _name(descriptor: Any) -> str:
    return str(descriptor.full_name).removeprefix("inference.")
