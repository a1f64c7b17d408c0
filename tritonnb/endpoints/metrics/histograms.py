"""Histograms of latencies and of batch sizes, and the number of batches by the rule that sent them.

``nv_inference_first_response_histogram_ms`` is Triton's. The histograms of durations have the names and buckets of
triton-inference-server/core#474; the families that begin with ``tritonnb_`` are only here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import Metric

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.endpoints.metrics.exposition import number_text
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.telemetry.histogram import Histogram
from tritonnb.telemetry.latencies import DURATION_BUCKETS_US, FIRST_RESPONSE_BUCKETS_MS, HistogramSettings, Latencies

FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
BATCHES = "tritonnb_batches_total"
BATCH_SIZE = "tritonnb_batch_size"
LOST = "tritonnb_instance_restarts_total"
#: The durations that are measured, as the end of the documentation of their families.
DURATIONS = {
    "request": "inference request duration in microseconds (includes cached requests)",
    "queue": "inference queuing duration in microseconds (includes cached requests)",
    "compute_input": "compute input duration in microseconds (does not include cached requests)",
    "compute_infer": "compute inference duration in microseconds (does not include cached requests)",
    "compute_output": "compute output duration in microseconds (does not include cached requests)",
}

#: The model versions, with their labels.
Models = Sequence[tuple[ServedModel, dict[str, str]]]


def duration_family(name: str) -> str:
    """Return the name of the family of a duration, such as ``queue``."""
    return f"nv_inference_{name}_duration_histogram_us"


def histogram_settings(config: pb.ModelConfig) -> HistogramSettings:
    """Return the histograms of a model, whose buckets ``model_metrics`` of its configuration may change."""
    buckets = {
        control.metric_identifier.family: tuple(control.histogram_options.buckets)
        for control in config.model_metrics.metric_control
        if control.histogram_options.buckets
    }
    return HistogramSettings(
        decoupled=config.model_transaction_policy.decoupled,
        first_response_ms=buckets.get(FIRST_RESPONSE, FIRST_RESPONSE_BUCKETS_MS),
        durations_us={name: buckets.get(duration_family(name), bounds) for name, bounds in DURATION_BUCKETS_US.items()},
    )


def latency_histograms(models: Models, latencies: Latencies) -> Iterator[Metric]:
    """Yield the families that ``--metrics-config histogram_latencies=true`` enables."""
    first = Metric(FIRST_RESPONSE, "Duration from request to first response in milliseconds", "histogram")
    durations = {
        name: Metric(duration_family(name), f"Histogram of {text}", "histogram") for name, text in DURATIONS.items()
    }
    for served, labels in models:
        of_model = latencies.for_model(served.name, served.version)
        add_histogram(first, labels, of_model.first_response.buckets(), of_model.first_response.sum)
        for name, metric in durations.items():
            histogram = of_model.histograms[name]
            add_histogram(metric, labels, histogram.buckets(), histogram.sum)
    yield first
    yield from durations.values()


def batch_families(models: Models) -> Iterator[Metric]:
    """Yield the number of batches by rule, and the distribution of their sizes; ensembles have no batches."""
    batches = Metric(BATCHES, "Number of batches that were sent to an instance, by the rule that sent them", "counter")
    sizes = Metric(BATCH_SIZE, "Histogram of the sizes of executed batches in rows", "histogram")
    for served, labels in models:
        if not served.instances:
            continue
        for rule, count in sorted(served.statistics.sent_by_rule.items()):
            batches.add_sample(BATCHES, {**labels, "rule": rule}, count)
        executed = Histogram(_size_bounds(served.spec.max_batch_size))
        for size, compute in served.statistics.batches.items():
            executed.observe(size, compute.infer.count)
        add_histogram(sizes, labels, executed.buckets(), executed.sum)
    yield from (batches, sizes)


def lost_instances(models: Models) -> Metric:
    """Return the number of times that instances failed with all that they keep, such as by the end of their process."""
    lost = Metric(LOST, "Number of times that an instance failed and was started again", "counter")
    for served, labels in models:
        for instance, (count, _) in sorted(served.statistics.lost_instances.items()):
            lost.add_sample(LOST, {**labels, "instance": instance}, count)
    return lost


def add_histogram(metric: Metric, labels: dict[str, str], buckets: Sequence[tuple[float, int]], total: float) -> None:
    """Add a histogram to its family.

    Parameters
    ----------
    metric : prometheus_client.Metric
    labels : dict of str to str
    buckets : sequence of (float, int)
        The upper bounds, of which the last is infinite, and the number of observations up to each.
    total : float
        The sum of the observations.
    """
    metric.add_sample(f"{metric.name}_count", labels, buckets[-1][1])
    metric.add_sample(f"{metric.name}_sum", labels, total)
    for bound, count in buckets:
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": number_text(bound)}, count)


def _size_bounds(max_batch_size: int) -> list[float]:
    """Return powers of two up to ``max_batch_size``, which is the last bound."""
    largest = max(1, max_batch_size)
    return [*(2.0**power for power in range(largest.bit_length()) if 2**power < largest), float(largest)]
