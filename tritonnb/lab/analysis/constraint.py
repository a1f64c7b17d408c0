"""Constraints on latencies, such as ``p99 < 50 ms``: a condition whose times have units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.analysis.conditions import Condition
from tritonnb.telemetry.quantiles import quantile

_QUANTITY = r"\bp\d+(?:\.\d+)?|\bmean\b|\bmax\b"
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s)\b")
_BOUND = re.compile(rf"({_QUANTITY})\s*<=?\s*{_TIME.pattern}")
_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Constraint:
    """A condition on latencies.

    Parameters
    ----------
    text : str
        A condition on percentiles (``p99``, ``p99.9``), ``mean`` and ``max``; times have a unit: ``us``, ``ms``, ``s``.

    Raises
    ------
    InvalidArgumentError
        If it is not such a condition.

    Examples
    --------
    >>> constraint = Constraint("p99 < 50 ms and mean < 900 us")
    >>> constraint.bounds
    {'p99': 50.0, 'mean': 0.9}
    >>> constraint.holds(np.array([0.5, 0.7])), constraint.holds(np.array([0.5, 70.0]))
    (True, False)
    """

    text: str
    _condition: Condition = field(init=False, repr=False, compare=False)
    _names: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text = str(self.text)
        quantities = sorted(set(re.findall(_QUANTITY, text)), key=len, reverse=True)
        # Python's parser reads the condition: its names have no dots, and its numbers no units.
        plain = re.sub(_QUANTITY, lambda match: match[0].replace(".", "_"), text)
        is_valid = _TIME.search(text) and not re.search(r"\d", _TIME.sub("", re.sub(_QUANTITY, "", text)))
        names = {quantity: quantity.replace(".", "_") for quantity in quantities}
        if not is_valid or not names or any(name[0] == "p" and float(name[1:]) > 100 for name in names):
            raise InvalidArgumentError(
                f"constraint expected bounds such as 'p99 < 50 ms' or 'mean < 5 ms and max < 1 s', got '{text}'"
            )
        plain = _TIME.sub(lambda match: str(float(match[1]) * _MS[match[2]]), plain)
        object.__setattr__(self, "_condition", Condition(plain, tuple(names.values())))
        object.__setattr__(self, "_names", names)

    @property
    def bounds(self) -> dict[str, float]:
        """The upper bounds in it, in milliseconds, by ``p99``, ``mean``, ``max``, …."""
        return {name: float(number) * _MS[unit] for name, number, unit in _BOUND.findall(self.text)}

    def holds(self, latencies_ms: npt.NDArray[np.float64]) -> bool:
        """Return whether the latencies satisfy it; false without latencies."""
        return bool(len(latencies_ms)) and self.holds_for(
            {quantity: measure(latencies_ms, quantity) for quantity in self._names}
        )

    @property
    def quantities(self) -> list[str]:
        """The quantities in it, such as ``p99``, in their order."""
        return sorted(self._names, key=self.text.index)

    def holds_for(self, measures_ms: Mapping[str, float]) -> bool:
        """Return whether quantities in ms satisfy it.

        Parameters
        ----------
        measures_ms : mapping of str to float
            By `quantities`.

        Examples
        --------
        >>> Constraint("p99 < 50 ms").holds_for({"p99": 49.0})
        True
        """
        return self._condition({name: measures_ms[quantity] for quantity, name in self._names.items()})


def percent_of(quantity: str) -> float:
    """Return the percentage of the latencies that a percentile with that name bounds; 50 for the mean."""
    return {"mean": 50.0, "max": 100.0}.get(quantity) or float(quantity[1:])


def measure(latencies_ms: npt.NDArray[np.float64], name: str) -> float:
    """Return the percentile, mean or maximum with that name."""
    if name == "mean":
        return float(latencies_ms.mean())
    if name == "max":
        return float(latencies_ms.max())
    return quantile(np.sort(latencies_ms).tolist(), float(name[1:]) / 100)
