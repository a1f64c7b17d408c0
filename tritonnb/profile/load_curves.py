"""Load curves: how throughput and latency of a configuration change with the rate of arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.profile.trial import capacity
from tritonnb.recording.recording import Recording
from tritonnb.recording.simulate import simulate
from tritonnb.simulation.arrivals import poisson
from tritonnb.simulation.service import Service

#: Recordings of one model at different rates, or several such series by name.
Runs = Sequence[Recording] | Mapping[str, Sequence[Recording]]
#: The simulated rates, as shares of the capacity: closer to each other where latency rises.
_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.87, 0.93, 0.97)


def simulate_load_curve(
    config: pb.ModelConfig, service: Service, *, rows: int = 1, requests: int = 2000, seed: int = 0
) -> list[Recording]:
    """Simulate a configuration with Poisson arrivals at rates up to its capacity.

    Parameters
    ----------
    config : inference.ModelConfig
        Of a stateless model.
    service : Service
        The execution time by batch size.
    rows : int, optional
        Rows of each request.
    requests : int, optional
        Number of requests at each rate.
    seed : int, optional

    Returns
    -------
    list of Recording
        By ascending rate.

    Raises
    ------
    InvalidArgumentError
        If the model is stateful: its requests are not independent of each other.

    Examples
    --------
    >>> from tritonnb.simulation.service import linear
    >>> config = pb.ModelConfig(max_batch_size=8, dynamic_batching=pb.ModelDynamicBatching())
    >>> recordings = simulate_load_curve(config, linear(1, 4), requests=50)
    >>> [round(recording.summary()["mean_batch_size"], 1) for recording in recordings][:3]
    [1.0, 1.1, 1.4]
    """
    if config.HasField("sequence_batching"):
        raise InvalidArgumentError(
            f"model '{config.name}': a load curve expected a stateless model, got one with sequence_batching"
        )
    rates = [share * capacity(config, service) / rows for share in _SHARES]
    return [simulate(config, poisson(rate, requests / rate, seed=seed, rows=rows), service) for rate in rates]
