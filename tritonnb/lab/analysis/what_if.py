"""`Recording.what_if`: recorded requests, simulated under an edited configuration or another kind of batching."""

from __future__ import annotations

import copy
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.backlog import from_its_begin
from tritonnb.lab.analysis.comparison import Comparison
from tritonnb.lab.analysis.learned_times import LearnedTimes
from tritonnb.lab.analysis.pipeline_what_if import PipelineComparison, pipeline_what_if
from tritonnb.lab.analysis.recorded_executions import RecordedExecution
from tritonnb.lab.analysis.reproduction import OTHER_DECISIONS, causes_of
from tritonnb.lab.analysis.rerun import Rerun
from tritonnb.lab.simulation.run import instance_count
from tritonnb.lab.simulation.service import Service
from tritonnb.recording.generations import Generation
from tritonnb.recording.recording import Recording


@with_short_traceback
@with_checked_types
def what_if(
    rec: Recording,
    models: Mapping[str, Mapping[str, object]] | None = None,
    *,
    service: Service | Mapping[str, Service] | None = None,
    seed: int = 0,
    continuous: bool | None = None,
    **edits: object,
) -> Comparison | PipelineComparison:
    """Simulate the same arrivals under an edited configuration, or a pipeline with edits of some of its models.

    Both the recorded and the edited configuration are simulated, with as many replicas as were recorded. Arrival
    times stay as recorded, although clients that wait for responses would have sent earlier or later under the
    edited configuration.

    Parameters
    ----------
    models : dict of str to dict, optional
        Of a recording of an ensemble and the models of its steps: the edits of models by name. An empty dict simulates
        what was recorded.
    service : Service, optional
        Service-time model; by default the recorded one (`service`), whose times vary as recorded. Of a pipeline, a
        dict of service times by model.
    seed : int, optional
        Seed of service times that vary.
    continuous : bool, optional
        Of a recording of generations: True for continuous batching (iterative sequences), where a generation leaves
        its slot with its last token; False for static batching, where a batch of generations lasts until the end of
        the longest one. ``service`` is then the time of a step.
    **edits
        Fields of the configuration: ``max_queue_delay_microseconds=0``, ``max_batch_size=16``,
        ``preferred_batch_size=[4]``, ``count=2``, …

    Returns
    -------
    Comparison or PipelineComparison

    Raises
    ------
    InvalidArgumentError
        If the recording is neither of one model (see `for_model`) nor of one pipeline, or a field does not exist.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", [(0, 1)] * 8, fixed(10))
    >>> [batch.size for batch in recording.what_if(max_batch_size=8).after.batches]
    [1, 7]
    """
    if models is not None:
        if edits or continuous is not None:
            raise InvalidArgumentError(
                f"what_if expected edits by model or edits of one model, got {sorted(models)} and "
                f"{sorted(edits) or ['continuous']}"
            )
        if service is not None and not isinstance(service, Mapping):
            raise InvalidArgumentError("what_if expected service times by model with edits by model, got one time")
        return pipeline_what_if(rec, models, service, seed)
    if isinstance(service, Mapping):
        raise InvalidArgumentError("what_if expected edits by model with service times by model: what_if({...})")
    rerun = Rerun(rec, "what_if", service)
    edited = rerun.edited(edits)
    if continuous is not None or rec.generations:
        _rerun_steps(rerun, rec, service)
    if continuous is not None:
        edited, edits = _with_batching(edited, continuous), {"continuous": continuous, **edits}
    before, after = (rerun.run(config, rerun.arrivals, seed) for config in (rerun.config, edited))
    causes = causes_of(rec, rerun.config.name, rerun.times, before.batch_sizes()) or [OTHER_DECISIONS]
    notes = _notes(rec, rerun.times, after, edited)
    return Comparison(before, after, edits, from_its_begin(rec), causes=tuple(causes), notes=tuple(notes))


def _notes(rec: Recording, service: Service, after: Recording, config: pb.ModelConfig) -> Iterator[str]:
    """Yield what a simulation rests on."""
    if rec.unit == "requests":
        yield "The rows of the requests are not known: batches are filled with requests, as if each had one row."
    if isinstance(service, LearnedTimes):
        for text in service.basis(after.batch_sizes(), instance_count(config)):
            yield f"{text[0].upper()}{text[1:]}."


def _rerun_steps(rerun: Rerun, rec: Recording, service: Service | None) -> None:
    """Replay the generations of a recording step by step, with static or continuous batching.

    The first step of a generation reads its prompt, and takes longer.

    Raises
    ------
    InvalidArgumentError
        If the recording contains no generations.
    """
    generations = rec.generations
    if not generations:
        raise InvalidArgumentError(
            "continuous expected a recording of generations (iterative sequences, or several responses to a request), "
            "got none"
        )
    steps = {generation.serial: len(generation.steps) for generation in generations}
    rerun.arrivals = [
        arrival.with_steps(steps.get(serial, 1)) for serial, arrival in zip(rec.arrived, rerun.arrivals, strict=True)
    ]
    recorded = _recorded_steps(rec, generations)
    rerun.times = step = service or LearnedTimes(tuple([one for one, _ in recorded]))
    extra = [(one.time_ns - step(one.rows)) / prompts for one, prompts in recorded if prompts]
    rerun.first_step_ns = max(0, round(statistics.median(extra))) if extra else 0


def _with_batching(config: pb.ModelConfig, continuous: bool) -> pb.ModelConfig:
    """Return the configuration with continuous or with static batching: as many slots as a batch has rows.

    Raises
    ------
    InvalidArgumentError
        If the model does not batch.
    """
    if config.max_batch_size < 1:
        raise InvalidArgumentError(f"continuous expected model '{config.name}' to have a max_batch_size, got 0")
    edited = copy.deepcopy(config)
    if continuous and not config.sequence_batching.iterative_sequence:
        edited.sequence_batching.iterative_sequence = True
        edited.sequence_batching.oldest.max_candidate_sequences = config.max_batch_size
    elif not continuous:
        edited.dynamic_batching.SetInParent()
    return edited


def _recorded_steps(rec: Recording, generations: list[Generation]) -> list[tuple[RecordedExecution, int]]:
    """Return the recorded steps in the order in which they began, and how many generations began with each."""
    members: dict[tuple[str, int], list[Generation]] = defaultdict(list)
    began = Counter((generation.instance, generation.steps[0]) for generation in generations)
    for generation in generations:
        members[generation.instance, generation.steps[0][0]].append(generation)
    recorded = []
    for batch in rec.batches:
        if batch.slots is not None:
            span = (batch.exec_start_ns, batch.exec_end_ns)
            recorded.append((batch.size, span, began[batch.instance, span]))
            continue
        together = members[batch.instance, batch.exec_start_ns]
        longest = max(together, key=lambda generation: len(generation.steps), default=None)
        for number, span in enumerate(longest.steps if longest else ()):
            recorded.append((batch.size, span, 0 if number else len(together)))
    origin_ns = rec.origin_ns
    steps = [
        # A step with a prompt begins before the simulation, so that no simulated step is taken for it: a simulation
        # adds the time of the prompt separately.
        (
            RecordedExecution(
                *(-1 if prompts else begin - origin_ns, rows, end - begin, 0, 1, 0.0, end - begin, 0, 0, prompts > 0, 0)
            ),
            prompts,
        )
        for rows, (begin, end), prompts in recorded
    ]
    return sorted(steps, key=lambda step: step[0].begin_ns)
