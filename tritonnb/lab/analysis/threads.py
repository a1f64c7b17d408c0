"""The threads that the instances of a model use on the CPU, and the parameter that limits them."""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.core.protobuf import model_config_pb2 as pb

#: By backend, the parameter for the threads of one execution; without it, each uses as many as there are cores.
_PARAMETERS = {
    "onnxruntime": "intra_op_thread_count",
    "openvino": "INFERENCE_NUM_THREADS",
    "pytorch": "INTRA_OP_THREAD_COUNT",
}
#: The backend that a platform names.
_PLATFORMS = {"onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "pytorch", "torch_aoti": "pytorch"}


@dataclass(frozen=True)
class Threads:
    """Threads of several instances on the CPU; ``each`` is 0 if it is not configured."""

    parameter: str
    each: int
    instances: int

    def __str__(self) -> str:
        if self.each:
            return (
                f"{self.instances} instances x {self.each} threads ({self.parameter}) are "
                f"{self.instances * self.each} threads, which take turns on a machine with fewer cores: set "
                f"{self.parameter} to at most cores / {self.instances}, or fewer instances"
            )
        return (
            f"Each of {self.instances} instances on the CPU uses as many threads as the machine has cores, together "
            f"{self.instances} times as many: set parameters {{ key: \"{self.parameter}\" value {{ string_value: "
            f"\"N\" }} }} with N = cores / {self.instances}, or fewer instances"
        )  # fmt: skip


def threads_of(config: pb.ModelConfig) -> Threads | None:
    """Return the threads of a model with several instances on the CPU; None for other models and backends.

    Parameters
    ----------
    config : ModelConfig

    Examples
    --------
    >>> config = pb.ModelConfig(backend="onnxruntime")
    >>> _ = config.instance_group.add(count=4, kind=pb.ModelInstanceGroup.KIND_CPU)
    >>> str(threads_of(config))[:47]
    'Each of 4 instances on the CPU uses as many thr'
    >>> config.parameters["intra_op_thread_count"].string_value = "1"
    >>> threads_of(config) is None
    True
    """
    parameter = _PARAMETERS.get(config.backend or _PLATFORMS.get(config.platform, config.platform))
    instances = sum(
        max(1, group.count) for group in config.instance_group if group.kind == pb.ModelInstanceGroup.KIND_CPU
    )
    if parameter is None or instances < 2:
        return None
    text = config.parameters[parameter].string_value if parameter in config.parameters else ""
    each = int(text) if text.isdecimal() else 0
    # A thread for each instance is the least there is: only fewer instances would help.
    return None if each == 1 else Threads(parameter, each, instances)
