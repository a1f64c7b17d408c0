"""What each field of a configuration means, in a sentence or two, and the schema that an editor needs.

The sentences tell what the scheduler of this house does, which is what Triton's does.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tritonnb.core.protobuf import model_config_pb2 as pb

#: By message (without its package) and field.
HELP = {
    "ModelConfig.name": "The model's name: that of its directory. May be left out.",
    "ModelConfig.platform": "What older configurations say instead of backend; `ensemble` for an ensemble.",
    "ModelConfig.backend": "What runs the model: `onnxruntime`, `pytorch`, `python`, or one of your own.",
    "ModelConfig.version_policy": "Which of the numbered version directories are served. The newest, unless told.",
    "ModelConfig.max_batch_size": (
        "The most rows that run at once. With 1 or more, every tensor gets a first dimension for the rows, which dims "
        "leaves out. 0: the model does not batch, and dims is the whole shape."
    ),
    "ModelConfig.input": "A tensor that the model takes.",
    "ModelConfig.output": "A tensor that the model gives.",
    "ModelConfig.dynamic_batching": (
        "Joins waiting requests into batches. Empty braces are enough: a free instance then takes what waits, up to "
        "max_batch_size, and nobody is made to wait for others."
    ),
    "ModelConfig.sequence_batching": (
        "For models that keep state: all requests of a sequence, told by their correlation ID, go to the same instance."
    ),
    "ModelConfig.ensemble_scheduling": "A pipeline: the outputs of models become the inputs of others.",
    "ModelConfig.instance_group": "How many copies of the model run side by side, and on what.",
    "ModelConfig.default_model_filename": "The model's file, where it has another name than usual.",
    "ModelConfig.parameters": "Settings that only this backend knows, such as `intra_op_thread_count`.",
    "ModelConfig.model_warmup": "Requests that are run at loading, so that the first real one is not slow.",
    "ModelConfig.model_transaction_policy": "Whether a request may get any number of responses (`decoupled: true`).",
    "ModelConfig.response_cache": "Keeps answers, to give them again to requests with the same inputs.",
    "ModelConfig.optimization": "What the backend may do to be faster.",
    "ModelInput.name": "The name that clients use.",
    "ModelInput.data_type": "The type of an element, such as `TYPE_FP32`.",
    "ModelInput.dims": (
        "The shape without the batch dimension, while max_batch_size is 1 or more. -1 stands for any size."
    ),
    "ModelInput.optional": "Whether requests may leave this input out.",
    "ModelInput.allow_ragged_batch": "Whether requests of different shapes may share a batch.",
    "ModelInput.reshape": "The shape that the backend sees instead of dims; `{ }` for one number per row.",
    "ModelOutput.name": "The name that clients use.",
    "ModelOutput.data_type": "The type of an element, such as `TYPE_FP32`.",
    "ModelOutput.dims": "The shape without the batch dimension, while max_batch_size is 1 or more. -1: any size.",
    "ModelOutput.label_filename": "A file with a class name in each line, for clients that ask for the best classes.",
    "ModelOutput.reshape": "The shape that the backend gives instead of dims.",
    "ModelInstanceGroup.name": "A name for the group; made from the model's, unless given.",
    "ModelInstanceGroup.kind": "Where the instances run. AUTO is a GPU where there is one, and the CPU elsewhere.",
    "ModelInstanceGroup.count": "Instances on each device: how many batches run at the same time.",
    "ModelInstanceGroup.gpus": "The numbers of the CUDA devices; all, unless told.",
    "ModelInstanceGroup.passive": "Whether the instances are loaded and never get a request.",
    "ModelDynamicBatching.preferred_batch_size": (
        "A batch of one of these sizes is sent without waiting any longer. Others are sent when the delay is over. "
        "Leave it out, unless the model is known to be better at some sizes."
    ),
    "ModelDynamicBatching.max_queue_delay_microseconds": (
        "How long a request may wait for others to join its batch while an instance is free. 0: it does not wait. "
        "Waiting behind a busy instance is not counted."
    ),
    "ModelDynamicBatching.preserve_ordering": "Whether answers leave in the order in which the requests came.",
    "ModelDynamicBatching.priority_levels": (
        "How many priorities there are. Requests of priority 1 go before all of priority 2, and so on."
    ),
    "ModelDynamicBatching.default_priority_level": "The priority of requests that name none.",
    "ModelDynamicBatching.default_queue_policy": "How long the queue may be, and how long a request may wait.",
    "ModelDynamicBatching.priority_queue_policy": "The queue policy of single priorities, instead of the default one.",
    "ModelQueuePolicy.timeout_action": (
        "What becomes of a request that waited too long: REJECT answers with an error, DELAY lets all others go first."
    ),
    "ModelQueuePolicy.default_timeout_microseconds": "How long a request may wait. 0: for ever.",
    "ModelQueuePolicy.allow_timeout_override": "Whether a request may bring a shorter timeout of its own.",
    "ModelQueuePolicy.max_queue_size": "How many requests may wait; one more is refused. 0: any number.",
    "ModelSequenceBatching.direct": (
        "Each sequence gets a batch slot of an instance to itself until it ends. For models that keep state by slot."
    ),
    "ModelSequenceBatching.oldest": (
        "Each sequence gets an instance; batches are formed from the oldest requests of different sequences. For "
        "models that find their state by correlation ID, and for implicit state."
    ),
    "ModelSequenceBatching.max_sequence_idle_microseconds": (
        "A sequence that gets no request for so long loses its slot, as if it had ended. One second, unless told."
    ),
    "ModelSequenceBatching.control_input": "Tensors that tell the model of start, end, readiness and correlation ID.",
    "ModelSequenceBatching.state": "A tensor that the server keeps for each sequence: implicit state.",
    "ModelSequenceBatching.iterative_sequence": "Whether a request is run again until the model says it is done.",
    "ModelSequenceBatching.StrategyDirect.max_queue_delay_microseconds": (
        "How long a ready slot may wait for the others, while minimum_slot_utilization is not reached."
    ),
    "ModelSequenceBatching.StrategyDirect.minimum_slot_utilization": (
        "The share of slots, from 0 to 1, that must be ready for a batch to go before the delay is over."
    ),
    "ModelSequenceBatching.StrategyOldest.max_candidate_sequences": "How many sequences an instance has at once.",
    "ModelSequenceBatching.StrategyOldest.preferred_batch_size": "As in dynamic_batching.",
    "ModelSequenceBatching.StrategyOldest.max_queue_delay_microseconds": "As in dynamic_batching.",
    "ModelSequenceBatching.StrategyOldest.preserve_ordering": "Whether answers leave in the order of the requests.",
    "ModelVersionPolicy.latest": "Serve the versions with the highest numbers.",
    "ModelVersionPolicy.all": "Serve every version.",
    "ModelVersionPolicy.specific": "Serve the versions that are named.",
    "ModelVersionPolicy.Latest.num_versions": "How many of the newest versions are served.",
    "ModelVersionPolicy.Specific.versions": "The versions that are served.",
}  # fmt: skip

_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: "int32",
    FieldDescriptor.CPPTYPE_INT64: "int64",
    FieldDescriptor.CPPTYPE_UINT32: "uint32",
    FieldDescriptor.CPPTYPE_UINT64: "uint64",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_BOOL: "bool",
    FieldDescriptor.CPPTYPE_STRING: "string",
}


def schema() -> dict[str, dict[str, dict[str, Any]]]:
    """Every message of a configuration, by name without its package: its fields with type and help.

    A field has a ``type`` in words, the name of its ``message`` if it is one, and the ``values`` of an enum.
    """
    known: dict[str, dict[str, dict[str, Any]]] = {}
    _add(pb.ModelConfig.DESCRIPTOR, known)
    return known


def _add(message: Any, known: dict[str, dict[str, dict[str, Any]]]) -> None:
    name = _name(message)
    if name in known:
        return
    fields = known[name] = {}
    for field in message.fields:
        entry: dict[str, Any] = {"type": _type(field), "help": HELP.get(f"{name}.{field.name}", "")}
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
        kind = _TYPES[field.cpp_type]
    return f"repeated {kind}" if field.is_repeated else kind


def _name(descriptor: Any) -> str:
    return str(descriptor.full_name).removeprefix("inference.")
