"""The metrics that models define themselves (``pb_utils.MetricFamily``), as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import Metric

from tritonnb.endpoints.metrics.exposition import number_text
from tritonnb.telemetry.custom_metrics import FamilySnapshot, Kind


def custom_families(families: Sequence[FamilySnapshot]) -> Iterator[Metric]:
    """The families of the models."""
    for family in families:
        metric = Metric(family.name, family.description, family.kind.value)
        for sample in family.samples:
            labels = dict(sample.labels)
            if family.kind is not Kind.HISTOGRAM:
                metric.add_sample(family.name, labels, sample.value)
                continue
            metric.add_sample(f"{family.name}_count", labels, sample.buckets[-1][1])
            metric.add_sample(f"{family.name}_sum", labels, sample.value)
            for bound, count in sample.buckets:
                metric.add_sample(f"{family.name}_bucket", {**labels, "le": number_text(bound)}, count)
        yield metric
