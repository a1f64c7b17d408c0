"""The rules for ``ensemble_scheduling``: for the configuration itself, and together with the models of its steps.

In the configuration, the tensors must form a graph in which every step can run, every output is written, every tensor
is used, and every tensor has one source: the request or a step. Together with the models, batch sizes, datatypes and
shapes must match, and the inputs of a step must not originate from different decoupled models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import shape_text
from tritonnb.model_config.backend_selection import ENSEMBLE


@dataclass(frozen=True, slots=True)
class StepModel:
    """The state of the model of an ensemble step.

    Attributes
    ----------
    config : inference.ModelConfig or None
        Completed by the backend; None if no version is loaded.
    versions : tuple of int
        Loaded versions.
    failure : str
        Triton's message for the failed load if no version is loaded.
    is_valid : bool
        False for an ensemble that does not match the models of its steps.
    """

    config: pb.ModelConfig | None
    versions: tuple[int, ...] = ()
    failure: str = ""
    is_valid: bool = True


def check_ensemble_scheduling(config: pb.ModelConfig) -> None:
    """Check ``ensemble_scheduling``, and that exactly ensembles have it.

    Raises
    ------
    InvalidArgumentError
        For the first rule that is violated.
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


def _check_steps(name: str, steps: Sequence[pb.ModelEnsembling.Step]) -> None:
    written: set[str] = set()
    for index, step in enumerate(steps):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise InvalidArgumentError(f"must specify '{field}' in step {index} of ensemble '{name}'")
        for tensor in sorted(step.output_map.values()):  # the order of the map differs from run to run
            if tensor in written:
                raise InvalidArgumentError(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' "
                    f"step {index}"
                )
            written.add(tensor)


def _check_graph(config: pb.ModelConfig) -> None:
    name, steps = config.name, config.ensemble_scheduling.step
    inputs = [tensor.name for tensor in config.input]
    outputs = [tensor.name for tensor in config.output]
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
    _check_inputs_are_not_written(name, inputs, steps)


def _check_inputs_are_not_written(name: str, inputs: Sequence[str], steps: Sequence[pb.ModelEnsembling.Step]) -> None:
    """Check that no step writes an input of the ensemble: the request has written it, and steps would run for ever."""
    # Triton loads such an ensemble, and then never answers its requests. Hence this is the last check, so that an
    # ensemble that Triton refuses is refused with its message.
    for index, step in enumerate(steps):
        for tensor in sorted(step.output_map.values()):
            if tensor in inputs:
                raise InvalidArgumentError(
                    f"ensemble tensor '{tensor}' is an input of ensemble '{name}' and cannot appear in an output map: "
                    f"step {index}, model '{step.model_name}'; give the output of the step another name"
                )


def _in_order(inputs: Iterable[str], steps: Sequence[pb.ModelEnsembling.Step]) -> Iterator[pb.ModelEnsembling.Step]:
    """Yield the steps that can run, in an order in which each follows those whose outputs it reads."""
    ready = set(inputs)
    waiting = list(steps)
    while runnable := [step for step in waiting if ready.issuperset(step.input_map.values())]:
        for step in runnable:
            yield step
            ready.update(step.output_map.values())
            waiting.remove(step)


def _not_written(name: str, tensor: str, writer: dict[str, pb.ModelEnsembling.Step], ready: set[str]) -> str:
    """Return the message for an output that is not written; names the first tensor missing for it."""
    missing, seen = tensor, {tensor}
    while missing in writer:
        needed = sorted(writer[missing].input_map.values())
        sources = [source for source in needed if source not in ready and source not in seen]
        if not sources:
            break
        missing = sources[0]
        seen.add(missing)
    message = f"output '{tensor}' for ensemble '{name}' is not written"
    if missing == tensor:
        return message
    return f"{message}: at least one of its depending tensors, '{missing}', is not connected"


def check_no_cycle(name: str, steps_of: Callable[[str], Iterable[str]], between: str = "ensembles") -> None:
    """Check that an ensemble does not contain itself through other ensembles.

    Parameters
    ----------
    name : str
    steps_of : callable
        ``steps_of(name)`` returns the models of an ensemble's steps; nothing for other models.
    between : str, optional
        What depends on itself, for the error.

    Raises
    ------
    InvalidArgumentError
        If it does.
    """
    for model, steps in _step_lists(name, steps_of):
        if name in steps:
            raise InvalidArgumentError(f"circular dependency between {between}: {name} -> ... -> {model} -> {name}")


