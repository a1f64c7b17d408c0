"""``pb_utils.MetricFamily``: custom metrics that a model defines."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tritonnb.backends.python.error import TritonModelException
from tritonnb.backends.python.instance_binding import InstanceBinding, current_binding
from tritonnb.core.errors import TritonError
from tritonnb.telemetry import custom_metrics
from tritonnb.telemetry.custom_metrics import Kind


class MetricFamily:
    """Metrics with one name and different labels.

    Parameters
    ----------
    name, description : str
    kind : int
        ``MetricFamily.COUNTER``, ``GAUGE`` or ``HISTOGRAM``.
    """

    COUNTER, GAUGE, HISTOGRAM = Kind

    _binding: ClassVar[InstanceBinding | None] = None

    def __init__(self, name: str, description: str, kind: Kind) -> None:
        binding = self._binding or current_binding()
        if binding is None or binding.server is None:
            raise TritonModelException("MetricFamily: expected to be created by a model that a server runs")
        try:
            self._family = binding.server.metrics.open(name, description, kind)
        except TritonError as error:
            raise TritonModelException(f"Failed to create metric family: {error}") from error
        weakref.finalize(self, binding.server.metrics.close, self._family)

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:  # noqa: N802
        """Create the metric with these labels; a histogram also needs the upper bounds of its buckets."""
        try:
            return Metric(self, self._family.metric(labels or {}, buckets))
        except TritonError as error:
            raise TritonModelException(f"Failed to create metric: {error}") from error


class Metric:
    """A metric; created by `MetricFamily.Metric`."""

    def __init__(self, family: MetricFamily, metric: custom_metrics.Metric) -> None:
        self._family = weakref.ref(family)
        self._open_metric = metric

    def increment(self, value: float) -> None:
        """Add to a counter or gauge."""
        try:
            self._metric().increment(value)
        except TritonError as error:
            raise TritonModelException(f"Failed to increment metric value: {error}") from error

    def set(self, value: float) -> None:
        """Set a gauge."""
        try:
            self._metric().set(value)
        except TritonError as error:
            raise TritonModelException(f"Failed to set metric value: {error}") from error

    def observe(self, value: float) -> None:
        """Observe a value of a histogram."""
        try:
            self._metric().observe(value)
        except TritonError as error:
            raise TritonModelException(f"Failed to observe metric value: {error}") from error

    def value(self) -> float:
        """The value of a counter or gauge."""
        try:
            return self._metric().value()
        except TritonError as error:
            raise TritonModelException(f"Failed to get metric value: {error}") from error

    def _metric(self) -> custom_metrics.Metric:
        if self._family() is None:
            raise TritonModelException(
                "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' "
                "object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
            )
        return self._open_metric
