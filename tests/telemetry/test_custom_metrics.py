"""Metrics that models define themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tritonnb.core.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedError
from tritonnb.telemetry.custom_metrics import CustomMetrics, MetricKind


@pytest.fixture
def metrics() -> CustomMetrics:
    return CustomMetrics()


def test_metrics_with_equal_names_and_labels_are_shared(metrics: CustomMetrics) -> None:
    first = metrics.open("seen", "what was seen", MetricKind.COUNTER)
    second = metrics.open("seen", "otherwise", MetricKind.COUNTER)
    first.metric({"a": "1", "b": "2"}).increment(2)
    second.metric({"b": "2", "a": "1"}).increment(0.5)
    second.metric({}).increment(1)
    ((family, samples),) = metrics.snapshot()
    assert family.description == "what was seen"
    assert [(dict(sample.labels), sample.value) for sample in samples] == [
        ({"a": "1", "b": "2"}, 2.5),
        ({}, 1.0),
    ]


def test_metric_family_is_removed_with_its_last_user(metrics: CustomMetrics) -> None:
    family = metrics.open("seen", "", MetricKind.GAUGE)
    metrics.open("seen", "", MetricKind.GAUGE)
    metrics.close(family)
    assert len(metrics.snapshot()) == 1
    metrics.close(family)
    assert metrics.snapshot() == []


def test_gauge_can_be_incremented_decremented_and_set(metrics: CustomMetrics) -> None:
    gauge = metrics.open("depth", "", MetricKind.GAUGE).metric({})
    gauge.set(5)
    gauge.increment(-2)
    assert gauge.value() == 3.0


def test_histogram_counts_up_to_each_bound(metrics: CustomMetrics) -> None:
    histogram = metrics.open("took", "", MetricKind.HISTOGRAM).metric({}, [1, 5])
    for value in (0.5, 1, 3, 100):
        histogram.observe(value)
    ((_, (sample,)),) = metrics.snapshot()
    assert (sample.value, sample.buckets) == (104.5, ((1.0, 2), (5.0, 3), (math.inf, 4)))


def test_metric_name_cannot_change_its_kind(metrics: CustomMetrics) -> None:
    metrics.open("seen", "", MetricKind.COUNTER)
    with pytest.raises(AlreadyExistsError, match="exists already as a counter"):
        metrics.open("seen", "", MetricKind.GAUGE)


@pytest.mark.parametrize("name", ["", "1x", "a b"])
def test_metric_names_are_valid_in_prometheus(metrics: CustomMetrics, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a valid name"):
        metrics.open(name, "", MetricKind.GAUGE)
    with pytest.raises(InvalidArgumentError, match="not a valid label"):
        metrics.open("ok", "", MetricKind.GAUGE).metric({name: "x"})


@pytest.mark.parametrize("buckets", [None, [2, 1]])
def test_histogram_needs_rising_buckets(metrics: CustomMetrics, buckets: list[float] | None) -> None:
    with pytest.raises(InvalidArgumentError, match="bucket"):
        metrics.open("took", "", MetricKind.HISTOGRAM).metric({}, buckets)


@pytest.mark.parametrize(
    ("kind", "operation", "error"),
    [
        (MetricKind.COUNTER, lambda metric: metric.increment(-1), InvalidArgumentError),
        (MetricKind.COUNTER, lambda metric: metric.set(1), UnsupportedError),
        (MetricKind.COUNTER, lambda metric: metric.observe(1), UnsupportedError),
        (MetricKind.GAUGE, lambda metric: metric.observe(1), UnsupportedError),
        (MetricKind.HISTOGRAM, lambda metric: metric.set(1), UnsupportedError),
        (MetricKind.HISTOGRAM, lambda metric: metric.increment(1), UnsupportedError),
        (MetricKind.HISTOGRAM, lambda metric: metric.value(), UnsupportedError),
    ],
)
def test_unsupported_operation_of_a_metric_kind_is_an_error(
    metrics: CustomMetrics, kind: MetricKind, operation: Callable[..., Any], error: type[Exception]
) -> None:
    metric = metrics.open("x", "", kind).metric({}, [1.0] if kind is MetricKind.HISTOGRAM else [])
    with pytest.raises(error, match=f"TRITONSERVER_METRIC_KIND_{kind.name}"):
        operation(metric)
