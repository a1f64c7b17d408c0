"""`replay_draft`: what the latest recorded requests would have experienced under a draft of the configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import RequestArrived
from tritonnb.model_config.read import AnyConfig, read_config
from tritonnb.recording.recording import Recording
from tritonnb.recording.simulate import simulated
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.service import Service


@dataclass(frozen=True)
class DraftReplay:
    """The same arrivals under the running configuration and under a draft, both simulated.

    Attributes
    ----------
    before, after : Recording
        Times count from the first arrival.
    begin_ns : int
        Monotonic time of the first arrival.
    """

    before: Recording
    after: Recording
    begin_ns: int

    def figures(self) -> dict[str, tuple[float, float]]:
        """Return key figures before and after: ``mean_batch_size``, ``latency_p99_ms``, ``refused`` (requests)."""
        before, after = self.before.summary(), self.after.summary()
        return {name: (before[name], after[name]) for name in ("mean_batch_size", "latency_p99_ms", "refused")}

    def verdict(self) -> str:
        """Return the changes in one sentence."""
        rows, p99, refused = self.figures().values()
        sentence = (
            f"The last {len(self.before.arrivals())} requests under this draft: mean batch {rows[0]:.1f} → "
            f"{rows[1]:.1f} rows, p99 {p99[0]:.1f} → {p99[1]:.1f} ms"
        )
        if any(refused):
            sentence += f", refused {refused[0]:.0f} → {refused[1]:.0f}"
        return f"{sentence} (simulated)."


def replay_draft(
    rec: Recording,
    draft: AnyConfig,
    *,
    seconds: float = 3.0,
    requests: int = 1000,
    service: Service | None = None,
) -> DraftReplay:
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
    service : Service, optional
        Service-time model; by default the recorded one.

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
    'The last 200 requests under this draft: mean batch 1.8 → 3.9 rows, p99 19.8 → 30.0 ms (simulated).'
    """
    arrived = [event for event in rec.events if isinstance(event, RequestArrived)]
    models = {event.model for event in arrived}
    if len(models) != 1 or not models <= rec.configs.keys():
        names = ", ".join(sorted(models)) or "none"
        raise InvalidArgumentError(
            f"replay_draft expected a recording of one model with its configuration, got {names}"
        )
    running = rec.configs[models.pop()]
    first_ns = arrived[-1].time_ns - round(seconds * 1e9)
    count = min(requests, sum(event.time_ns >= first_ns for event in arrived))
    begin_ns = arrived[-count].time_ns
    arrivals = list(_from_zero(rec.arrivals()[-count:]))
    times = service or rec.service().since(begin_ns - arrived[0].time_ns)
    before, after = (simulated(config, arrivals, times) for config in (running, read_config(draft, name=running.name)))
    return DraftReplay(before, after, begin_ns)


def _from_zero(arrivals: list[Arrival]) -> Iterable[Arrival]:
    """Return the arrivals with times from 0; the first request of each sequence has the START flag."""
    begin_us = arrivals[0].time_us
    started: set[int | str] = set()
    for arrival in arrivals:
        starts = arrival.sequence_start or bool(arrival.sequence_id and arrival.sequence_id not in started)
        started.add(arrival.sequence_id)
        yield dataclasses.replace(
            arrival,
            time_us=arrival.time_us - begin_us,
            sequence_start=starts,
            cancel_us=None if arrival.cancel_us is None else max(0.0, arrival.cancel_us - begin_us),
        )
