"""Map tensors to the arguments and results of a TorchScript module's ``forward``.

A module identifies its tensors by position only. The rules are the rules of Triton's PyTorch backend:

* If all inputs have the names of arguments of ``forward``, they are these arguments.
* Otherwise names of the form ``<name>__<index>`` contain the position.
* Otherwise the position is the position in the configuration. Outputs follow the last two rules.
* The names of control tensors always contain the index, as do all names of a model with implicit state.

A module with a dictionary as its only argument gets its tensors by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from tritonnb.backends.model_checks import check_input_count
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of ``forward``; ``required`` if it has no default."""

    name: str
    required: bool


def arguments_by_tensor(config: pb.ModelConfig, module: Any) -> dict[str, Argument] | None:
    """Return the argument for each input, control tensor and state of a configuration.

    Parameters
    ----------
    config : inference.ModelConfig
    module : torch.jit.ScriptModule

    Returns
    -------
    dict of str to Argument, or None
        None if ``forward`` takes a dictionary.

    Raises
    ------
    InvalidArgumentError, InternalError
        If the configuration does not fit the module, or a name does not contain an index where one is required.
    """
    # The first argument is `self`.
    schema = list(module.forward.schema.arguments)[1:]
    if len(schema) == 1 and str(schema[0].type).startswith("Dict"):
        _require_tensors("input", config.input)
        return None
    arguments = [Argument(argument.name, not argument.has_default_value()) for argument in schema]
    sequences = config.sequence_batching
    inputs = [tensor.name for tensor in config.input]
    inputs += [name for batch_input in config.batch_input for name in batch_input.target_name]
    states = [state.input_name for state in sequences.state]
    positions = {control.name: _control_index(control.name) for control in sequences.control_input}
    count = len(inputs) + len(positions) + len(states)
    required = sum(argument.required for argument in arguments)
    check_input_count(config.name, count, len(arguments), required)
    _require_tensors("input", config.input)
    by_name = {argument.name: position for position, argument in enumerate(arguments)}
    # All or none: one name that is no argument makes Triton fall back to the other rules for every input.
    if set(inputs) <= set(by_name):
        # Called with False on purpose: with names of arguments, a model with state has no indices, and is refused.
        _check_states(config, False, states)
        positions |= {name: by_name[name] for name in inputs}
    else:
        positions |= _positions(config, inputs, states)
    return {name: arguments[position] for name, position in _check_distinct(config, positions, len(arguments))}


def result_positions(config: pb.ModelConfig) -> dict[str, int]:
    """Return the position of each output and state output in what ``forward`` returns.

    Raises
    ------
    InvalidArgumentError
        If a model with implicit state has an output without an index in its name.
    InternalError
        If the configuration has no outputs.
    """
    _require_tensors("output", config.output)
    outputs = [tensor.name for tensor in config.output]
    return _positions(config, outputs, [state.output_name for state in config.sequence_batching.state])


def _require_tensors(kind: str, tensors: Sequence[Message]) -> None:
    if not tensors:
        raise InternalError(f"model configuration must contain at least one {kind}, none were specified.")


def _positions(config: pb.ModelConfig, names: list[str], states: list[str]) -> dict[str, int]:
    indices = {name: _index(name) for name in names}
    indexed = None not in indices.values()
    _check_states(config, indexed, states)
    if not indexed:
        return {name: position for position, name in enumerate(names)}
    return {name: index for name in [*names, *states] if (index := _index(name)) is not None}


def _check_states(config: pb.ModelConfig, indexed: bool, states: list[str]) -> None:
    if not states:
        return
    if not indexed:
        # The space before the closing quote, here and below, is Triton's.
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


def _check_distinct(config: pb.ModelConfig, positions: dict[str, int], count: int) -> Iterable[tuple[str, int]]:
    """Check that no two tensors are the same argument, which Triton does not check."""
    names: dict[int, str] = {}
    for name, position in positions.items():
        if position >= count:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', input '{name}' refers to an argument which doesn't exist: "
                f"'forward' has {count}"
            )
        if position in names:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', inputs '{names[position]}' and '{name}' refer to the same "
                "argument"
            )
        names[position] = name
    return positions.items()


def _control_index(name: str) -> int:
    index = _index(name)
    if index is None:
        raise InternalError(f"input '{name}' does not follow <name>__<index> naming convention.")
    return index


def _index(name: str) -> int | None:
    # The first "__" counts, so `a__b__0` has no index: Triton looks for it from the left as well.
    _, separator, index = name.partition("__")
    return int(index) if separator and index.isdecimal() and index.isascii() else None
