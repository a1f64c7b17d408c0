"""What a configuration says to ONNX Runtime: session, run and execution provider options.

Names and values are those of Triton's ONNX Runtime backend. What it knows is passed on; what cannot be
honoured here, or is misspelt in an accelerator, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnxruntime as ort

from tritonnb.backends.contract import InstanceSpec, ModelContext
from tritonnb.backends.parameters import integer_parameter
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError

#: ``optimization.graph.level`` to ONNX Runtime's levels; everything is on by default.
_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_CUDA, _TENSORRT, _OPENVINO = "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
_ACCELERATORS = {"gpu": {"cuda": _CUDA, "tensorrt": _TENSORRT}, "cpu": {"openvino": _OPENVINO}}

#: Parameters of the model that Triton passes to CUDA; numbers stand for words of ONNX Runtime.
_CUDA_PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "gpu_mem_limit": {},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "do_copy_in_default_stream": {},
}
_TENSORRT_PARAMETERS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse ``--backend-config=onnxruntime,…`` settings that cannot be honoured.

    Raises
    ------
    UnsupportedError
        If one of them is set.
    """
    if settings.get("enable-global-threadpool", "0") not in ("0", "false"):
        raise UnsupportedError(
            "enable-global-threadpool would bind every session of this process, also those that do not belong to the "
            "server; give intra_op_thread_count and inter_op_thread_count to the models instead"
        )


def session_options(context: ModelContext) -> ort.SessionOptions:
    """The options of a model's sessions.

    Raises
    ------
    InvalidArgumentError
        If an option has a value that it cannot have.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    level = context.config.optimization.graph.level
    options.graph_optimization_level = _GRAPH_LEVELS.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    parameters = context.parameters
    options.intra_op_num_threads = integer_parameter(context, "intra_op_thread_count", 0)
    options.inter_op_num_threads = integer_parameter(context, "inter_op_thread_count", 0)
    if integer_parameter(context, "execution_mode", 0):
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = bool(integer_parameter(context, "enable_mem_arena", 1))
    options.enable_mem_pattern = bool(integer_parameter(context, "enable_mem_pattern", 1))
    for name, value in parameters.items():
        if name.startswith("session."):
            options.add_session_config_entry(name, value)
    return options


def run_options(context: ModelContext) -> ort.RunOptions:
    """The options of each run."""
    options = ort.RunOptions()
    shrinkage = context.parameters.get("memory.enable_memory_arena_shrinkage")
    if shrinkage is not None:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
    return options


def providers(context: ModelContext, spec: InstanceSpec) -> list[Any]:
    """The execution providers of an instance with their options, first choice first.

    Raises
    ------
    InvalidArgumentError
        If an accelerator or a parameter of one is unknown.
    UnsupportedError
        If this ONNX Runtime does not have it.
    """
    config, on_gpu = context.config, spec.kind == "KIND_GPU"
    accelerators = config.optimization.execution_accelerators
    chosen: list[tuple[str, dict[str, str]]] = []
    for each in accelerators.gpu_execution_accelerator if on_gpu else accelerators.cpu_execution_accelerator:
        provider = _ACCELERATORS["gpu" if on_gpu else "cpu"].get(each.name)
        if provider is None:
            raise InvalidArgumentError(f"unknown Execution Accelerator '{each.name}' is requested")
        chosen.append((provider, _options(provider, dict(each.parameters))))
    if on_gpu and _CUDA not in [name for name, _ in chosen]:
        given = {name: value for name, value in context.parameters.items() if name in _CUDA_PARAMETERS}
        chosen.append((_CUDA, _options(_CUDA, given)))
    available = ort.get_available_providers()
    for name, options in chosen:
        if name not in available:
            raise UnsupportedError(
                f"model '{config.name}' asks for {name}, which this onnxruntime does not have: "
                'pip install "tritonnb[gpu]"'
            )
        if on_gpu:
            options["device_id"] = str(spec.device_id)
    return [*chosen, "CPUExecutionProvider"]


def _options(provider: str, given: Mapping[str, str]) -> dict[str, str]:
    if provider == _CUDA:
        return {name: _CUDA_PARAMETERS.get(name, {}).get(value, value) for name, value in given.items()}
    if provider == _TENSORRT:
        return _tensorrt_options(given)
    return dict(given)


def _tensorrt_options(given: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in given.items():
        if name == "precision_mode":
            if value not in _PRECISIONS:
                raise InvalidArgumentError(f"unsupported precision mode '{value}' is requested")
            options.update(_PRECISIONS[value])
        elif name in _TENSORRT_PARAMETERS:
            options[_TENSORRT_PARAMETERS[name]] = value
        elif name.startswith("trt_"):
            options[name] = value
        else:
            raise InvalidArgumentError(f"unknown parameter '{name}' is provided for TensorRT Execution Accelerator")
    return options
