"""`simulate`: a workload and a configuration in virtual time, as a recording."""

from __future__ import annotations

from tritonnb.model_config.read import AnyConfig, read_config
from tritonnb.model_config.validate import check_scheduling
from tritonnb.recording.recording import Recording
from tritonnb.simulation.arrivals import Arrivals
from tritonnb.simulation.run import run
from tritonnb.simulation.service import Service


def simulate(config: AnyConfig, arrivals: Arrivals, service: Service, *, seed: int = 0) -> Recording:
    """Run a workload against a configuration in virtual time.

    The scheduler objects are those that serve; only the clock and the instances are imitated.

    Parameters
    ----------
    config : ModelConfig, str, path or dict
        A configuration as a message, the text of a *config.pbtxt*, JSON or a dict as Triton's config endpoint gives
        it, or the path of a file. ``instance_group`` gives the number of instances.
    arrivals : iterable of Arrival or of (time in µs, rows), or ClosedLoop
        `Recording.arrivals` gives those of a live server.
    service : Service
        How long an execution takes: `fixed`, `linear`, `table`, `measured`, `jittered`, a function of one's own
        with its unit (`service_time`), or any function from rows to nanoseconds.
    seed : int, optional
        Of what is random in the service times.

    Returns
    -------
    Recording
        The same for the same arguments, to the nanosecond.

    Raises
    ------
    InvalidArgumentError
        If a configuration, arrivals or a service model cannot be.

    Examples
    --------
    Triton's Conceptual Guide: five requests, at most eight rows in a batch.

    >>> from tritonnb.simulation.service import fixed
    >>> config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    >>> from tritonnb.simulation.arrivals import Arrival
    >>> late = [Arrival(ms=100 / 3, rows=rows) for rows in (6, 2)]
    >>> arrivals = [Arrival(ms=0, rows=4), Arrival(ms=50 / 3, rows=2), Arrival(ms=0, rows=2), *late]
    >>> [batch.size for batch in simulate(config, arrivals, fixed(50)).batches]
    [8, 8]
    """
    message = read_config(config, check=check_scheduling)
    events = run(message, arrivals, service, seed)
    return Recording(events, {message.name: message}, simulated=True)
