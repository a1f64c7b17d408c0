"""The rules for ``ensemble_scheduling``: of an ensemble alone, and against the models of its steps.

Alone, an ensemble's tensors must form a graph in which every step can run, every output is written,
and nothing is made in vain. Together with its steps, batch sizes, types and shapes must fit, and what
a step reads must not stem from different decoupled models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import shape_text
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import ENSEMBLE


@dataclass(frozen=True, slots=True)
class StepModel:
    """What an ensemble must know of the model of a step.

    Attributes
    ----------
    config : inference.ModelConfig or None
        As completed; None if no version is loaded.
    versions : tuple of int
        Those that are loaded.
    failure : str
        Why there is none: Triton's text of the failed load.
    is_valid : bool
        False for an ensemble that does not go together with its own steps.
    """

    config: Any | None
    versions: tuple[int, ...] = ()
    failure: str = ""
    is_valid: bool = True


#: The model of a name, None where there is none or more than one of it.
Lookup = Callable[[str], StepModel | None]


def check_ensemble_scheduling(config: Any) -> None:
    """Check the configuration of an ensemble, and that only an ensemble has one.

    Raises
    ------
    InvalidArgumentError
        The first rule that is broken.
    """
    name = config.name
    if config.platform != ENSEMBLE:
        raise InvalidArgumentError(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
        )
    if not config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble")
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
    ready = {*inputs, *(tensor for step in _in_order(inputs, steps) for tensor in step.output_map.values())}
    for tensor in outputs:
        if tensor not in known:
            raise InvalidArgumentError(f"ensemble output '{tensor}' for ensemble {name}' is not used")
        if tensor not in ready:
            raise InvalidArgumentError(_not_written(name, tensor, writer, ready))
    for tensor in sorted(known.difference(outputs)):
        if tensor not in ready or tensor not in read:
            raise InvalidArgumentError(f"ensemble tensor '{tensor}' is unused in ensemble '{name}'")


def _in_order(inputs: Iterable[str], steps: Any) -> Iterator[Any]:
    """The steps that ever run, each after those it reads from."""
    ready = set(inputs)
    waiting = list(steps)
    while runnable := [step for step in waiting if ready.issuperset(step.input_map.values())]:
        for step in runnable:
            yield step
            ready.update(step.output_map.values())
            waiting.remove(step)


def _not_written(name: str, tensor: str, writer: dict[str, Any], ready: set[str]) -> str:
    """The complaint about an output, with the tensor farthest back on which it waits."""
    culprit, seen = tensor, {tensor}
    while culprit in writer:
        needed = sorted(writer[culprit].input_map.values())
        lacking = [each for each in needed if each not in ready and each not in seen]
        if not lacking:
            break
        culprit = lacking[0]
        seen.add(culprit)
    message = f"output '{tensor}' for ensemble '{name}' is not written"
    if culprit == tensor:
        return message
    return f"{message}: at least one of its depending tensors, '{culprit}', is not connected"


def check_no_cycle(name: str, steps_of: Callable[[str], Iterable[str]]) -> None:
    """Check that an ensemble does not, through other ensembles, contain itself.

    Parameters
    ----------
    name : str
    steps_of : callable
        The models of an ensemble's steps by its name; nothing for other models.

    Raises
    ------
    InvalidArgumentError
        If an ensemble comes back to itself.
    """
    reached, ahead = {name}, [name]
    while ahead:
        model = ahead.pop()
        steps = sorted(set(steps_of(model)))
        if name in steps:
            raise InvalidArgumentError(f"circular dependency between ensembles: {name} -> ... -> {model} -> {name}")
        ahead += [each for each in steps if each not in reached]
        reached.update(steps)


def models_outside_cycles(name: str, steps_of: Callable[[str], Iterable[str]]) -> list[str]:
    """The models below an ensemble, those of its steps' steps too, that neither are in a circle nor lead into one.

    Parameters
    ----------
    name : str
    steps_of : callable
        As for `check_no_cycle`.
    """

    def below(model: str) -> set[str]:
        reached: set[str] = set()
        ahead = [model]
        while ahead:
            found = set(steps_of(ahead.pop())) - reached
            reached |= found
            ahead += found
        return reached

    reaches = {each: below(each) for each in below(name)}
    circles = {each for each, models in reaches.items() if each in models}
    return sorted(each for each, models in reaches.items() if not circles & {each, *models})


def check_ensemble(config: Any, lookup: Lookup) -> bool:
    """Check an ensemble against the models of its steps.

    Parameters
    ----------
    config : inference.ModelConfig
        Of the ensemble; it has passed `check_ensemble_scheduling`.
    lookup : callable
        Gives a `StepModel` by name, or None.

    Returns
    -------
    bool
        Whether the ensemble is decoupled, which its steps decide and not what it declares.

    Raises
    ------
    InvalidArgumentError
        The first rule that is broken.
    """
    models = _step_models(config, lookup)
    tensors = {each.name: _Tensor.of(config, each, reshaped=True) for each in (*config.output, *config.input)}
    for step in config.ensemble_scheduling.step:
        _check_step(config, step, models[step.model_name], tensors)
    return _is_decoupled(config, models, tensors)


def _step_models(config: Any, lookup: Lookup) -> dict[str, Any]:
    """The configurations of the steps' models, which all must be loaded in the right version."""
    steps = config.ensemble_scheduling.step
    found = {step.model_name: lookup(step.model_name) for step in steps}
    missing = next((name for name, model in found.items() if model is None), None)
    if missing is not None:
        raise InvalidArgumentError(
            f"ensemble {config.name} contains models that are not available or ambiguous: {missing}"
        )
    for step in sorted(steps, key=lambda each: str(each.model_name)):
        model = found[step.model_name]
        assert model is not None
        depends = f"ensemble '{config.name}' depends on '{step.model_name}'"
        if not model.is_valid:
            raise InvalidArgumentError(
                f"{depends} which is not valid. Model '{step.model_name}' failed with error: {model.failure}"
            )
        if model.config is None:
            raise InvalidArgumentError(
                f"{depends} which has no loaded version. Model '{step.model_name}' loading failed with "
                f"error: {model.failure}"
            )
        if step.model_version != -1 and step.model_version not in model.versions:
            raise InvalidArgumentError(f"{depends} whose required version {step.model_version} is not loaded.")
    return {name: model.config for name, model in found.items() if model is not None}


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Type and shape of an ensemble tensor, as the model that was looked at first has it."""

    model: str
    data_type: int
    dims: tuple[int, ...]
    shape: tuple[int, ...]  # with the batch dimension

    @classmethod
    def of(cls, config: Any, tensor: Any, reshaped: bool = False) -> _Tensor:
        dims = tuple(tensor.reshape.shape if reshaped and tensor.HasField("reshape") else tensor.dims)
        return cls(config.name, tensor.data_type, dims, (-1, *dims) if config.max_batch_size else dims)


def _check_step(config: Any, step: Any, model: Any, tensors: dict[str, _Tensor]) -> None:
    name, step_name = config.name, step.model_name
    if model.max_batch_size and model.max_batch_size < config.max_batch_size:
        raise InvalidArgumentError(
            f"ensemble {name} allows maximum batch size {config.max_batch_size}, but it contains model "
            f"{step_name} which only allows maximum batch size to be {model.max_batch_size}"
        )
    inputs = {each.name for each in model.input}
    for mapped, tensor in step.input_map.items():
        if mapped not in inputs:
            raise InvalidArgumentError(
                f"in ensemble {name}, ensemble tensor {tensor} is mapping to non-existing input {mapped} in "
                f"model {step_name}"
            )
    for each in model.input:
        if each.name in step.input_map:
            _check_consistent(name, step.input_map[each.name], _Tensor.of(model, each), tensors)
        elif not each.optional:
            raise InvalidArgumentError(
                f"in ensemble {name}, input {each.name} in model {step_name} is not mapped to any ensemble tensors"
            )
    outputs = {each.name for each in model.output}
    for mapped, tensor in step.output_map.items():
        if mapped not in outputs:
            raise InvalidArgumentError(
                f"in ensemble {name}, ensemble tensor {tensor} is mapped from non-existing output {mapped} in "
                f"model {step_name}"
            )
    for each in model.output:
        if each.name in step.output_map:
            _check_consistent(name, step.output_map[each.name], _Tensor.of(model, each), tensors)


def _check_consistent(ensemble: str, name: str, found: _Tensor, tensors: dict[str, _Tensor]) -> None:
    known = tensors.setdefault(name, found)
    if known.data_type != found.data_type:
        what, mine, theirs = "data type", _type_name(known), _type_name(found)
    elif not (_fit(known.dims, found.dims) or _fit(known.shape, found.shape)):
        what, mine, theirs = "shape", shape_text(known.shape), shape_text(found.shape)
    else:
        return
    raise InvalidArgumentError(
        f"in ensemble {ensemble}, ensemble tensor {name}: inconsistent {what}: {mine} is inferred from model "
        f"{known.model} while {theirs} is inferred from model {found.model}"
    )


def _fit(mine: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    return len(mine) == len(theirs) and all(
        -1 in (one, other) or one == other for one, other in zip(mine, theirs, strict=True)
    )


def _type_name(tensor: _Tensor) -> str:
    return str(pb.DataType.Name(tensor.data_type)) if tensor.data_type in pb.DataType.values() else ""


def _is_decoupled(config: Any, models: dict[str, Any], tensors: dict[str, _Tensor]) -> bool:
    """Follow the data: each run of a decoupled step starts a stream of its own, and streams must not meet."""
    stream_of = {each.name: 0 for each in config.input}
    streams = 0

    def common_stream(names: Iterable[str], model: str) -> int:
        found = {stream_of[each] for each in names if each in stream_of}
        if len(found) > 1:
            raise InvalidArgumentError(
                f"in ensemble {config.name}, step of model '{model}' receives inputs originated from different "
                "decoupled models"
            )
        return found.pop() if found else 0

    for step in _in_order(list(stream_of), config.ensemble_scheduling.step):
        written = sorted(step.output_map.values())
        stream = common_stream(step.input_map.values(), tensors[written[0]].model)
        if models[step.model_name].model_transaction_policy.decoupled:
            streams += 1
            stream = streams
        stream_of.update(dict.fromkeys(written, stream))
    common_stream((each.name for each in config.output), config.name)
    return streams > 0
