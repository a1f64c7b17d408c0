"""Custom metrics that a model in a child defines: checked here, kept in the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tritonnb.backends.isolation.child.outbox import Outbox
from tritonnb.telemetry.custom_metrics import CustomMetrics, Kind, Labels, Metric, MetricFamily


class ChildMetrics(CustomMetrics):
    """The families that this child uses. Every change is sent to the server, which shares them with other instances."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def create_family(self, name: str, description: str, kind: Kind) -> MetricFamily:
        """Open the family in the server."""
        self._outbox.ask("open_family", name, description, kind.value)
        return _Family(name, description, kind, self._lock, self._outbox)

    def close(self, family: MetricFamily) -> None:
        """Release a family, and close it in the server after the last user."""
        super().close(family)
        if not family.users:
            self._outbox.send(["close_family", family.name])


class _Family(MetricFamily):
    def __init__(self, name: str, description: str, kind: Kind, lock: object, outbox: Outbox) -> None:
        super().__init__(name, description, kind, lock)  # type: ignore[arg-type]
        self._outbox = outbox

    def create_metric(self, labels: Labels, bounds: Sequence[float]) -> Metric:
        """Create the metric in the server, too."""
        self._outbox.ask("create_metric", self.name, labels, list(bounds) if self.kind is Kind.HISTOGRAM else None)
        return _Metric(self, labels, bounds)


class _Metric(Metric):
    def __init__(self, family: _Family, labels: Labels, bounds: Sequence[float]) -> None:
        super().__init__(family.kind, labels, bounds, family._lock)
        self._address = [family.name, labels]
        self._outbox = family._outbox

    def value(self) -> float:
        """The value in the server, to which other instances contribute."""
        super().value()
        return float(self._outbox.ask("metric_value", *self._address))

    def increment(self, amount: float) -> None:
        """Add to a counter or gauge."""
        self._change(super().increment, amount)

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._change(super().set, value)

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""
        self._change(super().observe, value)

    def _change(self, change: Callable[[float], None], value: float) -> None:
        change(value)  # raises the error, if there is one
        self._outbox.send(["change_metric", *self._address, change.__name__, float(value)])
