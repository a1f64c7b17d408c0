"""Implicit state that stays on the device of its instance, from one request of a sequence to the next.

A new sequence begins with NumPy arrays. What its model answers with are tensors of the device, which are
gathered and divided there. States of strings go through the CPU, as inputs do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from tritonnb.backends.batching import fail_mismatch, publish_states
from tritonnb.backends.contract import Execution
from tritonnb.core.datatypes import BY_NUMBER, DataType
from tritonnb.model_config.schema import INVALID

#: What PyTorch can gather on every device.
DTYPES = {
    "TYPE_BOOL": torch.bool,
    "TYPE_UINT8": torch.uint8,
    "TYPE_INT8": torch.int8,
    "TYPE_INT16": torch.int16,
    "TYPE_INT32": torch.int32,
    "TYPE_INT64": torch.int64,
    "TYPE_FP16": torch.float16,
    "TYPE_FP32": torch.float32,
    "TYPE_FP64": torch.float64,
}


class DeviceStates:
    """The states of the sequences of one instance that stay on its device; used on the instance's thread.

    Parameters
    ----------
    config : inference.ModelConfig
    device : str
        ``"cuda"`` or ``"cpu"``.
    device_id : int
        The number of the GPU.

    Attributes
    ----------
    inputs : dict of str to DataType
        The state inputs.
    by_output : dict of str to str
        The input's name for each state output.
    """

    def __init__(self, config: Any, device: str, device_id: int = 0) -> None:
        states = [
            (each, datatype)
            for each in config.sequence_batching.state
            if (datatype := BY_NUMBER.get(each.data_type, INVALID)).config_name in DTYPES
        ]
        self.inputs: dict[str, DataType] = {each.input_name: datatype for each, datatype in states}
        self.by_output: dict[str, str] = {each.output_name: each.input_name for each, _ in states}
        self._batching = config.max_batch_size > 0
        self._device = torch.device(device, device_id)

    def gather(self, execution: Execution) -> dict[str, torch.Tensor]:
        """The state inputs of a batch.

        They are copies, even of a single request's: a model that writes them and then fails must leave the states
        as they were. A request whose state has another shape than the first one's is answered with an error.
        """
        gathered: dict[str, torch.Tensor] = {}
        for name in self.inputs:
            rows = [self._here(request.states.inputs[name].array) for request in execution.requests]
            for index, row in enumerate(rows):
                if row.shape[1:] != rows[0].shape[1:]:
                    fail_mismatch(execution, index, name, row.shape, rows[0].shape)
                    rows[index] = torch.zeros_like(rows[0])
            gathered[name] = torch.cat(rows)
        if gathered and self._device.type == "cuda":
            # Whoever reads them may do so on another stream.
            torch.cuda.current_stream(self._device).synchronize()
        return gathered

    def publish(self, execution: Execution, produced: Mapping[str, torch.Tensor]) -> None:
        """Make each request's rows of the state outputs the next state of its sequence."""
        states = {name: produced[name].detach() for name in self.by_output}
        publish_states(execution, states, self._batching, torch.clone)

    def adopt(self, value: Any) -> torch.Tensor:
        """An ONNX Runtime value of the device as a tensor that shares its memory."""
        tensor = from_dlpack(value)
        return tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor

    def _here(self, state: torch.Tensor | np.ndarray[Any, Any]) -> torch.Tensor:
        if isinstance(state, torch.Tensor):
            return state
        return torch.from_numpy(np.require(state, requirements="W")).to(self._device)
