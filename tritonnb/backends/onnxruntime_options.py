"""Options of a model configuration for ONNX Runtime: session, run and execution provider options.

Names and values are those of Triton's ONNX Runtime backend, and are passed on. Options that cannot be implemented here
and unknown options of an accelerator are errors.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnxruntime as ort

from tritonnb.backends.contract import InstanceSpec, ModelContext
from tritonnb.backends.model_checks import integer_parameter
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError

#: ONNX Runtime's levels by ``optimization.graph.level``; by default all optimizations are enabled.
_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_CUDA, _TENSORRT, _OPENVINO = "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
_ACCELERATORS = {"gpu": {"cuda": _CUDA, "tensorrt": _TENSORRT}, "cpu": {"openvino": _OPENVINO}}

#: Model parameters that Triton passes to the CUDA provider; ONNX Runtime takes names instead of the numbers.
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


def session_options(context: ModelContext) -> ort.SessionOptions:
    """Return the options of a model's sessions.

    Raises
    ------
    InvalidArgumentError
        If an option has an invalid value.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    level = context.config.optimization.graph.level
    options.graph_optimization_level = _GRAPH_LEVELS.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.intra_op_num_threads = integer_parameter(context, "intra_op_thread_count", 0)
    options.inter_op_num_threads = integer_parameter(context, "inter_op_thread_count", 0)
    if integer_parameter(context, "execution_mode", 0):
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = bool(integer_parameter(context, "enable_mem_arena", 1))
    options.enable_mem_pattern = bool(integer_parameter(context, "enable_mem_pattern", 1))
    for name, value in context.parameters.items():
        if name.startswith("session."):
            options.add_session_config_entry(name, value)
    return options


def run_options(context: ModelContext) -> ort.RunOptions:
    """Return the options of every run of a model's sessions."""
    options = ort.RunOptions()
    shrinkage = context.parameters.get("memory.enable_memory_arena_shrinkage")
    if shrinkage is not None:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
    return options


def providers(context: ModelContext, spec: InstanceSpec) -> list[str | tuple[str, dict[str, str]]]:
    """Return the execution providers of an instance with their options, in order of preference.

    Raises
    ------
    InvalidArgumentError
        If an accelerator, or one of its parameters, is unknown.
    UnsupportedError
        If the installed ONNX Runtime does not have the provider.
    """
    config, on_gpu = context.config, spec.kind == "KIND_GPU"
    accelerators = config.optimization.execution_accelerators
    providers_with_options: list[tuple[str, dict[str, str]]] = []
    requested = accelerators.gpu_execution_accelerator if on_gpu else accelerators.cpu_execution_accelerator
    for accelerator in requested:
        provider = _ACCELERATORS["gpu" if on_gpu else "cpu"].get(accelerator.name)
        if provider is None:
            raise InvalidArgumentError(f"unknown Execution Accelerator '{accelerator.name}' is requested")
        providers_with_options.append((provider, _options(provider, dict(accelerator.parameters))))
    if on_gpu and _CUDA not in [name for name, _ in providers_with_options]:
        parameters = {name: value for name, value in context.parameters.items() if name in _CUDA_PARAMETERS}
        providers_with_options.append((_CUDA, _options(_CUDA, parameters)))
    available = ort.get_available_providers()
    for name, options in providers_with_options:
        if name not in available:
            raise UnsupportedError(
                f"model '{config.name}': expected an onnxruntime with {name}, got {', '.join(available)}: "
                'pip install "tritonnb[gpu]"'
            )
        if on_gpu:
            options["device_id"] = str(spec.device_id)
    return [*providers_with_options, "CPUExecutionProvider"]


def _options(provider: str, parameters: Mapping[str, str]) -> dict[str, str]:
    if provider == _CUDA:
        return {name: _CUDA_PARAMETERS.get(name, {}).get(value, value) for name, value in parameters.items()}
    if provider == _TENSORRT:
        return _tensorrt_options(parameters)
    return dict(parameters)


def _tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parameters.items():
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
