"""The OpenVINO backend: ``backend: "openvino"``.

Runs OpenVINO IR (*model.xml* with *model.bin*, the default), ONNX, TensorFlow SavedModel, TensorFlow Lite and
PaddlePaddle files; ``default_model_filename`` names a file of another format. Parameters, auto-completion and checks
follow Triton's OpenVINO backend. The instances of a model share one compiled model, and each has its own infer request.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import openvino as ov

from tritonnb.backends import model_checks
from tritonnb.backends.batching import append_zeros
from tritonnb.backends.configured_tensors import ConfiguredTensors
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.devices import CPU, memory_growth
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import BF16, BYTES, DATATYPES, FP64
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import fits
from tritonnb.model_config.schema import ModelSpec, TensorSpec

MODEL_FILE = "model.xml"

#: The element types of Triton's OpenVINO backend; it has neither FP64 nor BF16 nor strings.
_ELEMENTS = {datatype: ov.Type(datatype.numpy) for datatype in DATATYPES if datatype not in (FP64, BF16, BYTES)}
_DATATYPES = {element.get_type_name(): datatype for datatype, element in _ELEMENTS.items()}

#: The parameters that are properties of a device: a pattern of the values in upper case, and its description.
_DEVICE_PARAMETERS = {
    "INFERENCE_NUM_THREADS": (r"\d+", "a non-negative number"),
    "COMPILATION_NUM_THREADS": (r"\d+", "a non-negative number"),
    "HINT_BF16": ("YES", "YES"),
    "NUM_STREAMS": (r"AUTO|NUMA|\d+", "either AUTO/NUMA/<int_value>"),
    "PERFORMANCE_HINT": ("LATENCY|(CUMULATIVE_)?THROUGHPUT", "LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT"),
}


class OpenVinoBackend(Backend):
    """The backend for *model.xml* files and the other formats that OpenVINO reads."""

    name = "openvino"

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig:
        """Add the tensors, and batching if the layouts of all tensors in the file name a batch dimension."""
        config = context.config
        model = read_model(ov.Core(), context)
        has_batch = has_batch_layout(model)
        model_checks.complete_config(
            config,
            map(model_tensor, model.inputs),
            map(model_tensor, model.outputs),
            # Many models have no layouts: with a configured max_batch_size they batch nevertheless.
            batching=has_batch or config.max_batch_size > 0,
            default_max_batch_size=max(1, context.default_max_batch_size),
        )
        if has_batch and config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
        return config

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return OpenVinoModel(context)


class OpenVinoModel(BackendModel):
    """One compiled model, which the instances share."""

    def initialize(self) -> None:
        """Read the file, check the configuration against it, and compile it."""
        context = self.context
        self.tensors = ConfiguredTensors(context.config, takes_ragged=False)
        self.pads_batches = is_yes(context, "ENABLE_BATCH_PADDING")
        device = context.parameters.get("TARGET_DEVICE", "").upper() or "CPU"
        extension = context.parameters.get("CPU_EXTENSION_PATH", "")
        # Before the file is read, so that a wrong parameter of a large model fails at once.
        _check_config(context)
        properties = device_properties(context)
        # One core for each model, since an extension reaches every model of its core.
        core = ov.Core()
        with memory_growth(CPU) as self.memory:
            if extension:
                with errors_in(" loading custom CPU extensions"):
                    core.add_extension(extension)
            model = prepare_model(read_model(core, context), context, self.tensors.spec, self.pads_batches)
            with errors_in("loading model"):
                _check_device_properties(core, context, device, properties)
                self.compiled = core.compile_model(model, device, properties)

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance with its own infer request."""
        if spec.kind != "KIND_CPU":
            raise InvalidArgumentError(
                f"unable to load model '{self.context.name}', Triton OpenVINO backend supports only Kind CPU and AUTO"
            )
        return OpenVinoInstance(self)

    def finalize(self) -> None:
        """Release the compiled model."""
        del self.compiled


