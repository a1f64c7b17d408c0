"""Upper bounds of latencies, such as ``"p99 < 50 ms"``."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.telemetry.quantiles import quantile

_TERM = re.compile(r"\s*(p\d+(?:\.\d+)?|mean|max)\s*<=?\s*(\d+(?:\.\d+)?)\s*(us|µs|ms|s)\s*")
_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Constraint:
    """Upper bounds of latencies.

    Attributes
    ----------
    text : str
        The constraint as written.
    bounds : dict of str to float
        Milliseconds, by ``p99``, ``mean``, ``max``, …
    """

    text: str
    bounds: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Parse ``"p99 < 50 ms"``, or several bounds joined by ``and``.

        Raises
        ------
        InvalidArgumentError
            If it is not of that form.

        Examples
        --------
        >>> Constraint.parse("p99 < 50 ms and mean < 900 us").bounds
        {'p99': 50.0, 'mean': 0.9}
        """
        bounds = {}
        for term in text.split(" and "):
            match = _TERM.fullmatch(term)
            if match is None or (match[1][0] == "p" and float(match[1][1:]) > 100):
                raise InvalidArgumentError(
                    f"constraint expected bounds such as 'p99 < 50 ms' or 'mean < 5 ms and max < 1 s', got '{text}'"
                )
            bounds[match[1]] = float(match[2]) * _MS[match[3]]
        return cls(text, bounds)

    def holds(self, latencies_ms: npt.NDArray[np.float64]) -> bool:
        """Whether the latencies satisfy all bounds; false without latencies."""
        return bool(len(latencies_ms)) and all(
            measure(latencies_ms, name) <= bound for name, bound in self.bounds.items()
        )


def measure(latencies_ms: npt.NDArray[np.float64], name: str) -> float:
    """The percentile, mean or maximum with that name."""
    if name == "mean":
        return float(latencies_ms.mean())
    if name == "max":
        return float(latencies_ms.max())
    return quantile(np.sort(latencies_ms).tolist(), float(name[1:]) / 100)
