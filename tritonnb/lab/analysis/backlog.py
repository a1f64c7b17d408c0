"""What a server was doing already when the simulated requests began: a recording may begin in the middle of a load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from operator import attrgetter

from tritonnb.core.events import BatchExecuted, BatchSent, EnsembleExecuted, Event, StepSent
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.run import instance_names
from tritonnb.recording.ensemble_graph import ensemble_graph
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import FULL, NO_DELAY, ONE_REQUEST, PREFERRED_SIZE

#: Rules by which an idle instance gets a batch as soon as its last request arrives.
_AT_ONCE = frozenset({ONE_REQUEST, NO_DELAY, FULL, PREFERRED_SIZE})
#: A server notices somewhat later that a delay has expired: a wait of up to so many delays is no backlog.
_LATE = 1.1


def busy_until(rec: Recording, replayed: Collection[int], begin_ns: int) -> dict[str, dict[str, int]]:
    """Return until when the instances of each model execute other requests than the simulated ones.

    If requests of the first batch of an instance waited although its rule was satisfied, they waited for an execution
    that had begun earlier: a trace does not contain it.

    Parameters
    ----------
    rec : Recording
        With the configurations of its models.
    replayed : collection of int
        The serials of the simulated requests.
    begin_ns : int
        From which the result counts.

    Returns
    -------
    dict of str to dict
        By model and instance; in ns.
    """
    sent = {(event.model, event.batch): event for event in rec.events if isinstance(event, BatchSent)}
    executed = [event for event in rec.events if isinstance(event, BatchExecuted) and event.model in rec.configs]
    ends_ns: dict[str, dict[str, int]] = defaultdict(dict)
    begun: dict[str, list[str]] = defaultdict(list)
    for event in sorted(executed, key=attrgetter("exec_start_ns")):
        known, config = begun[event.model], rec.configs[event.model]
        if event.instance in known:
            continue
        queued_ns = [since_ns for serial, _, _, since_ns, _ in event.requests if serial in replayed]
        if not queued_ns:
            ends_ns[event.model][event.instance] = event.exec_end_ns - begin_ns
            continue
        known.append(event.instance)
        decision = sent.get((event.model, event.batch))
        if decision is not None and decision.time_ns > _due_ns(decision.rule, queued_ns, config):
            names = instance_names(config)
            # A trace may not name the instances.
            is_named = event.instance in names or rec.replicas
            name = event.instance if is_named else names[(len(known) - 1) % len(names)]
            ends_ns[event.model][name] = max(ends_ns[event.model].get(name, 0), decision.time_ns - begin_ns)
    return ends_ns


def _due_ns(rule: str, queued_ns: list[int], config: pb.ModelConfig) -> float:
    """Return when an idle instance gets a batch of requests that are queued since these times."""
    if config.HasField("sequence_batching"):
        return float("inf")  # a request also waits for the slot of its sequence
    if rule in _AT_ONCE:
        return max(queued_ns)
    delay_us: int = config.dynamic_batching.max_queue_delay_microseconds
    return min(queued_ns) + _LATE * 1000 * delay_us


def from_its_begin(rec: Recording) -> Recording:
    """Return the part of a recording with the requests that arrived after it began: those that can be simulated.

    Parameters
    ----------
    rec : Recording
    """
    begin_ns = min((event.time_ns for event in rec.events), default=0)
    members = [one for event in rec.events if isinstance(event, BatchExecuted) for one in event.requests]
    ensembles = [event for event in rec.events if isinstance(event, EnsembleExecuted)]
    early = {serial for serial, *_ in members if serial not in rec.arrived}
    # The first recorded event may be the first step of a request that was received some microseconds earlier.
    first_steps = {name: _first_steps(config) for name, config in rec.configs.items()}
    begun = {
        event.serial
        for event in rec.events
        if isinstance(event, StepSent) and event.step in first_steps.get(event.model, ())
    }
    early |= {event.serial for event in ensembles if event.received_ns < begin_ns and event.serial not in begun}
    if not early:
        return rec
    for event in rec.events:
        if isinstance(event, StepSent) and event.serial in early:  # which comes before those of its own steps
            early.add(event.step_serial)
    rows = {serial: size for serial, size, *_ in members if serial in early}

    def kept() -> Iterator[Event]:
        for event in rec.events:
            if isinstance(event, BatchExecuted):
                requests = tuple([request for request in event.requests if request[0] not in rows])
                if requests:
                    size = event.size - sum(rows.get(request[0], 0) for request in event.requests)
                    yield replace(event, requests=requests, size=size)
            elif isinstance(event, BatchSent):
                others = tuple([serial for serial in event.members if serial not in rows])
                size = event.size - sum(rows.get(serial, 0) for serial in event.members if serial is not None)
                yield replace(event, members=others, size=size)
            elif getattr(event, "serial", 0) not in early:
                yield event

    return Recording(kept(), rec.configs, simulated=rec.simulated, source=rec.source)


def _first_steps(config: pb.ModelConfig) -> set[int]:
    """Return the steps of an ensemble that begin when its request is received."""
    if not config.ensemble_scheduling.step:
        return set()
    return {node.step for node in ensemble_graph(config).nodes if node.layer == 1}
