"""Simulating a configuration with arrivals: the scheduler in virtual time.

The schedulers are those that also serve; only the clock and the instances are simulated. The result is the events that
a live server would emit.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchExecuted, BatchSent, Event
from tritonnb.core.failures import warn
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.arrivals import Arrivals, ClosedLoop
from tritonnb.lab.simulation.calling_models import CallingModel
from tritonnb.lab.simulation.calls import CallingService
from tritonnb.lab.simulation.engine import Columns, SimulatedModel, Simulation, Target, in_order
from tritonnb.lab.simulation.ensembles import SimulatedEnsemble, answer, execution_times
from tritonnb.lab.simulation.replicas import Router, make_router
from tritonnb.lab.simulation.service import ExecutionTimes, Service, VaryingService
from tritonnb.model_config.diagnose import problem_context
from tritonnb.model_config.validate import check_scheduling
from tritonnb.recording.instance_names import instance_on
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.from_config import ensemble_graph, make_scheduler


def refuse_ensemble(config: pb.ModelConfig) -> None:
    """Refuse an ensemble where one service time is given."""
    if config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(
            f"model '{config.name}': simulation expected a model that is executed, got an ensemble; simulate it with "
            "the models of its steps: tnb.simulate(repository, arrivals, {step: service, ...})"
        )


def run_models(
    configs: Mapping[str, pb.ModelConfig],
    arrivals: Mapping[str, Arrivals],
    services: Mapping[str, Service],
    seed: int,
    *,
    first_step_ns: int = 0,
    replicas: int = 1,
    router: Router = "two_choices",
    columns: MutableMapping[str, Columns] | None = None,
    busy_until: Mapping[str, Mapping[str, int]] | None = None,
) -> list[Event]:
    """Simulate models and ensembles on one server, and return their events.

    Parameters
    ----------
    configs : dict of str to ModelConfig
        By name; the models of the steps of each ensemble, and those that are called, among them. ``instance_group``
        determines the number of instances.
    arrivals : dict of str to Arrivals
        By the name of the model that clients send them to.
    services : dict of str to Service
        By the names of the models that are executed.
    seed : int
        Seed of random service times, and of a random router.
    first_step_ns : int, optional
        What the first step of each request adds to the time of an execution: a language model reads its prompt.
    replicas : int, optional
        The number of servers with these configurations.
    router : str or callable, optional
        Which of them gets a request; see `make_router`.
    columns : dict of str to Columns, optional
        Filled with the numbers of the models; no events are made then.
    busy_until : dict of str to dict, optional
        By model and instance, until when (in ns) work that began earlier keeps an instance busy.

    Warns
    -----
    UserWarning
        If a function without a unit, which returns nanoseconds, returned less than a microsecond.

    Raises
    ------
    InvalidArgumentError
        If the number of replicas is not positive or the router is unknown; if an arrival is invalid, or has more rows
        than ``max_batch_size``; if a configuration violates a rule of its scheduler; or if a service model does not
        return a time.
    """
    for config in configs.values():
        with problem_context(config):
            check_scheduling(config)
    if replicas < 1:
        name = next(iter(configs))
        raise InvalidArgumentError(f"model '{name}': simulation expected at least 1 replica, got {replicas}")
    ensembles = {name for name, config in configs.items() if config.HasField("ensemble_scheduling")}
    simulation = Simulation(has_steps=len(configs) > 1)
    times: dict[str, ExecutionTimes] = {}
    targets: dict[str, Target] = {}

    def target(name: str) -> Target:
        if name not in targets:
            kept = None if columns is None else columns.setdefault(name, Columns())
            targets[name] = ensemble(name, kept) if name in ensembles else model(name, kept)
        return targets[name]

    def ensemble(name: str, kept: Columns | None) -> Target:
        config = configs[name]
        graph = ensemble_graph(config, lambda step, _: configs[step].model_transaction_policy.decoupled)
        steps = [target(step.model_name) for step in graph.steps]
        return SimulatedEnsemble(config, graph, steps, simulation, kept, replicas, make_router(router, seed))

    def model(name: str, kept: Columns | None) -> Target:
        config = configs[name]
        # The models of a pipeline vary independently of one another, and the first like a single model.
        service, model_seed = services[name], seed + len(times)
        times[name] = ExecutionTimes(service, model_seed)
        instances = instance_names(config)
        schedulers = [make_scheduler(config, len(instances), os.environ) for _ in range(replicas)]
        route = make_router(router, seed)
        busy = (busy_until or {}).get(name, {})
        first_idle_ns = [
            [busy.get(instance_on(replica, one) if replicas > 1 else one, 0) for one in instances]
            for replica in range(1, replicas + 1)
        ]
        parts = (
            *(config, simulation.clock, answer, kept, instances, schedulers, first_idle_ns),
            *(times[name], first_step_ns, route),
        )
        if not isinstance(service, CallingService):
            return SimulatedModel(*parts, _gathers(service, seed))
        caller = CallingModel(*parts)
        caller.make_calls(service.plans(model_seed), {called: target(called) for called in service.models}, simulation)
        return caller

    workload = {target(name): requests for name, requests in arrivals.items()}
    streams = {receiver: requests for receiver, requests in workload.items() if not isinstance(requests, ClosedLoop)}
    for receiver, requests in workload.items():
        if isinstance(requests, ClosedLoop):
            simulation.closed_loop(requests, receiver)
    # An iterator is not read ahead if only numbers are kept.
    is_read_ahead = columns is None or not any(isinstance(requests, Iterator) for requests in streams.values())
    simulation.open_loop(streams, is_read_ahead)
    simulation.clock.run()
    for one in targets.values():
        if isinstance(one, CallingModel) and one.running:
            raise InvalidArgumentError(
                f"model '{one.name}': simulation expected that its calls end, got one that waits"
            )
    for warning in filter(None, (model_times.warning for model_times in times.values())):
        warn(warning)
    return _events(list(targets.values())) if columns is None else []


def _gathers(service: Service, seed: int) -> Callable[[], bool] | None:
    share = service.gathering if isinstance(service, VaryingService) else 0.0
    rng = random.Random(f"{seed} gathering")
    return (lambda: rng.random() < share) if share else None


def recorded_run(
    configs: Mapping[str, pb.ModelConfig],
    arrivals: Mapping[str, Arrivals],
    services: Mapping[str, Service],
    seed: int,
    **options: Any,
) -> Recording:
    """Return the recording of `run_models`."""
    return Recording(run_models(configs, arrivals, services, seed, **options), configs, simulated=True)


def _events(targets: Sequence[Target]) -> list[Event]:
    events = [event for one in targets for event in one.events()]
    ensembles = [one for one in targets if isinstance(one, SimulatedEnsemble)]
    infer_ns = execution_times(events) if ensembles else {}
    # An ensemble is complete before the ensembles that contain it are.
    for one in ensembles:
        events += one.executed(infer_ns)
    in_order(events)
    if len(targets) > 1:
        _number_batches(events)
    return events


def _number_batches(events: list[Event]) -> None:
    """Number the batches of all models in the order in which they were sent, as a server does."""
    numbers: dict[tuple[str, int], int] = {}
    for event in events:
        if isinstance(event, BatchSent):
            numbers[event.model, event.batch] = len(numbers) + 1
    for event in events:
        if isinstance(event, BatchSent | BatchExecuted):
            event.batch = numbers[event.model, event.batch]


def instance_count(config: pb.ModelConfig) -> int:
    """Return the number of instances in a configuration."""
    return len(instance_names(config))


def capacity(config: pb.ModelConfig, service: Service, request_rows: int = 1) -> float:
    """Return the maximum rows per second: of all instances, at their most efficient batch size.

    Without a batcher, a batch is one request with all its rows.

    Examples
    --------
    >>> from tritonnb.lab.simulation.service import fixed
    >>> plain, batching = pb.ModelConfig(max_batch_size=4), pb.ModelConfig(max_batch_size=4, dynamic_batching={})
    >>> capacity(plain, fixed(5)), capacity(plain, fixed(5), 2), capacity(batching, fixed(5))
    (200.0, 400.0, 800.0)
    """
    batches = config.WhichOneof("scheduling_choice") is not None
    sizes = range(1, max(1, config.max_batch_size) + 1) if batches else [request_rows]
    return instance_count(config) * max(rows * 1e9 / max(1000, service(rows)) for rows in sizes)


def instance_names(config: pb.ModelConfig) -> list[str]:
    """Return the names of the instances in a configuration, as a server names them.

    Examples
    --------
    >>> instance_names(pb.ModelConfig(name="m", instance_group=[{"count": 2}, {"name": "slow"}]))
    ['m_0_0', 'm_0_1', 'slow_0']
    """
    names = []
    for index, group in enumerate(config.instance_group or [pb.ModelInstanceGroup()]):
        count = max(1, group.count) * max(1, len(group.gpus))
        names += [f"{group.name or f'{config.name}_{index}'}_{number}" for number in range(count)]
    return names