def models_outside_cycles(name: str, steps_of: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the direct and indirect step models of an ensemble that neither are part of a cycle nor lead to one.

    Parameters
    ----------
    name : str
    steps_of : callable
        As for `check_no_cycle`.
    """

    def below(model: str) -> set[str]:
        return {step for _, steps in _step_lists(model, steps_of) for step in steps}

    models_below = {model: below(model) for model in below(name)}
    cyclic = {model for model, models in models_below.items() if model in models}
    return sorted(model for model, models in models_below.items() if not cyclic & {model, *models})


def _step_lists(name: str, steps_of: Callable[[str], Iterable[str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield an ensemble and its direct and indirect step models, each with the models of its steps."""
    reached, ahead = {name}, [name]
    while ahead:
        model = ahead.pop()
        steps = sorted(set(steps_of(model)))
        yield model, steps
        ahead += [step for step in steps if step not in reached]
        reached.update(steps)


def check_ensemble(config: pb.ModelConfig, models: Mapping[str, StepModel]) -> bool:
    """Check an ensemble together with the models of its steps.

    Parameters
    ----------
    config : inference.ModelConfig
        The ensemble's; it has passed `check_ensemble_scheduling`.
    models : mapping of str to StepModel
        At least the models of the steps, except those that do not exist or are ambiguous.

    Returns
    -------
    bool
        Whether the ensemble is decoupled. Its steps determine this, not its own configuration.

    Raises
    ------
    InvalidArgumentError
        For the first rule that is violated.
    """
    configs = _step_configs(config, models)
    tensors = {
        tensor.name: _Tensor.from_config(config, tensor, reshaped=True) for tensor in (*config.output, *config.input)
    }
    for step in config.ensemble_scheduling.step:
        _check_step(config, step, configs[step.model_name], tensors)
    return _is_decoupled(config, configs, tensors)


def _step_configs(config: pb.ModelConfig, models: Mapping[str, StepModel]) -> dict[str, pb.ModelConfig]:
    """Return the configurations of the steps' models, all of which must be loaded in the required version."""
    steps = config.ensemble_scheduling.step
    missing = next((step.model_name for step in steps if step.model_name not in models), None)
    if missing is not None:
        raise InvalidArgumentError(
            f"ensemble {config.name} contains models that are not available or ambiguous: {missing}"
        )
    configs: dict[str, pb.ModelConfig] = {}
    for step in sorted(steps, key=lambda step: str(step.model_name)):
        model = models[step.model_name]
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
        configs[step.model_name] = model.config
    return configs


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Datatype and shape of an ensemble tensor, as the first model that uses it declares them."""

    model: str
    data_type: int
    dims: tuple[int, ...]
    shape: tuple[int, ...]  # with the batch dimension

    @classmethod
    def from_config(
        cls, config: pb.ModelConfig, tensor: pb.ModelInput | pb.ModelOutput, reshaped: bool = False
    ) -> _Tensor:
        dims = tuple(tensor.reshape.shape if reshaped and tensor.HasField("reshape") else tensor.dims)
        return cls(config.name, tensor.data_type, dims, (-1, *dims) if config.max_batch_size else dims)


def _check_step(
    config: pb.ModelConfig, step: pb.ModelEnsembling.Step, model: pb.ModelConfig, tensors: dict[str, _Tensor]
) -> None:
    name, step_name = config.name, step.model_name
    if model.max_batch_size and model.max_batch_size < config.max_batch_size:
        raise InvalidArgumentError(
            f"ensemble {name} allows maximum batch size {config.max_batch_size}, but it contains model "
            f"{step_name} which only allows maximum batch size to be {model.max_batch_size}"
        )
    for kind, direction in (("input", "mapping to"), ("output", "mapped from")):
        mapping, declared = getattr(step, f"{kind}_map"), getattr(model, kind)
        names = {tensor.name for tensor in declared}
        for mapped, tensor_name in mapping.items():
            if mapped not in names:
                raise InvalidArgumentError(
                    f"in ensemble {name}, ensemble tensor {tensor_name} is {direction} non-existing {kind} {mapped} in "
                    f"model {step_name}"
                )
        for tensor in declared:
            if tensor.name in mapping:
                _check_consistent(name, mapping[tensor.name], _Tensor.from_config(model, tensor), tensors)
            elif kind == "input" and not tensor.optional:
                raise InvalidArgumentError(
                    f"in ensemble {name}, input {tensor.name} in model {step_name} is not mapped to any ensemble "
                    "tensors"
                )


def _check_consistent(ensemble: str, name: str, tensor: _Tensor, tensors: dict[str, _Tensor]) -> None:
    known = tensors.setdefault(name, tensor)
    if known.data_type != tensor.data_type:
        what, mine, theirs = "data type", _type_name(known), _type_name(tensor)
    elif not (_are_compatible(known.dims, tensor.dims) or _are_compatible(known.shape, tensor.shape)):
        what, mine, theirs = "shape", shape_text(known.shape), shape_text(tensor.shape)
    else:
        return
    raise InvalidArgumentError(
        f"in ensemble {ensemble}, ensemble tensor {name}: inconsistent {what}: {mine} is inferred from model "
        f"{known.model} while {theirs} is inferred from model {tensor.model}"
    )


def _are_compatible(mine: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    return len(mine) == len(theirs) and all(
        -1 in (one, other) or one == other for one, other in zip(mine, theirs, strict=True)
    )


def _type_name(tensor: _Tensor) -> str:
    return str(pb.DataType.Name(tensor.data_type)) if tensor.data_type in pb.DataType.values() else ""


def _is_decoupled(config: pb.ModelConfig, models: dict[str, pb.ModelConfig], tensors: dict[str, _Tensor]) -> bool:
    """Follow the data: every decoupled step starts a new stream, and no step may read from two streams."""
    stream_of = {tensor.name: 0 for tensor in config.input}
    streams = 0

    def common_stream(names: Iterable[str], model: str) -> int:
        origins = {stream_of[name] for name in names if name in stream_of}
        if len(origins) > 1:
            raise InvalidArgumentError(
                f"in ensemble {config.name}, step of model '{model}' receives inputs originated from different "
                "decoupled models"
            )
        return origins.pop() if origins else 0

    for step in _in_order(list(stream_of), config.ensemble_scheduling.step):
        written = sorted(step.output_map.values())
        stream = common_stream(step.input_map.values(), tensors[written[0]].model)
        if models[step.model_name].model_transaction_policy.decoupled:
            streams += 1
            stream = streams
        stream_of.update(dict.fromkeys(written, stream))
    common_stream((output.name for output in config.output), config.name)
    return streams > 0