class OpenVinoInstance(BackendModelInstance):
    """One infer request."""

    thread_agnostic = True

    def __init__(self, model: OpenVinoModel) -> None:
        self._model = model
        self._max_batch_size = model.tensors.spec.max_batch_size
        # Asked of the compiled model, because operations of the graph can fix the size in spite of a variable input.
        self._has_fixed_batch_size = self._max_batch_size > 0 and model.compiled.input(0).partial_shape[0].is_static

    def initialize(self) -> None:
        """Create the infer request."""
        with errors_in("creating infer request object"):
            self._request = self._model.compiled.create_infer_request()
        self.memory, self._model.memory = self._model.memory, {CPU: 0}  # the first instance reports it

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        padding = self._padding(execution.size)
        tensors = self._model.tensors
        gathered = tensors.gather(execution, tensors.spec.inputs)
        feeds = {name: append_zeros(array, padding) for name, array in gathered.items()}
        execution.compute_started()
        with errors_in("running inference"):
            # Without copies: the arrays live until the responses have been copied.
            self._request.infer(feeds, share_inputs=True, share_outputs=True)
        execution.compute_ended()
        tensors.respond(execution, {name: self._output(name, execution.size, padding) for name in tensors.spec.outputs})

    def finalize(self) -> None:
        """Release the infer request."""
        del self._request

    def _padding(self, rows: int) -> int:
        """Return the number of rows of zeros that the batch needs."""
        missing = self._max_batch_size - rows
        # Without batching there are no rows to count.
        if not self._max_batch_size or not missing:
            return 0
        if self._model.pads_batches:
            return missing
        if self._has_fixed_batch_size:
            raise InternalError(
                f"expected requests with batch size '{self._max_batch_size}', got '{rows}'... this error can be "
                "avoided by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance "
                "cost."
            )
        return 0

    def _output(self, name: str, rows: int, padding: int) -> npt.NDArray[Any]:
        # A view of the request's memory, which the next batch overwrites; responses are copied before that.
        array: npt.NDArray[Any] = self._request.get_tensor(name).data
        if self._max_batch_size and (not array.ndim or array.shape[0] != rows + padding):
            raise InternalError(
                f"expected the batch size of openvino model output to be {rows + padding}, got "
                f"{array.shape[0] if array.ndim else 0} (output '{name}')"
            )
        return array


def _check_config(context: ModelContext) -> None:
    """Refuse tensors that Triton's OpenVINO backend does not pass to the model."""
    sequences = context.config.sequence_batching
    kinds = {
        "control_input": [control.name for control in sequences.control_input],
        "state": [state.input_name for state in sequences.state],
    }
    for kind, names in kinds.items():
        if names:
            raise UnsupportedError(
                f"model '{context.name}': expected sequence_batching without {kind}, got '{names[0]}': as on Triton, "
                "the openvino backend does not pass it to the model; use the onnxruntime or the python backend"
            )


def is_yes(context: ModelContext, name: str) -> bool:
    """Return whether a parameter of a model is YES; as on Triton, every other value means no."""
    return context.parameters.get(name, "").lower() == "yes"


def device_properties(context: ModelContext) -> dict[str, Any]:
    """Return the parameters of a model that are properties of its device.

    Raises
    ------
    InvalidArgumentError
        If a parameter has an invalid value.
    """
    properties: dict[str, Any] = {}
    for name, (pattern, expected) in _DEVICE_PARAMETERS.items():
        value = context.parameters.get(name, "").upper()
        if not value:
            continue
        # Checked here for Triton's texts, and before a large file is read.
        if not re.fullmatch(pattern, value):
            raise InvalidArgumentError(f"expected the parameter '{name}' to be {expected}, got {value.lower()}")
        # OpenVINO has no property of this name; the precision is a hint there.
        if name == "HINT_BF16":
            properties["INFERENCE_PRECISION_HINT"] = "bf16"
        else:
            properties[name] = int(value) if name.endswith("_THREADS") else value
    return properties


