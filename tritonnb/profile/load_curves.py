"""Load curves: how throughput and latency of a configuration change with the rate of arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.profile.trial import capacity
from tritonnb.recording.recording import Recording
from tritonnb.recording.simulate import simulate
from tritonnb.simulation.arrivals import poisson
from tritonnb.simulation.service import Service

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


@with_short_traceback
def plot_throughput_latency(runs: Runs, ax: Axes | None = None) -> Figure:
    """Draw latency against throughput of runs at different rates, with the predictions of queueing theory.

    Parameters
    ----------
    runs : sequence of Recording, or mapping of str to sequences of them
        Recordings of one model, live or simulated, each at another rate; several series by name.
    ax : Axes, optional
        By default a new figure is drawn.

    Returns
    -------
    matplotlib.figure.Figure
        The vertical lines are the capacities: the throughput with all instances at their most efficient batch size.
        The predictions are those of `theory`: an M/D/1 queue, which does not batch, and Inoue's bound where it holds.

    Raises
    ------
    InvalidArgumentError
        If the list is empty, or a recording is not of exactly one model.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> config = "max_batch_size: 16 dynamic_batching { }"
    >>> runs = [tnb.simulate(config, tnb.poisson(rate, 2, seed=1), tnb.linear(1, 4)) for rate in (100, 300, 500)]
    >>> figure = plot_throughput_latency(runs)
    >>> figure.alt[:58]
    'Latency against throughput. Of 106 to 481 requests/s, mean'
    """
    from tritonnb.figures import throughput_latency

    return throughput_latency.draw(runs, ax)
