"""Metrics that models define."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tritonnb.core.errors import TritonError
from tritonnb.server.server import Server


def test_custom_metrics_are_removed_with_their_model(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    ask = scripted(
        """
family = pb_utils.MetricFamily(name="requests_seen", description="requests", kind=pb_utils.MetricFamily.COUNTER)
counter = family.Metric(labels={"model": "caller"})
counter.increment(2)
self.kept = getattr(self, "kept", []) + [(family, counter)]
return counter.value()
"""
    )
    assert [ask(0), ask(0)] == [[2], [4]]
    ((family, samples),) = server.engine.custom_metrics.snapshot()
    assert (family.name, family.kind.value) == ("requests_seen", "counter")
    assert [(sample.labels, sample.value) for sample in samples] == [((("model", "caller"),), 4.0)]
    server.unload("caller")
    while server.engine.custom_metrics.snapshot():  # until the model is gone
        pass


def test_metric_is_removed_with_its_family(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
family = pb_utils.MetricFamily(name="forgotten", description="", kind=pb_utils.MetricFamily.GAUGE)
gauge = family.Metric(labels={})
gauge.set(1)
del family
gauge.set(2)
"""
    )
    with pytest.raises(TritonError, match="the corresponding 'MetricFamily' has been deleted"):
        ask(0)
