"""Models that answer after the times of a recording: see `tritonnb.backends.simulated`."""

from __future__ import annotations

import copy
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from tritonnb.backends.functions import Function
from tritonnb.backends.simulated import TIMES_FILE, ExecutionTimes, SimulatedBackend
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import ResponseSent
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.paths import working_directory
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.load_errors import raised_here
from tritonnb.engine.repository.directories import ModelSource
from tritonnb.lab.analysis.learned_times import LearnedTimes
from tritonnb.lab.analysis.recorded_times import service
from tritonnb.model_config.read import config_text
from tritonnb.recording.recording import Recording
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

#: What belongs to the real model's file, device or values.
_NOT_SIMULATED = (
    "default_model_filename", "optimization", "model_warmup", "version_policy", "cc_model_filenames", "batch_input",
    "batch_output",
)  # fmt: skip


@with_short_traceback
@with_checked_types
def simulate(
    server: Server, recording: Recording, model: str | None = None, function: Function | None = None
) -> ModelHandle:
    """Serve a model that answers zeros, or a function's results, after the recorded execution times.

    Clients and autoscalers can be tested against a model that needs a GPU, on any endpoint. Execution times vary and
    stall as recorded, and busy instances slow each other down as recorded.

    Parameters
    ----------
    server : Server
    recording : Recording
        Of any server.
    model : str, optional
        The model in the recording, if it has several.
    function : callable, optional
        From the inputs by name to the outputs, as for `Server.model`; it should take less than the recorded time.

    Returns
    -------
    ModelHandle

    Raises
    ------
    InvalidArgumentError
        If the recording has no such model, or no configuration of it.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> tensors = 'input { name: "X" data_type: TYPE_FP32 dims: 3 } output { name: "Y" data_type: TYPE_INT64 dims: 2 }'
    >>> recording = tnb.simulate(f'name: "net" max_batch_size: 4 {tensors}', tnb.constant(100, 1), tnb.fixed(5))
    >>> with tnb.Server(port=0) as server:
    ...     server.simulate(recording)(X=[[1, 2, 3]])["Y"].tolist()
    [[0, 0]]
    """
    name, config, times = _learned(recording, model)
    source = ModelSource(name, working_directory(), config, (1,), SimulatedBackend(times, function))
    with raised_here():
        server.run(server.engine.load_source(source))
    return server[name]


@with_short_traceback
@with_checked_types
def write_simulated(recording: Recording, repository: str | Path, model: str | None = None) -> Path:
    """Write a model of a repository with the backend ``simulated``.

    Parameters
    ----------
    recording : Recording
    repository : path
    model : str, optional
        The model in the recording, if it has several.

    Returns
    -------
    pathlib.Path
        The directory of the model.

    Raises
    ------
    InvalidArgumentError
        As `simulate`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from tritonnb import constant, fixed, simulate
    >>> recording = simulate('name: "net" max_batch_size: 4', constant(100, 1), fixed(5))
    >>> with TemporaryDirectory() as directory:
    ...     sorted(path.name for path in write_simulated(recording, directory).rglob("*.*"))
    ['config.pbtxt', 'times.json']
    """
    name, config, times = _learned(recording, model)
    directory = Path(repository) / name
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(config_text(config), "utf-8")
    document = {"source": times.source, "ms": times.ms, "slow_down": times.slow_down}
    document |= {"responses": times.responses} if times.responses else {}
    document |= {"steps": times.steps} if times.steps else {}
    (directory / "1" / TIMES_FILE).write_text(json.dumps(document), "utf-8")
    return directory


def _learned(recording: Recording, model: str | None) -> tuple[str, pb.ModelConfig, ExecutionTimes]:
    """Return name, configuration and times of a model."""
    names = sorted({batch.model for batch in recording.batches})
    if not names:
        raise InvalidArgumentError("recording expected at least one execution, got none")
    if model is None and len(names) != 1:
        raise InvalidArgumentError(f"model expected one of {', '.join(map(repr, names)) or 'none'}, got None")
    name = model or names[0]
    if name not in names:
        is_ensemble = name in recording.configs and recording.configs[name].HasField("ensemble_scheduling")
        remedy = ", since an ensemble executes nothing itself: simulate its steps" if is_ensemble else ""
        raise InvalidArgumentError(f"model expected one of {', '.join(map(repr, names))}, got '{name}'{remedy}")
    of_model = recording.for_model(name)
    if name not in recording.configs:
        raise InvalidArgumentError(f"recording expected the configuration of model '{name}', got none")
    config = copy.deepcopy(recording.configs[name])
    config.name, config.backend, config.platform = name, SimulatedBackend.name, ""
    for field in _NOT_SIMULATED:
        config.ClearField(field)
    for group in config.instance_group:  # it runs nowhere
        count = max(1, group.count) * max(1, len(group.gpus))
        group.ClearField("gpus")
        group.kind, group.count = pb.ModelInstanceGroup.KIND_CPU, count
    times = times_of(service(of_model))
    if config.sequence_batching.iterative_sequence:
        times = replace(times, steps=steps_of(of_model))
    elif config.model_transaction_policy.decoupled:
        times = replace(times, responses=responses_of(of_model))
    return name, config, times


def responses_of(recording: Recording) -> list[list[float]]:
    """Return when the responses of each request were sent, in ms after its execution began.

    Parameters
    ----------
    recording : Recording
        Of one decoupled model. Traces of a Triton do not contain the responses: the result is empty.
    """
    begin_ns = {serial: batch.exec_start_ns for batch in recording.batches for serial in batch.requests}
    sent_ms: dict[int, list[float]] = defaultdict(list)
    complete = set()
    for event in recording.events:
        if isinstance(event, ResponseSent) and event.serial in begin_ns:
            times = sent_ms[event.serial]
            if event.outcome == "success":
                times.append(max(0.0, (event.time_ns - begin_ns[event.serial]) / 1e6))
            if event.final:
                complete.add(event.serial)
    return [sent_ms[serial] for serial in sorted(complete)]


def steps_of(recording: Recording) -> list[int]:
    """Return how often each request was executed, without those that had not ended.

    Parameters
    ----------
    recording : Recording
        Of one model with iterative sequences.
    """
    executed = Counter(serial for batch in recording.batches for serial in batch.requests)
    sent = [event for event in recording.events if isinstance(event, ResponseSent)]
    ended = {event.serial for event in sent if event.final} if sent else set(executed)
    return [count for serial, count in sorted(executed.items()) if serial in ended]


def times_of(learned: LearnedTimes) -> ExecutionTimes:
    """Return recorded execution times, as they would have been without the other instances.

    Parameters
    ----------
    learned : LearnedTimes
    """
    slow_down = dict(learned.slow_down.known)
    ms: dict[int, list[float]] = defaultdict(list)
    for one in learned.executions:
        if not one.first or len(learned.executions) < 2:
            ms[one.rows].append((one.time_ns - one.dispatch_ns) / 1e6 / max(1.0, slow_down.get(one.busy, 1.0)))
    return ExecutionTimes(dict(ms), slow_down, f"recording of {len(learned.executions)} executions")
