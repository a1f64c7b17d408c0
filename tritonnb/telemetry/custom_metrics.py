"""Metrics that models define themselves (``pb_utils.MetricFamily``).

Instances that use the same name share one family, and metrics of a family with the same labels are one metric. A
family is removed when its last user has closed it. Models call from their own threads, so a lock guards the values;
the metrics endpoint reads `CustomMetrics.snapshot`.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

from tritonnb.core.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedError
from tritonnb.core.forks import fork_safe
from tritonnb.core.texts import find_text_error, shown
from tritonnb.telemetry.histogram import Histogram

#: The longest name, description or label, in characters: every reader of the metrics gets all of them each time.
LONGEST_TEXT = 1 << 16

Labels = tuple[tuple[str, str], ...]

_FAMILY_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")  # two underscores are for Prometheus itself


class MetricKind(enum.Enum):
    """The kinds of metrics, as Prometheus names them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The value of one metric at one time.

    Attributes
    ----------
    labels : tuple of (str, str)
    value : float
        For a histogram, the sum of all observations.
    buckets : tuple of (float, int)
        For a histogram: upper bounds, and the number of observations up to each. The last bound is infinite.
    """

    labels: Labels
    value: float
    buckets: tuple[tuple[float, int], ...] = ()


def _check_text(what: str, value: object) -> None:
    problem = find_text_error(what, value)
    if not problem and len(str(value)) > LONGEST_TEXT:
        problem = f"{what}: expected at most {LONGEST_TEXT} characters, got {len(str(value))}"
    if problem:
        raise InvalidArgumentError(problem)


def _number(what: str, value: object) -> float:
    """Convert a number of any type, such as a NumPy scalar, to the type that the endpoint can write.

    Raises
    ------
    TypeError
        If it is not a number; Triton raises the same.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, SupportsFloat):
        raise TypeError(f"{what} of a metric: expected a number, got {shown(value)}")
    try:
        return float(value)
    except Exception:  # such as an array of several elements, or an integer beyond the range of a float
        raise TypeError(f"{what} of a metric: expected a number, got {shown(value)}") from None


