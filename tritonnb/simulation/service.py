"""How long an execution takes: the service-time models of a simulation.

A service model is a function from the batch's rows to nanoseconds.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tritonnb.core.errors import InvalidArgumentError

Service = Callable[[int], int]


def fixed(ms: float) -> Service:
    """Every batch takes the same time, in milliseconds.

    Examples
    --------
    >>> fixed(50)(8)
    50000000
    """
    return lambda rows: round(ms * 1e6)


def linear(alpha_ms: float, tau0_ms: float) -> Service:
    """``alpha * rows + tau0``: what fits most models (Inoue, arXiv:1912.06322).

    Parameters
    ----------
    alpha_ms : float
        Milliseconds for each row.
    tau0_ms : float
        Milliseconds for the batch.

    Examples
    --------
    >>> linear(alpha_ms=0.5, tau0_ms=5)(4)
    7000000
    """
    return lambda rows: round((alpha_ms * rows + tau0_ms) * 1e6)


def table(ms_of_rows: Mapping[int, float]) -> Service:
    """Milliseconds by batch size, straight lines in between; beyond the ends the last slope goes on.

    Raises
    ------
    InvalidArgumentError
        If there is no batch size.

    Examples
    --------
    >>> table({1: 10, 3: 20})(2)
    15000000
    """
    if not isinstance(ms_of_rows, Mapping) or not ms_of_rows:
        raise InvalidArgumentError(
            f"a service-time table needs milliseconds for at least one batch size, got {ms_of_rows!r}"
        )
    sizes = sorted(ms_of_rows)

    def service(rows: int) -> int:
        if len(sizes) == 1:
            return round(ms_of_rows[sizes[0]] * 1e6)
        right = min(max(bisect_left(sizes, rows), 1), len(sizes) - 1)
        low, high = sizes[right - 1], sizes[right]
        slope = (ms_of_rows[high] - ms_of_rows[low]) / (high - low)
        return max(0, round((ms_of_rows[low] + slope * (rows - low)) * 1e6))

    return service


def measured(stats: Mapping[str, Any]) -> Service:
    """The mean times of a live model, from its entry in the statistics (``batch_stats``).

    Parameters
    ----------
    stats : mapping
        ``server["name"].stats()``, or what a client of any Triton gets: an entry of ``model_stats`` or the whole
        answer if it has one entry, over HTTP or over gRPC with ``as_json=True`` (where integers are strings, and
        zeros are left out).

    Raises
    ------
    InvalidArgumentError
        If nothing was executed, so that no time is known, or it is not the statistics of one model.

    Examples
    --------
    >>> parts = {part: {"count": "2", "ns": "6000000"} for part in ("compute_input", "compute_infer", "compute_output")}
    >>> measured({"model_stats": [{"name": "m", "batch_stats": [{"batch_size": "4", **parts}]}]})(4)
    9000000
    """
    entry = _entry_of_one_model(stats)
    if not entry.get("batch_stats"):
        raise InvalidArgumentError("these statistics know of no execution, so no service time is known")
    return table({int(batch["batch_size"]): _mean_compute_ms(batch) for batch in entry["batch_stats"]})


def _entry_of_one_model(stats: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(stats, Mapping):
        raise InvalidArgumentError(f"statistics expected a dict with 'batch_stats', got {type(stats).__name__}")
    if "model_stats" not in stats:
        return stats
    entries: list[Mapping[str, Any]] = stats["model_stats"]
    if len(entries) != 1:
        names = ", ".join(f"'{entry.get('name')}'" for entry in entries) or "none"
        raise InvalidArgumentError(f"statistics expected one model in 'model_stats', got {names}: give one entry")
    return entries[0]


def _mean_compute_ms(batch: Mapping[str, Any]) -> float:
    parts = [batch.get(part, {}) for part in ("compute_input", "compute_infer", "compute_output")]
    return sum(int(part.get("ns", 0)) / max(int(part.get("count", 0)), 1) for part in parts) / 1e6


@dataclass(frozen=True)
class Jittered:
    """A service model with a random factor; see `jittered`."""

    service: Service
    sigma: float

    def __call__(self, rows: int) -> int:
        """Without a seed, the median."""
        return self.service(rows)


def jittered(service: Service, *, sigma: float) -> Jittered:
    """Another service model with a log-normal factor of median 1; `simulate` seeds it.

    Parameters
    ----------
    service : Service
    sigma : float
        Standard deviation of the factor's logarithm.
    """
    return Jittered(service, sigma)


def seeded(service: Service, seed: int) -> Service:
    """A service model whose random factor, if it has one, comes from a seed."""
    if not isinstance(service, Jittered):
        return service
    chance = random.Random(seed)
    inner, sigma = service.service, service.sigma
    return lambda rows: round(inner(rows) * math.exp(chance.gauss(0.0, sigma)))
