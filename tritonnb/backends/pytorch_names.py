"""Which argument of a TorchScript module's ``forward`` a tensor is, and which part of its result.

A module knows its tensors by position only. The rules are those of Triton's PyTorch backend:

* inputs that are all named like arguments of ``forward`` are these arguments;
* otherwise names ``<name>__<index>`` give the position;
* otherwise the order of the configuration does. Outputs follow the last two rules.
* Control tensors always go by index, and a model with implicit state needs indices throughout.

A module whose only argument is a dictionary gets its tensors by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tritonnb.backends.model_checks import check_input_count
from tritonnb.core.errors import InternalError, InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of ``forward``; a required one has no default."""

    name: str
    required: bool


def arguments_by_tensor(config: Any, module: Any) -> dict[str, Argument] | None:
    """The argument that each input, control tensor and state of a configuration is.

    Parameters
    ----------
    config : inference.ModelConfig
    module : torch.jit.ScriptModule

    Returns
    -------
    dict of str to Argument, or None
        None where ``forward`` takes a dictionary.

    Raises
    ------
    InvalidArgumentError, InternalError
        If the configuration and the module do not fit, or a name says no index where it has to.
    """
    declared = list(module.forward.schema.arguments)[1:]
    if len(declared) == 1 and str(declared[0].type).startswith("Dict"):
        _require_some("input", config.input)
        return None
    arguments = [Argument(each.name, not each.has_default_value()) for each in declared]
    sequences = config.sequence_batching
    inputs = [each.name for each in config.input]
    inputs += [name for each in config.batch_input for name in each.target_name]
    states = [each.input_name for each in sequences.state]
    positions = {each.name: _control_index(each.name) for each in sequences.control_input}
    count = len(inputs) + len(positions) + len(states)
    required = sum(argument.required for argument in arguments)
    check_input_count(config.name, count, len(arguments), required)
    _require_some("input", config.input)
    by_name = {each.name: position for position, each in enumerate(arguments)}
    if set(inputs) <= set(by_name):
        _check_states(config, False, states)
        positions |= {name: by_name[name] for name in inputs}
    else:
        positions |= _positions(config, inputs, states)
    return {name: arguments[position] for name, position in _checked(config, positions, len(arguments))}


def result_positions(config: Any) -> dict[str, int]:
    """The position of each output and state output in what ``forward`` returns.

    Raises
    ------
    InvalidArgumentError
        If a model with implicit state has an output without an index in its name.
    InternalError
        If there is no output.
    """
    _require_some("output", config.output)
    outputs = [each.name for each in config.output]
    return _positions(config, outputs, [each.output_name for each in config.sequence_batching.state])


def _require_some(kind: str, tensors: Sequence[Any]) -> None:
    if not tensors:
        raise InternalError(f"model configuration must contain at least one {kind}, none were specified.")


def _positions(config: Any, names: list[str], states: list[str]) -> dict[str, int]:
    indices = {name: _index(name) for name in names}
    indexed = None not in indices.values()
    _check_states(config, indexed, states)
    if not indexed:
        return {name: position for position, name in enumerate(names)}
    return {name: index for name in [*names, *states] if (index := _index(name)) is not None}


def _check_states(config: Any, indexed: bool, states: list[str]) -> None:
    if not states:
        return
    if not indexed:
        # The blank before the closing quote, here and below, is Triton's.
        raise InvalidArgumentError(
            f"PyTorch model '{config.name}' is using sequence batching with state but not all inputs and outputs "
            "follow the <name>__<index> naming convention. "
        )
    for name in states:
        if _index(name) is None:
            raise InvalidArgumentError(
                f"PyTorch model '{config.name}' is using sequence batching with state but state '{name}' does not "
                "follow the <name>__<index> naming convention. "
            )


def _checked(config: Any, positions: dict[str, int], count: int) -> Iterable[tuple[str, int]]:
    """Each tensor is an argument of its own; Triton leaves this to chance."""
    taken: dict[int, str] = {}
    for name, position in positions.items():
        if position >= count:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', input '{name}' refers to an argument which doesn't exist: "
                f"'forward' has {count}"
            )
        if position in taken:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', inputs '{taken[position]}' and '{name}' refer to the same "
                "argument"
            )
        taken[position] = name
    return positions.items()


def _control_index(name: str) -> int:
    index = _index(name)
    if index is None:
        raise InternalError(f"input '{name}' does not follow <name>__<index> naming convention.")
    return index


def _index(name: str) -> int | None:
    _, separator, index = name.partition("__")
    return int(index) if separator and index.isdecimal() and index.isascii() else None
