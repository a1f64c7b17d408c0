"""The rules for ``ensemble_scheduling`` that need no look at other models.

An ensemble's tensors must form a graph in which every step can run, every output is written, and
nothing is made in vain.
"""

from __future__ import annotations

from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.identity import ENSEMBLE


def check_ensemble_scheduling(config: Any) -> None:
    """Check the configuration of an ensemble, and that only an ensemble has one.

    Raises
    ------
    InvalidArgumentError
    """
    name = config.name
    if config.platform != ENSEMBLE:
        raise InvalidArgumentError(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
        )
    if not config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(
            f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
        )
    if config.instance_group:
        raise InvalidArgumentError(f"instance group should not be specified for ensemble '{name}'")
    if config.HasField("optimization"):
        raise InvalidArgumentError(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise InvalidArgumentError(f"model_warmup can not be specified for ensemble '{name}'")
    steps = config.ensemble_scheduling.step
    if not steps:
        raise InvalidArgumentError(f"must specify 'step' for ensemble '{name}'")
    _check_steps(name, steps)
    _check_graph(config)


def _check_steps(name: str, steps: Any) -> None:
    written: set[str] = set()
    for index, step in enumerate(steps):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise InvalidArgumentError(f"must specify '{field}' in step {index} of ensemble '{name}'")
        for tensor in step.output_map.values():
            if tensor in written:
                raise InvalidArgumentError(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' "
                    f"step {index}"
                )
            written.add(tensor)


def _check_graph(config: Any) -> None:
    name, steps = config.name, config.ensemble_scheduling.step
    inputs = [each.name for each in config.input]
    outputs = [each.name for each in config.output]
    read = {tensor for step in steps for tensor in step.input_map.values()}
    writer = {tensor: step for step in steps for tensor in step.output_map.values()}
    known = read | writer.keys()
    for tensor in inputs:
        if tensor not in known:
            raise InvalidArgumentError(f"ensemble input '{tensor}' for ensemble {name}' is not used")
    for tensor in outputs:
        if tensor not in known:
            raise InvalidArgumentError(f"ensemble output '{tensor}' for ensemble {name}' is not used")
    ready = _reachable(inputs, steps)
    for tensor in outputs:
        if tensor not in ready:
            raise InvalidArgumentError(_not_written(name, tensor, writer, ready))
    for tensor in sorted(known):
        if tensor not in ready or (tensor not in read and tensor not in outputs):
            raise InvalidArgumentError(f"ensemble tensor '{tensor}' is unused in ensemble '{name}'")


def _reachable(inputs: list[str], steps: Any) -> set[str]:
    """The tensors that come to be when every step runs as soon as its inputs are there."""
    ready = set(inputs)
    waiting = list(steps)
    while runnable := [step for step in waiting if ready.issuperset(step.input_map.values())]:
        for step in runnable:
            ready.update(step.output_map.values())
            waiting.remove(step)
    return ready


def _not_written(name: str, tensor: str, writer: dict[str, Any], ready: set[str]) -> str:
    message = f"output '{tensor}' for ensemble '{name}' is not written"
    step = writer.get(tensor)
    for needed in step.input_map.values() if step is not None else ():
        if needed not in ready and needed not in writer:
            return f"{message}: at least one of its depending tensors, '{needed}', is not connected"
    return message
