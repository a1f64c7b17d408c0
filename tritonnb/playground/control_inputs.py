"""The control inputs that a stateful model gets with each execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tritonnb.core.events import RequestArrived
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.sequence_flags import SEQUENCE_END, SEQUENCE_START
from tritonnb.recording.recording import Recording

Control = pb.ModelSequenceBatching.Control
#: The value of each kind for a row: None is a null request.
_ROW: dict[int, Callable[[RequestArrived | None], Any]] = {
    Control.CONTROL_SEQUENCE_START: lambda row: bool(row and row.flags & SEQUENCE_START),
    Control.CONTROL_SEQUENCE_END: lambda row: bool(row and row.flags & SEQUENCE_END),
    Control.CONTROL_SEQUENCE_READY: lambda row: row is not None,
    Control.CONTROL_SEQUENCE_CORRID: lambda row: row.correlation_id if row else 0,
}
_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")


def control_inputs(recording: Recording, config: pb.ModelConfig) -> list[list[Any]]:
    """List the control inputs of each batch; empty without ``control_input`` in the configuration.

    Returns
    -------
    list of list
        Number of the batch, instance, and a dict from the name of each control tensor to its values, one for each row.

    Examples
    --------
    >>> from tritonnb.playground.presets import preset
    >>> from tritonnb.playground.session import simulate_scenario
    >>> rec = simulate_scenario(preset("control-inputs"))
    >>> control_inputs(rec, rec.configs["direct_stateful_model"])[0]
    [1, 'direct_stateful_model_0_0', {'START': [1.0], 'READY': [1.0]}]
    """
    controls = [
        (tensor.name, control) for tensor in config.sequence_batching.control_input for control in tensor.control
    ]
    if not controls:
        return []
    arrived = {event.serial: event for event in recording.events if isinstance(event, RequestArrived)}
    return [
        [
            batch.number,
            batch.instance,
            {
                name: [_value(control, arrived.get(serial or 0)) for serial in batch.requests]
                for name, control in controls
            },
        ]
        for batch in sorted(recording.batches, key=lambda batch: (batch.sent_ns, batch.number))
    ]


def _value(control: pb.ModelSequenceBatching.Control, row: RequestArrived | None) -> Any:
    value = _ROW[control.kind](row)
    configured = next((values for name in _VALUES if (values := getattr(control, name))), None)
    return value if configured is None else configured[value]
