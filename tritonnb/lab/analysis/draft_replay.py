"""`replay_draft`: what the latest recorded requests would have experienced under a draft of the configuration."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import RequestArrived
from tritonnb.core.packed_events import Packed, positions, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.pipeline_what_if import PipelineRerun
from tritonnb.lab.analysis.reproduction import is_near
from tritonnb.lab.analysis.rerun import Rerun, config_of
from tritonnb.model_config.read import AnyConfig, read_config
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.batches import latencies_ms
from tritonnb.recording.recording import Recording
from tritonnb.telemetry.quantiles import quantile

_MODEL = positions(RequestArrived).model  # of every event
#: Events of the model that give the service times of a preview.
_MOST_EVENTS = 6000
_NAMES = {"latency_p50_ms": "p50 (ms)", "latency_p99_ms": "p99 (ms)"}


@dataclass(frozen=True)
class DraftReplay:
    """The same arrivals under the running configuration and under a draft, both simulated.

    Attributes
    ----------
    before, after : Recording
        Times count from the first arrival in the recording.
    begin_ns : int
        Its monotonic time.
    recorded : dict of str to float
        The recorded figures of these requests, by their names in `figures`.
    """

    before: Recording
    after: Recording
    begin_ns: int
    recorded: Mapping[str, float]

    def figures(self) -> dict[str, tuple[float, float]]:
        """Return the figures of `Recording.summary` that `verdict` names, before and after."""
        before, after = self.before.summary(), self.after.summary()
        names = ("mean_batch_size", "latency_p50_ms", "latency_p99_ms", "refused")
        return {name: (before[name], after[name]) for name in names}

    def verdict(self) -> str:
        """Return the changes in one sentence."""
        rows, p50, p99, refused = self.figures().values()
        sentence = (
            f"The last {len(self.before.arrivals())} requests under this draft: mean batch {rows[0]:.1f} → "
            f"{rows[1]:.1f} rows, p50 {p50[0]:.1f} → {p50[1]:.1f} ms, p99 {p99[0]:.1f} → {p99[1]:.1f} ms"
        )
        if any(refused):
            sentence += f", refused {refused[0]:.0f} → {refused[1]:.0f}"
        differences = [
            f"{_NAMES[name]} {value:.0f} recorded and {self.figures()[name][0]:.0f} simulated"
            for name, value in self.recorded.items()
            if not is_near(name, value, self.figures()[name][0])
        ]
        if differences:
            return (
                f"The simulation does not reproduce these requests ({'; '.join(differences)}). {sentence} (simulated)."
            )
        return f"{sentence} (simulated)."


def preview_draft(
    history: Iterable[Packed], configs: Mapping[str, pb.ModelConfig], draft: pb.ModelConfig
) -> tuple[str, dict[str, tuple[float, float]], list[tuple[str, int, int, int]]]:
    """Return what a preview of a draft shows: the verdict, the figures, and the batches under the draft.

    Of a model that is part of one pipeline, the verdict ends with what the draft does to the pipeline.

    Parameters
    ----------
    history : iterable of tuple
        Packed events of any models.
    configs : dict of str to ModelConfig
        The running configurations of all models.
    draft : ModelConfig
        The edited configuration of one of them.

    Returns
    -------
    str, dict, list of tuple
        Of each batch the instance, begin and end (monotonic clock, ns), and rows.

    Raises
    ------
    InvalidArgumentError
        As `replay_draft`.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> from tritonnb.core.packed_events import pack
    >>> rec = simulate('name: "m" max_batch_size: 8 dynamic_batching { }', poisson(150, 2, seed=1), fixed(10))
    >>> text, figures, batches = preview_draft(map(pack, rec.events), rec.configs, rec.configs["m"])
    >>> figures["refused"], batches[0][0]
    ((0, 0), 'm_0_0')
    """
    every = list(history)
    config = configs[draft.name]
    events = deque((packed for packed in every if packed[_MODEL] == config.name), maxlen=_MOST_EVENTS)
    replay = replay_draft(Recording(map(unpack, events), {config.name: config}), draft)
    batches = [
        (batch.instance, replay.begin_ns + batch.exec_start_ns, replay.begin_ns + batch.exec_end_ns, batch.size)
        for batch in replay.after.batches
    ]
    verdict = replay.verdict()
    with suppress(InvalidArgumentError):  # not all of the pipeline was recorded
        verdict = f"{verdict} {_of_pipeline(every[-_MOST_EVENTS:], configs, draft)}".rstrip()
    return verdict, replay.figures(), batches


def _of_pipeline(history: Sequence[Packed], configs: Mapping[str, pb.ModelConfig], draft: pb.ModelConfig) -> str:
    """Return what a draft does to the pipeline that its model is part of; empty if there is not exactly one."""
    rec = Recording(map(unpack, history), configs)
    parts = [{one.model for root in pipeline.requests for one in root.walk()} for pipeline in rec.pipelines.values()]
    concerned = [models for models in parts if draft.name in models]
    if len(concerned) != 1:
        return ""
    [models] = concerned
    rerun = PipelineRerun(Recording((event for event in rec.events if event.model in models), configs))
    runs = [rerun.run(run).pipelines for run in (rerun.configs, {**rerun.configs, draft.name: draft})]
    latencies = [sorted(request.latency_ns / 1e6 for request in run[rerun.model].requests) for run in runs]
    p50, p99 = ([quantile(known, share) for known in latencies] for share in (0.5, 0.99))
    return (
        f"Pipeline '{rerun.model}': p50 {p50[0]:.1f} → {p50[1]:.1f} ms, p99 {p99[0]:.1f} → {p99[1]:.1f} ms (simulated)."
    )


def replay_draft(rec: Recording, draft: AnyConfig, *, seconds: float = 3.0, requests: int = 1000) -> DraftReplay:
    """Replay the latest requests of a recording under a draft of the configuration.

    The number of requests bounds its duration. Sequences that began before these requests continue with the first of
    them.

    Parameters
    ----------
    rec : Recording
        Of one model, with the running configuration.
    draft : ModelConfig, str, path or dict
        As for `simulate`.
    seconds, requests : float, int, optional
        The requests of the last seconds are replayed, but not more than ``requests``.

    Returns
    -------
    DraftReplay

    Raises
    ------
    InvalidArgumentError
        If the recording has no arrival or no executed batch, is not of one model, or the draft cannot run the requests.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> rec = simulate("max_batch_size: 8 dynamic_batching { }", poisson(150, 2, seed=1), fixed(10))
    >>> draft = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    >>> replay_draft(rec, draft, requests=200).verdict()
    'The last 200 requests under this draft: mean batch 1.8 → 3.9 rows, p50 14.6 → 22.1 ms, p99 19.8 → 30.0 ms \
(simulated).'
    """
    running, arrivals = config_of(rec, "replay_draft"), rec.arrivals()
    first_us = arrivals[-1].time_us - seconds * 1e6
    first = len(arrivals) - min(requests, sum(arrival.time_us >= first_us for arrival in arrivals))
    rerun = Rerun(rec, "replay_draft", first=first)
    sent = list(_continued(rerun.arrivals))
    before, after = (rerun.run(config, sent) for config in (running, read_config(draft, name=running.name)))
    serials = {*list(rec.arrived)[first:]}
    latencies = latencies_ms([request for request in rec.requests if request.serial in serials])
    recorded = {f"latency_p{percent}_ms": quantile(latencies, percent / 100) for percent in (50, 99) if latencies}
    return DraftReplay(before, after, rec.first_arrival_ns, recorded)


def _continued(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    """Yield arrivals of sequences that may have begun earlier: they start with their first arrival here."""
    started: set[int | str] = {0, ""}  # requests without a sequence
    for arrival in arrivals:
        yield arrival if arrival.sequence_id in started else replace(arrival, sequence_start=True)
        started.add(arrival.sequence_id)
