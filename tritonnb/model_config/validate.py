"""The rules for a configuration: `validate` and `check_tensors`.

Messages and their order are Triton's (``ValidateModelConfig``). Tensors are checked later, when a version of the model
is created, since its backend may still complete them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import element_count
from tritonnb.model_config.backend_selection import ENSEMBLE, check_backend
from tritonnb.model_config.ensemble import check_ensemble_scheduling

Control = pb.ModelSequenceBatching.Control
_CORRID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_FLAG_KINDS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")
#: The limits of instances of a model, each of which has a thread, and of their batch slots.
_MAX_INSTANCES, _MAX_SLOTS = 4096, 1 << 18
#: The limit of the requests of a warm-up sample.
_MAX_SAMPLE_SIZE = 1 << 16
_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")
_ALTERNATIVES = "'int32_false_true', 'fp32_false_true' {} 'bool_false_true'"


def validate(config: pb.ModelConfig) -> None:
    """Check everything but the tensors.

    Raises
    ------
    InvalidArgumentError
        For the first rule that is violated.
    """
    check_backend(config)
    check_scheduling(config)
    if config.platform == ENSEMBLE or config.HasField("ensemble_scheduling"):
        check_ensemble_scheduling(config)
    _check_metrics(config)
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        raise InvalidArgumentError(
            f"Response Cache does not currently support model {config.name} with 'decoupled' transaction "
            "policy. Please disable the response cache."
        )


def check_scheduling(config: pb.ModelConfig) -> None:
    """Check only what schedulers use; the configuration may lack everything else.

    Raises
    ------
    InvalidArgumentError
        For the first rule that is violated.
    """
    if config.max_batch_size < 0:
        raise _error(config, "'max_batch_size' must be non-negative value")
    _check_extent(config)
    if config.HasField("dynamic_batching"):
        _check_dynamic_batching(config)
    if config.HasField("sequence_batching"):
        _check_sequence_batching(config)


def _check_extent(config: pb.ModelConfig) -> None:
    """Refuse numbers of which the server would make as many objects; a client may send them in a load request.

    On Triton they exhaust the machine.
    """
    instances = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    if instances > _MAX_INSTANCES:
        raise _error(config, f"instance_group expected at most {_MAX_INSTANCES} instances, got {instances},")
    for sample in config.model_warmup:
        if sample.batch_size > _MAX_SAMPLE_SIZE:
            complaint = f"model_warmup '{sample.name}' expected a batch_size of at most {_MAX_SAMPLE_SIZE}"
            raise _error(config, f"{complaint}, got {sample.batch_size},")
    if not config.HasField("sequence_batching"):
        return
    slots = config.sequence_batching.oldest.max_candidate_sequences or config.max_batch_size
    if slots * max(1, instances) > _MAX_SLOTS:
        raise _error(
            config,
            f"sequence_batching expected at most {_MAX_SLOTS} batch slots (max_candidate_sequences of the oldest "
            f"strategy or max_batch_size, times the instances), got {slots * max(1, instances)},",
        )


def _error(config: pb.ModelConfig, complaint: str) -> InvalidArgumentError:
    """Return the error for a violated rule, in Triton's form."""
    return InvalidArgumentError(f"{complaint} for {config.name}")


