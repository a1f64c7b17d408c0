"""Implicit state that stays in the memory of a device, from one request of a sequence to the next.

A new sequence begins with NumPy arrays. The state outputs of the model are tensors on the device, where they are
gathered and divided: copying them to the CPU and back costs more than many models. ONNX Runtime's own values on CUDA
cannot be concatenated, so they are tensors of PyTorch as well. States of strings pass through the CPU, as inputs do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from tritonnb.backends.batching import fail_mismatch, publish_states
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import BY_NUMBER, DATATYPES, INVALID, DataType
from tritonnb.core.messages import InferRequest
from tritonnb.core.protobuf import model_config_pb2 as pb

if TYPE_CHECKING:
    import onnxruntime as ort

#: The dtypes of tensors in PyTorch, by the name of the datatype in the configuration.
DTYPES: dict[str, torch.dtype] = {
    datatype.config_name: getattr(torch, datatype.torch)
    for datatype in DATATYPES
    if datatype.torch and datatype.in_torchscript
}


class DeviceStates:
    """The states of an instance that stay on its device; used on the instance's thread only.

    Parameters
    ----------
    config : inference.ModelConfig
    device : str
        ``"cuda"`` or ``"cpu"``.
    device_id : int
        Number of the GPU.

    Attributes
    ----------
    inputs : dict of str to DataType
        The datatypes of the state inputs by name.
    by_output : dict of str to str
        The name of the state input for each state output.
    """

    def __init__(self, config: pb.ModelConfig, device: str, device_id: int = 0) -> None:
        states = [
            (state, datatype)
            for state in config.sequence_batching.state
            if (datatype := BY_NUMBER.get(state.data_type, INVALID)).config_name in DTYPES
        ]
        self.inputs: dict[str, DataType] = {state.input_name: datatype for state, datatype in states}
        self.by_output: dict[str, str] = {state.output_name: state.input_name for state, _ in states}
        self._batching = config.max_batch_size > 0
        self._device = torch.device(device, device_id)

    def gather(self, execution: Execution) -> dict[str, torch.Tensor]:
        """Return the state inputs of a batch.

        They are copies, even for a single request: if a model writes to them and then fails, the states must not
        change. A request gets an error response if its state has another shape than the first request's state.
        """
        gathered: dict[str, torch.Tensor] = {}
        for name in self.inputs:
            rows = [self._on_device(_state(request, name)) for request in execution.requests]
            for index, row in enumerate(rows):
                # The batcher does not compare the shapes of states, as on Triton.
                if row.shape[1:] != rows[0].shape[1:]:
                    fail_mismatch(execution, index, name, row.shape, rows[0].shape)
                    rows[index] = torch.zeros_like(rows[0])
            gathered[name] = torch.cat(rows)
        if gathered and self._device.type == "cuda":
            # They may be read on another stream.
            torch.cuda.current_stream(self._device).synchronize()
        return gathered

    def publish(self, execution: Execution, produced: Mapping[str, torch.Tensor]) -> None:
        """Make each request's rows of the state outputs the next state of its sequence."""
        # Detached, since a module may return a parameter itself, which requires gradients even where no graph is
        # recorded.
        states = {name: produced[name].detach() for name in self.by_output}
        publish_states(execution, states, self._batching, torch.clone)

    def from_ort_value(self, value: ort.OrtValue) -> torch.Tensor:
        """Return a tensor that shares the memory of an ONNX Runtime value on the device."""
        tensor = from_dlpack(value)
        # ONNX Runtime exports booleans through DLPack as bytes.
        return tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor

    def _on_device(self, state: torch.Tensor | npt.NDArray[np.generic]) -> torch.Tensor:
        if isinstance(state, torch.Tensor):
            return state
        # `from_numpy` warns of read-only arrays, and initial states are read-only.
        return torch.from_numpy(np.require(state, requirements="W")).to(self._device)


def _state(request: InferRequest, name: str) -> npt.NDArray[np.generic]:
    assert request.states is not None
    return request.states.inputs[name].array
