"""`simulate`: run a workload against a configuration in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.lab.simulation.arrivals import Arrivals
from tritonnb.lab.simulation.engine import Columns, NoColumns
from tritonnb.lab.simulation.models import Models, entry_model, needed_models, read_models
from tritonnb.lab.simulation.replicas import Router
from tritonnb.lab.simulation.run import recorded_run, refuse_ensemble, run_models
from tritonnb.lab.simulation.service import Service
from tritonnb.model_config.read import AnyConfig, read_config
from tritonnb.model_config.validate import check_scheduling
from tritonnb.recording.recording import Recording

if TYPE_CHECKING:
    from tritonnb.lab.simulation.latencies import SimulatedLatencies


class _Options(TypedDict, total=False):
    model: str | None
    seed: int
    replicas: int
    router: Router


@overload
def simulate(
    config: AnyConfig | Models,
    arrivals: Arrivals | Mapping[str, Arrivals],
    service: Service | Mapping[str, Service],
    *,
    keep: Literal["everything"] = "everything",
    **options: Unpack[_Options],
) -> Recording: ...
@overload
def simulate(
    config: AnyConfig | Models,
    arrivals: Arrivals | Mapping[str, Arrivals],
    service: Service | Mapping[str, Service],
    *,
    keep: Literal["latencies"],
    **options: Unpack[_Options],
) -> SimulatedLatencies: ...
@overload
def simulate(
    config: AnyConfig | Models,
    arrivals: Arrivals | Mapping[str, Arrivals],
    service: Service | Mapping[str, Service],
    *,
    keep: Literal["summary"],
    **options: Unpack[_Options],
) -> dict[str, float]: ...
@with_short_traceback
@with_checked_types
def simulate(
    config: AnyConfig | Models,
    arrivals: Arrivals | Mapping[str, Arrivals],
    service: Service | Mapping[str, Service],
    *,
    model: str | None = None,
    seed: int = 0,
    replicas: int = 1,
    router: Router = "two_choices",
    keep: Literal["everything", "latencies", "summary"] = "everything",
) -> Recording | SimulatedLatencies | dict[str, float]:
    """Run a workload against a configuration, or against an ensemble and the models of its steps, in virtual time.

    The schedulers are the server's; only the clock and the instances are simulated.

    Parameters
    ----------
    config : ModelConfig, str, path, dict or Server
        A message, the text of a *config.pbtxt*, JSON or a dict as returned by Triton's config endpoint, or the path of
        a file. ``instance_group`` determines the number of instances. With service times by model several models: the
        path of a model repository, a server, a list of configurations, or a dict of configurations by name.
    arrivals : iterable of Arrival or of (time in µs, rows), or ClosedLoop
        `Recording.arrivals` returns the arrivals at a live server. Of several models, a dict of arrivals by name if
        clients send requests to more than one of them.
    service : Service, or dict of str to Service
        Execution time by batch size: `fixed`, `linear`, `table`, `measured`, `jittered`, your own function with its
        unit (`service_time`), or any function from rows to nanoseconds. A dict has the time of each model by its name,
        and what a model that calls others does (`calling`).
    model : str, optional
        Of several models, the model that clients send requests to; by default the only ensemble, or model that calls
        others, that no other one contains or calls.
    seed : int, optional
        Seed of random service times, and of a random router.
    replicas : int, optional
        The number of servers with this configuration, behind a router. The requests of a sequence go to one of them, as
        do all steps of a request to an ensemble.
    router : str or callable, optional
        Which server gets a request: the less loaded of two random servers (``"two_choices"``, as Ray Serve routes),
        ``"least_loaded"``, ``"round_robin"``, ``"random"``, or a function of the numbers of requests in flight that
        returns an index. The time that routing takes is not simulated.
    keep : str, optional
        ``"everything"``: events and reasons. ``"latencies"``: a few numbers per request, in arrays. ``"summary"``:
        the dict of `Recording.summary`, without the times of tokens. The latter two are for long runs: they are
        faster and take a twentieth of the memory, and arrivals may be an iterator in the order of time.

    Returns
    -------
    Recording, SimulatedLatencies or dict
        What is kept. Deterministic: the same arguments produce the same result, to the nanosecond.

    Raises
    ------
    InvalidArgumentError
        If the configuration, the arrivals, the service model, or the router is invalid.

    Examples
    --------
    Triton's Conceptual Guide: five requests, at most eight rows in a batch.

    >>> from tritonnb.lab.simulation.service import fixed
    >>> config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    >>> from tritonnb.recording.arrivals import Arrival
    >>> later = [Arrival(ms=100 / 3, rows=rows) for rows in (6, 2)]
    >>> arrivals = [Arrival(ms=0, rows=4), Arrival(ms=50 / 3, rows=2), Arrival(ms=0, rows=2), *later]
    >>> [batch.size for batch in simulate(config, arrivals, fixed(50)).batches]
    [8, 8]
    >>> simulate(config, arrivals, fixed(50), keep="latencies").latency_ns.tolist()
    [66666667, 66666667, 50000000, 83333334, 83333334]

    An ensemble: the responses of one step are the arrivals at the next one.

    >>> steps = '''
    ... input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
    ... platform: "ensemble" max_batch_size: 8 ensemble_scheduling {
    ...   step { model_name: "pre" input_map { key: "I" value: "X" } output_map { key: "O" value: "t" } }
    ...   step { model_name: "net" input_map { key: "I" value: "t" } output_map { key: "O" value: "Y" } }
    ... }'''
    >>> models = {"both": steps, "pre": "max_batch_size: 8", "net": "max_batch_size: 8 dynamic_batching { }"}
    >>> arrivals = [Arrival(ms=ms) for ms in (0, 1, 2, 3)]
    >>> rec = simulate(models, arrivals, {"pre": fixed(2), "net": fixed(10)})
    >>> {name: [batch.size for batch in rec.for_model(name).batches] for name in ("pre", "net")}
    {'pre': [1, 1, 1, 1], 'net': [1, 3]}
    """
    if keep not in ("everything", "latencies", "summary"):
        raise InvalidArgumentError(f"keep expected 'everything', 'latencies' or 'summary', got {keep!r}")
    if isinstance(service, Mapping):
        configs = read_models(config)
        workload = arrivals if isinstance(arrivals, Mapping) else {entry_model(configs, service, model): arrivals}
        entries = [entry_model(configs, service, name) for name in workload]
        services = service
    elif isinstance(arrivals, Mapping):
        raise InvalidArgumentError("simulation expected service times by model with arrivals by model, got one time")
    else:
        single = read_config(config, check=check_scheduling)
        refuse_ensemble(single)
        entries, configs = [single.name], {single.name: single}
        workload, services = {single.name: arrivals}, {single.name: service}
    models = needed_models(configs, entries, services)
    if keep == "everything":
        return recorded_run(models, workload, services, seed, replicas=replicas, router=router)
    if len(entries) > 1:
        raise InvalidArgumentError(f"keep={keep!r} expected arrivals at one model, got arrivals at {len(entries)}")
    by_model: dict[str, Columns] = {name: NoColumns() for name in models}
    columns = by_model[entries[0]] = Columns()
    run_models(models, workload, services, seed, replicas=replicas, router=router, columns=by_model)
    if keep == "summary":
        return columns.summary()
    from tritonnb.lab.simulation.latencies import (
        latencies_from_columns,  # needs NumPy, which the playground does not have
    )

    return latencies_from_columns(columns)