def _check_metrics(config: pb.ModelConfig) -> None:
    """Check ``model_metrics`` by the rules of releases that have it."""
    for control in config.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise InvalidArgumentError("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise InvalidArgumentError("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise InvalidArgumentError("metric control must specify 'histogram_options'")
        if not control.histogram_options.buckets:
            raise InvalidArgumentError("histogram options must specify non-empty 'buckets'")


def _check_dynamic_batching(config: pb.ModelConfig) -> None:
    batching = config.dynamic_batching
    _check_preferred(batching.preferred_batch_size, config, "dynamic batching preferred size")
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            raise _error(config, f"default priority level must be in range [1, {levels}]")
        if any(not 1 <= level <= levels for level in batching.priority_queue_policy):
            raise _error(config, f"priority queue policy must have priority level in range [1, {levels}]")
    if not batching.preserve_ordering:
        return
    if levels > 1:
        raise _error(config, "Only one priority level is allowed when 'preserve_ordering' is true")
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.default_timeout_microseconds and policy.timeout_action == pb.ModelQueuePolicy.DELAY:
            raise _error(config, "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true")


def _check_preferred(sizes: Sequence[int], config: pb.ModelConfig, what: str) -> None:
    for size in sizes:
        if size <= 0:
            raise _error(config, f"{what} must be positive")
        if size > config.max_batch_size:
            raise _error(config, f"{what} must be <= max batch size")


def _check_sequence_batching(config: pb.ModelConfig) -> None:
    name, sequence = config.name, config.sequence_batching
    if config.response_cache.enable:
        raise InvalidArgumentError(
            f"Response Cache does not currently support model {name} with sequence batching scheduler. "
            "Please disable the response cache."
        )
    for kind in _FLAG_KINDS:
        _check_flag_control(config, kind)
    _check_correlation_control(config)
    if sequence.HasField("oldest"):
        sizes = sequence.oldest.preferred_batch_size
        _check_preferred(sizes, config, "sequence batching preferred batch size")
    if sequence.HasField("direct"):
        utilization = sequence.direct.minimum_slot_utilization
        if utilization < 0.0 or utilization > 1.0:
            raise _error(config, "sequence batching minimum slot utilization must be in range (0.0, 1.0]")


def _controls(config: pb.ModelConfig, kind: str) -> Iterator[pb.ModelSequenceBatching.Control]:
    """Yield the controls of a kind; checks their names, and that there is only one."""
    seen: set[str] = set()
    is_specified = False
    for tensor in config.sequence_batching.control_input:
        if not tensor.name:
            raise _error(config, "sequence batching control tensor must have a name")
        if tensor.name in seen:
            raise _error(
                config, f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds"
            )
        seen.add(tensor.name)
        for control in tensor.control:
            if control.kind != Control.Kind.Value(kind):
                continue
            if is_specified:
                raise _error(config, f"sequence batching specifies multiple {kind} tensors")
            is_specified = True
            yield control


def _check_flag_control(config: pb.ModelConfig, kind: str) -> None:
    for control in _controls(config, kind):
        specified = [field for field in _VALUES if getattr(control, field)]
        if not specified:
            raise _error(config, f"sequence batching must specify either {_ALTERNATIVES.format('or')} for {kind}")
        if len(specified) > 1:
            raise _error(
                config, f"sequence batching specifies more than one from {_ALTERNATIVES.format('and')} for {kind}"
            )
        if len(getattr(control, specified[0])) != 2:
            raise _error(config, f"sequence batching control '{specified[0]}' must have exactly 2 entries for {kind}")


def _check_correlation_control(config: pb.ModelConfig) -> None:
    kind = "CONTROL_SEQUENCE_CORRID"
    control = None
    for control in _controls(config, kind):
        if any(getattr(control, field) for field in _VALUES):
            raise _error(config, f"sequence batching must not specify either {_ALTERNATIVES.format('or')} for {kind}")
    if control is not None and control.data_type not in [pb.DataType.Value(name) for name in _CORRID_TYPES]:
        raise InvalidArgumentError(
            f"unexpected data type for control {kind} for {config.name}. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def check_batch_tensors(config: pb.ModelConfig, takes_batch_tensors: bool) -> None:
    """Reject ``batch_input`` and ``batch_output`` for a backend that does not support them.

    Raises
    ------
    UnsupportedError
        If the configuration has them.
    """
    if not takes_batch_tensors and (config.batch_input or config.batch_output):
        raise UnsupportedError(
            f"model '{config.name}': the backend '{config.backend}' does not support 'batch_input' and 'batch_output'"
        )


def find_oddities(config: pb.ModelConfig) -> Iterator[str]:
    """Find oddities among the tensors of a complete configuration, and their remedies.

    Examples
    --------
    >>> list(find_oddities(pb.ModelConfig(input=[{"name": "X"}, {"name": "X"}], output=[{"name": "Y"}])))
    ["input 'X' is declared 2 times: remove one of them, or rename it"]
    """
    for kind, result in (("input", "it gets no data"), ("output", "its responses are empty")):
        tensors = getattr(config, kind)
        if not tensors:
            yield f"the configuration has no {kind}, so that {result}: add `{kind} {{ name: … data_type: … dims: … }}`"
        for name, count in Counter(tensor.name for tensor in tensors).items():
            if count > 1:
                yield f"{kind} '{name}' is declared {count} times: remove one of them, or rename it"


_TENSORRT = "tensorrt_plan"
_IMAGE_FORMATS = (pb.ModelInput.FORMAT_NHWC, pb.ModelInput.FORMAT_NCHW)


def check_tensors(config: pb.ModelConfig) -> None:
    """Check names, types, dims and reshapes of all inputs and outputs, and batch inputs and outputs.

    Raises
    ------
    InvalidArgumentError
        For the first rule that is violated.
    """
    for tensor in config.input:
        _check_tensor(tensor, "model input", config)
        if tensor.format in _IMAGE_FORMATS and len(tensor.dims) != 3:
            raise _error(config, "model input NHWC/NCHW require 3 dims")
        _check_tensorrt_only(tensor, config)
    for tensor in config.output:
        _check_tensor(tensor, "model output", config)
        _check_tensorrt_only(tensor, config)
    for batch_input in config.batch_input:
        _check_batch_entry(batch_input, "input", pb.BatchInput.Kind, config)
    for batch_output in config.batch_output:
        _check_batch_entry(batch_output, "output", pb.BatchOutput.Kind, config)
        _check_targets(batch_output, config)


def _check_tensor(tensor: pb.ModelInput | pb.ModelOutput, what: str, config: pb.ModelConfig) -> None:
    def error(complaint: str) -> InvalidArgumentError:
        return _error(config, f"{what} {complaint}")

    if not tensor.name:
        raise error("must specify 'name'")
    name = f"'{tensor.name}'"
    if tensor.data_type == pb.TYPE_INVALID:
        raise error(f"{name} must specify 'data_type'")
    if not tensor.dims:
        raise error(f"{name} must specify 'dims'")
    reshaped = tensor.HasField("reshape")
    if reshaped and not tensor.reshape.shape and not config.max_batch_size:
        raise error(f"{name} cannot have empty reshape for non-batching model as scalar tensors are not supported")
    for dims, words in ((tensor.dims, "dimension"), (tensor.reshape.shape, "reshape dimensions")):
        if any(dim < 1 and dim != -1 for dim in dims):
            raise error(f"{name} {words} must be integer >= 1, or -1 to indicate a variable-size dimension")
    if reshaped:
        _check_reshape(list(tensor.dims), list(tensor.reshape.shape), name, error)


def _check_reshape(dims: list[int], shape: list[int], name: str, error: Callable[[str], InvalidArgumentError]) -> None:
    different = error(f"{name} has different size for dims and reshape")
    if -1 not in dims and -1 not in shape:
        if element_count(dims) != element_count(shape):
            raise different
        return
    if dims.count(-1) != shape.count(-1):
        # Only a shape without variable dimensions has a definite size.
        if -1 not in dims or -1 not in shape:
            raise different
        raise error(f"{name} has different number of variable-size dimensions for dims and reshape")
    if _products(dims) != _products(shape):
        raise different


def _products(dims: list[int]) -> list[int]:
    """Return the products of the dimensions between variable dimensions."""
    products = [1]
    for dim in dims:
        if dim == -1:
            products.append(1)
        else:
            products[-1] *= dim
    return products


def _check_tensorrt_only(tensor: pb.ModelInput | pb.ModelOutput, config: pb.ModelConfig) -> None:
    if tensor.is_shape_tensor and config.platform != _TENSORRT:
        raise _error(config, "shape tensors are only supported for TensorRT platform")
    if tensor.is_non_linear_format_io and config.platform != _TENSORRT:
        raise _error(config, "Non-linear IO format is only supported for the TensorRT platform")


def _check_batch_entry(
    entry: pb.BatchInput | pb.BatchOutput, what: str, kinds: EnumTypeWrapper, config: pb.ModelConfig
) -> None:
    is_python, is_input = config.backend == "python", what == "input"
    if entry.kind not in kinds.values():
        if is_python:
            raise InternalError("attempt to access JSON non-string as string")
        raise _error(config, f"unknown batch {what} kind ''")
    if is_python and is_input and entry.data_type == pb.TYPE_INVALID:
        # Triton's Python backend reads the list before core does, and has its own message.
        raise InvalidArgumentError("unexpected batch input data type 'TYPE_INVALID'")
    if len(entry.source_input) != 1:
        count = len(entry.source_input)
        raise _error(config, f"batch {what} kind '{kinds.Name(entry.kind)}' expects 1 source input, got {count}")
    if is_input and entry.data_type not in (pb.TYPE_INT32, pb.TYPE_FP32):
        raise _error(config, "batch input data type must be TYPE_INT32 or TYPE_FP32")
    (source,) = entry.source_input
    if source not in [tensor.name for tensor in config.input]:
        raise _error(config, f"unknown source input name '{source}'")


def _check_targets(batch_output: pb.BatchOutput, config: pb.ModelConfig) -> None:
    outputs = {output.name for output in config.output}
    seen: set[str] = set()
    for target in batch_output.target_name:
        if target not in outputs:
            raise _error(config, f"unknown target output name '{target}'")
        if target in seen:
            raise _error(config, f"target output name '{target}' can only be specified once")
        seen.add(target)
    if not batch_output.target_name:
        # Triton crashes on this one.
        raise _error(config, "batch output must specify 'target_name'")
