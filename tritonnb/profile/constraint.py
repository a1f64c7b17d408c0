"""What must hold of latencies: ``"p99 < 50 ms"``."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError

_TERM = re.compile(r"\s*(p\d+(?:\.\d+)?|mean|max)\s*<=?\s*(\d+(?:\.\d+)?)\s*(us|µs|ms|s)\s*")
_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Constraint:
    """Upper bounds of latencies.

    Attributes
    ----------
    text : str
        As it was written.
    bounds : dict of str to float
        Milliseconds, by ``p99``, ``mean``, ``max``, …
    """

    text: str
    bounds: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Read ``"p99 < 50 ms"``, or several such joined by ``and``.

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
            found = _TERM.fullmatch(term)
            if found is None or (found[1][0] == "p" and float(found[1][1:]) > 100):
                raise InvalidArgumentError(
                    f"constraint cannot be '{text}': write such as 'p99 < 50 ms' or 'mean < 5 ms and max < 1 s'"
                )
            bounds[found[1]] = float(found[2]) * _MS[found[3]]
        return cls(text, bounds)

    def holds(self, latencies_ms: npt.NDArray[np.float64]) -> bool:
        """Whether these latencies obey it; none at all do not."""
        return bool(len(latencies_ms)) and all(
            measure(latencies_ms, name) <= bound for name, bound in self.bounds.items()
        )


def measure(latencies_ms: npt.NDArray[np.float64], name: str) -> float:
    """The percentile, mean or maximum of that name."""
    if name == "mean":
        return float(latencies_ms.mean())
    return float(np.percentile(latencies_ms, 100 if name == "max" else float(name[1:])))