def _check_device_properties(core: ov.Core, context: ModelContext, device: str, properties: dict[str, Any]) -> None:
    """Refuse properties that the device lacks: devices of different versions of OpenVINO have different properties."""
    supported = core.get_property(device, "SUPPORTED_PROPERTIES")
    for name in properties:
        if name not in supported:
            raise UnsupportedError(
                f"model '{context.name}': parameter '{name}' expected a property of device {device}, which in OpenVINO "
                f"{ov.__version__.partition('-')[0]} has none of that name; remove the parameter"
            )


@contextlib.contextmanager
def errors_in(activity: str) -> Iterator[None]:
    """Convert exceptions of OpenVINO, which are a `RuntimeError`, to Triton's error."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise InternalError(f"openvino error in {activity} : {text}") from error


def read_model(core: ov.Core, context: ModelContext) -> ov.Model:
    """Read the model file.

    Raises
    ------
    UnavailableError
        If it does not exist.
    InternalError
        If OpenVINO cannot read it.
    """
    path = model_checks.find_model_file(context, MODEL_FILE, may_be_directory=True, error=UnavailableError)
    with errors_in(f"reading model '{path}'"):
        return core.read_model(path)


def port_name(port: Any) -> str:
    """Return the name of an input or output.

    Raises
    ------
    InvalidArgumentError
        If it has none.
    """
    # ONNX and IR files nearly always have names; a graph that was built in Python may have none.
    if not port.names:
        raise InvalidArgumentError(
            f"tensor of node '{port.node.friendly_name}': expected a name, got none; save the model with named tensors"
        )
    name: str = port.any_name
    return name


def has_batch_layout(model: ov.Model) -> bool:
    """Return whether the layouts of all inputs and outputs name a batch dimension."""
    layouts = (ov.layout_helpers.get_layout(port) for port in (*model.inputs, *model.outputs))
    return all(ov.layout_helpers.has_batch(layout) for layout in layouts)


def model_tensor(port: Any) -> model_checks.ModelTensor:
    """Return an input or output of the model.

    Parameters
    ----------
    port : openvino.Output

    Raises
    ------
    InvalidArgumentError
        If it has no name, a variable rank, or an element type that Triton's backend does not have.
    """
    name, shape = port_name(port), port.partial_shape
    element = port.element_type.get_type_name()
    if element not in _DATATYPES:
        raise InvalidArgumentError(f"tensor '{name}': expected one of the types {', '.join(_DATATYPES)}, got {element}")
    if shape.rank.is_dynamic:
        raise InvalidArgumentError(f"tensor '{name}': expected a fixed number of dimensions, got {shape}")
    dims = tuple(dim.get_length() if dim.is_static else -1 for dim in shape)
    return model_checks.ModelTensor(name, _DATATYPES[element], dims)


def prepare_model(model: ov.Model, context: ModelContext, spec: ModelSpec, pads_batches: bool) -> ov.Model:
    """Check the configured tensors, and give the model their datatypes and batch size.

    With ``RESHAPE_IO_LAYERS``, its inputs also get their dims.

    Parameters
    ----------
    model : openvino.Model
    context : ModelContext
    spec : ModelSpec
        The tensors of the configuration. As on Triton, a datatype other than the model's is converted.
    pads_batches : bool
        Whether every batch has ``max_batch_size`` rows.

    Returns
    -------
    openvino.Model

    Raises
    ------
    InvalidArgumentError, InternalError
        If the configuration does not fit the model.
    """
    inputs, outputs = _by_name(model.inputs), _by_name(model.outputs)
    reshape = is_yes(context, "RESHAPE_IO_LAYERS")
    model_checks.check_input_count(context.name, len(spec.inputs), len(model.inputs))
    for name, tensor in spec.inputs.items():
        port = model_checks.find_tensor(name, inputs, "input")
        _check_datatype(context, tensor, "input")
        if not reshape:
            _check_input_dims(spec, tensor, model_tensor(port).shape)
    for name, tensor in spec.outputs.items():
        model_checks.find_tensor(name, outputs, "output")
        _check_datatype(context, tensor, "output")
    # Conversion first: it may insert operations at the inputs, to which the batch size then applies.
    model = _convert(model, spec)
    if reshape:
        _reshape(model, spec)
    if spec.max_batch_size:
        is_fixed = pads_batches or is_yes(context, "SKIP_OV_DYNAMIC_BATCHSIZE")
        _set_batch_size(model, spec, is_fixed)
    for name, tensor in spec.outputs.items():
        # After the batch size of the inputs was set.
        expected, shape = _full_shape(spec, tensor), model_tensor(model.output(name)).shape
        if not fits(expected, shape):
            raise model_checks.shape_error(spec.name, name, shape, expected, spec.max_batch_size > 0)
    return model


def _by_name(ports: Any) -> dict[str, Any]:
    """Return the inputs or outputs by name; a port can have several names."""
    return {name: port for port in ports if port_name(port) for name in port.names}


def _check_datatype(context: ModelContext, tensor: TensorSpec, kind: str) -> None:
    datatype = tensor.datatype
    if datatype not in _ELEMENTS:
        raise InternalError(
            f"unsupported datatype {datatype.config_name} for {kind} '{tensor.name}' for model '{context.name}'"
        )


def _check_input_dims(spec: ModelSpec, tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    """Check the dims of an input; -1 in the configuration of a model that batches fits every dim, as on Triton."""
    batching = spec.max_batch_size > 0
    dims = tensor.backend_dims
    is_same = len(shape) == len(dims) + batching and all(
        provided in (-1, configured) or (batching and configured == -1)
        for configured, provided in zip(dims, shape[batching:], strict=True)
    )
    if not is_same:
        raise model_checks.shape_error(spec.name, tensor.name, shape, _full_shape(spec, tensor), batching)


def _full_shape(spec: ModelSpec, tensor: TensorSpec) -> tuple[int, ...]:
    batch = (spec.max_batch_size,) if spec.max_batch_size else ()
    return (*batch, *tensor.backend_dims)


def _convert(model: ov.Model, spec: ModelSpec) -> ov.Model:
    processor = ov.preprocess.PrePostProcessor(model)
    for tensors, find in ((spec.inputs, processor.input), (spec.outputs, processor.output)):
        for name, tensor in tensors.items():
            with errors_in(f"setting precision for {name}"):
                find(name).tensor().set_element_type(_ELEMENTS[tensor.datatype])
    with errors_in("apply model input preprocessing"):
        return processor.build()


def _reshape(model: ov.Model, spec: ModelSpec) -> None:
    batch = [-1] if spec.max_batch_size else []
    shapes = {name: ov.PartialShape([*batch, *tensor.backend_dims]) for name, tensor in spec.inputs.items()}
    with errors_in(f"setting shape for {', '.join(shapes)}"):
        model.reshape(shapes)


def _set_batch_size(model: ov.Model, spec: ModelSpec, is_fixed: bool) -> None:
    """Make the first dimension of every input variable, or ``max_batch_size`` if it is fixed.

    Operations of the model that fix the batch size of an output also fix the batch size of its inputs.
    """
    for name in spec.inputs:
        with errors_in(f"setting layout for {name}"):
            # `set_batch` finds the dimension by the layout, which most files do not have.
            model.input(name).node.set_layout(ov.Layout("N..."))
    with errors_in("setting max batch size"):
        # Triton compiles for exactly `max_batch_size` rows, so that almost every batch of a dynamic batcher fails or is
        # padded.
        ov.set_batch(model, -1)
        if is_fixed or any(model_tensor(model.output(name)).shape[:1] != (-1,) for name in spec.outputs):
            ov.set_batch(model, spec.max_batch_size)
