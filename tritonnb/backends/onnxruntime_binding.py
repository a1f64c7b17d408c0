"""An ONNX Runtime session whose tensors are bound to a device.

Inputs are copied to the device and outputs back, once each. Implicit states stay on the device: PyTorch gathers and
divides them, and the session reads them without a copy. Strings cannot be bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from tritonnb.backends.execution import Execution
from tritonnb.core.errors import UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb

if TYPE_CHECKING:
    from tritonnb.backends.device_states import DeviceStates


class BoundSession:
    """Runs a session through an I/O binding.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
    run_options : onnxruntime.RunOptions
    config : inference.ModelConfig
        Its states stay on the device.
    device : str
        ``"cuda"``, or another device type that has the same name in ONNX Runtime and PyTorch.
    device_id : int

    Raises
    ------
    UnsupportedError
        If the model has states and PyTorch is not installed.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        run_options: ort.RunOptions,
        config: pb.ModelConfig,
        device: str,
        device_id: int,
    ) -> None:
        self._session = session
        self._run_options = run_options
        self._device = device
        self._device_id = device_id
        self._states = _device_states(config, device, device_id) if config.sequence_batching.state else None

    @property
    def states(self) -> Mapping[str, str]:
        """The states that stay on the device: the name of the state input for each state output."""
        return {} if self._states is None else self._states.by_output

    def run(
        self, execution: Execution, feeds: Mapping[str, npt.NDArray[np.generic]], outputs: Sequence[str]
    ) -> list[npt.NDArray[np.generic]]:
        """Run a batch and store its states.

        Parameters
        ----------
        execution : Execution
        feeds : mapping of str to array
            The inputs, except the states that stay on the device.
        outputs : sequence of str
            The outputs to copy to the CPU.

        Returns
        -------
        list of array
            In the order of ``outputs``.
        """
        binding, states = self._session.io_binding(), self._states
        for name, array in feeds.items():
            value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self._device, self._device_id)
            binding.bind_ortvalue_input(name, value)
        if states is not None:
            gathered = states.gather(execution)  # kept during the run, since the binding only has their addresses
            for name, tensor in gathered.items():
                dtype = states.inputs[name].numpy
                binding.bind_input(name, self._device, self._device_id, dtype, tuple(tensor.shape), tensor.data_ptr())
        names = list(dict.fromkeys((*outputs, *self.states)))
        for name in names:
            binding.bind_output(name, self._device, self._device_id)
        self._session.run_with_iobinding(binding, self._run_options)
        values = dict(zip(names, binding.get_outputs(), strict=True))
        if states is not None:
            states.publish(execution, {name: states.from_ort_value(values[name]) for name in states.by_output})
        return [values[name].numpy() for name in outputs]


def _device_states(config: pb.ModelConfig, device: str, device_id: int) -> DeviceStates:
    try:
        from tritonnb.backends.device_states import DeviceStates
    except ImportError as error:
        raise UnsupportedError(
            f"model '{config.name}': implicit state on the GPU requires PyTorch, which is not installed: "
            'pip install "tritonnb[gpu]"'
        ) from error
    return DeviceStates(config, device, device_id)
