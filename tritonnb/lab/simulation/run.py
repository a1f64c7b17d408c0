"""Simulating a configuration with arrivals: the scheduler in virtual time.

The schedulers are those that also serve; only the clock and the instances are simulated. The result is the events that
a live server would emit.
"""

from __future__ import annotations

import os

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import Event
from tritonnb.core.failures import warn
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.arrivals import Arrivals, ClosedLoop
from tritonnb.lab.simulation.engine import Columns, Simulation
from tritonnb.lab.simulation.replicas import Router, make_router
from tritonnb.lab.simulation.service import ExecutionTimes, Service
from tritonnb.model_config.diagnose import problem_context
from tritonnb.model_config.validate import check_scheduling
from tritonnb.scheduling.from_config import make_scheduler


def run(
    config: pb.ModelConfig,
    arrivals: Arrivals,
    service: Service,
    seed: int,
    *,
    first_step_ns: int = 0,
    replicas: int = 1,
    router: Router = "two_choices",
    columns: Columns | None = None,
) -> list[Event]:
    """Simulate a workload and return its events.

    Parameters
    ----------
    config : ModelConfig
        ``instance_group`` determines the number of instances.
    arrivals : iterable of Arrival or of (time in µs, rows), or ClosedLoop
    service : Service
    seed : int
        Seed of random service times, and of a random router.
    first_step_ns : int, optional
        What the first step of each request adds to the time of an execution: a language model reads its prompt.
    replicas : int, optional
        The number of servers with this configuration.
    router : str or callable, optional
        Which of them gets a request; see `make_router`.
    columns : Columns, optional
        Filled with the numbers of the run; no events are made then.

    Warns
    -----
    UserWarning
        If a function without a unit, which returns nanoseconds, returned less than a microsecond.

    Raises
    ------
    InvalidArgumentError
        If the number of replicas is not positive or the router is unknown; if an arrival is invalid, or has more rows
        than ``max_batch_size``; if the configuration violates a rule of its scheduler, or is an ensemble; or if the
        service model does not return a time.
    """
    with problem_context(config):
        check_scheduling(config)
    if config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(
            f"model '{config.name}': simulation expected a model that is executed, got an ensemble; simulate its steps"
        )
    if replicas < 1:
        raise InvalidArgumentError(f"model '{config.name}': simulation expected at least 1 replica, got {replicas}")
    times = ExecutionTimes(service, seed)
    route = make_router(router, seed)
    instances = instance_names(config)
    schedulers = [make_scheduler(config, len(instances), os.environ) for _ in range(replicas)]
    simulation = Simulation(config, instances, schedulers, times, first_step_ns, route, columns)
    if isinstance(arrivals, ClosedLoop):
        simulation.closed_loop(arrivals)
    else:
        simulation.open_loop(arrivals)
    events = simulation.events() if columns is None else []
    if times.warning:
        warn(times.warning)
    return events


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