class CustomMetrics:
    """The families of a server."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._families: dict[str, CustomMetricFamily] = {}

    def open(self, name: str, description: str, kind: MetricKind) -> CustomMetricFamily:
        """Return the family with a name; create it if it does not exist. Call `close` after use.

        Raises
        ------
        InvalidArgumentError
            If it is not a valid Prometheus name, or the description is not a text that UTF-8 can express: every
            family is written for every reader, so one that cannot be written would take all others along.
        AlreadyExistsError
            If a family with this name but another kind exists.
        """
        _check_text("name of a metric family", name)
        if not _FAMILY_NAME.fullmatch(name):
            raise InvalidArgumentError(f"{shown(name)} is not a valid name of a metric family")
        _check_text(f"description of metric family '{name}'", description)
        with self._lock:
            family = self._families.get(name)
            if family is None:
                family = self._families[name] = self.create_family(name, description, kind)
            elif family.kind is not kind:
                raise AlreadyExistsError(f"metric family '{name}' exists already as a {family.kind.value}")
            family.users += 1
            return family

    def create_family(self, name: str, description: str, kind: MetricKind) -> CustomMetricFamily:
        """Create a family; called by `open` with the lock held."""
        return CustomMetricFamily(name, description, kind, self._lock)

    def close(self, family: CustomMetricFamily) -> None:
        """Release a family; it is removed when its last user has closed it."""
        with self._lock:
            family.users -= 1
            if not family.users:
                del self._families[family.name]

    @property
    def size(self) -> int:
        """The number of metrics."""
        with self._lock:
            return sum(len(family.metrics) for family in self._families.values())

    def snapshot(self) -> list[tuple[CustomMetricFamily, list[MetricSample]]]:
        """Return all families, ordered by name, with the values of their metrics in the order of creation."""
        with self._lock:
            families = [family for _, family in sorted(self._families.items())]
            return [(family, [metric.sample() for metric in family.metrics.values()]) for family in families]


class CustomMetricFamily:
    """Metrics of one name that differ in their labels: ``metrics`` has them by label, in the order of creation."""

    def __init__(self, name: str, description: str, kind: MetricKind, lock: threading.Lock) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.users = 0
        self._lock = lock
        self.metrics: dict[Labels, CustomMetric] = {}

    def metric(self, labels: Mapping[str, str], buckets: Sequence[float] | None = None) -> CustomMetric:
        """Return the metric with these labels; ``buckets`` are the upper bounds of a histogram, ascending.

        Raises
        ------
        InvalidArgumentError
            If a label or the buckets are invalid, or the family has buckets and is not a histogram.
        """
        if not isinstance(labels, Mapping):
            raise InvalidArgumentError(f"labels: expected a dict of str by name, got {shown(labels)}")
        for name, value in labels.items():
            _check_text("name of a label", name)
            if not LABEL_NAME.fullmatch(name) or (name == "le" and self.kind is MetricKind.HISTOGRAM):
                raise InvalidArgumentError(f"{shown(name)} is not a valid label of a metric")
            _check_text(f"label '{name}'", value)
        if (buckets is None) if self.kind is MetricKind.HISTOGRAM else buckets:
            raise InvalidArgumentError(
                "a histogram needs buckets" if self.kind is MetricKind.HISTOGRAM else "only a histogram has buckets"
            )
        bounds = tuple([_number("bucket", bound) for bound in buckets or ()])
        if any(not a < b for a, b in itertools.pairwise((-math.inf, *bounds))):
            raise InvalidArgumentError("the buckets of a histogram must rise")
        bounds = tuple([bound for bound in bounds if bound < math.inf])  # a histogram has the infinite one anyway
        key = tuple(sorted(labels.items()))
        with self._lock:
            if key not in self.metrics:
                self.metrics[key] = self.create_metric(key, bounds)
            return self.metrics[key]

    def create_metric(self, labels: Labels, bounds: Sequence[float]) -> CustomMetric:
        """Create a metric; called by `metric` with the lock held."""
        return CustomMetric(self.kind, labels, bounds, self._lock)


class CustomMetric:
    """One value, or one histogram."""

    def __init__(self, kind: MetricKind, labels: Labels, buckets: Sequence[float], lock: threading.Lock) -> None:
        self.kind = kind
        self.labels = labels
        self._lock = lock
        self._value = 0.0
        self._histogram = Histogram([*map(float, buckets)])

    def value(self) -> float:
        """Return the value of a counter or gauge.

        Raises
        ------
        UnsupportedError
            For a histogram.
        """
        self._require_kind("Value", MetricKind.COUNTER, MetricKind.GAUGE)
        return self._value

    def increment(self, amount: float) -> None:
        """Add to a counter or gauge; a counter cannot decrease.

        Raises
        ------
        InvalidArgumentError, UnsupportedError
            If the amount is invalid, or for a histogram.
        """
        self._require_kind("Increment", MetricKind.COUNTER, MetricKind.GAUGE)
        amount = _number("increment", amount)
        if self.kind is MetricKind.COUNTER and amount < 0:
            raise InvalidArgumentError(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            )
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        """Set a gauge.

        Raises
        ------
        UnsupportedError
            For other kinds.
        """
        self._require_kind("Set", MetricKind.GAUGE)
        value = _number("value", value)
        with self._lock:
            self._value = value

    def observe(self, value: float) -> None:
        """Add an observation to a histogram.

        Raises
        ------
        UnsupportedError
            For other kinds.
        """
        self._require_kind("Observe", MetricKind.HISTOGRAM)
        value = _number("observation", value)
        with self._lock:
            self._histogram.observe(value)

    def sample(self) -> MetricSample:
        """Return the current value; called with the lock held."""
        if self.kind is MetricKind.HISTOGRAM:
            return MetricSample(self.labels, self._histogram.sum, tuple(self._histogram.buckets()))
        return MetricSample(self.labels, self._value)

    def _require_kind(self, operation: str, *kinds: MetricKind) -> None:
        if self.kind not in kinds:
            raise UnsupportedError(f"TRITONSERVER_METRIC_KIND_{self.kind.name} does not support {operation}")
