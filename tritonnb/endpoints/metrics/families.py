"""Triton's metric families, created from the server's statistics, without cost for requests.

`Families` is a collector of ``prometheus_client``, so it can be registered together with a program's own metrics.

Implements Triton's *Metrics* document. ``nv_inference_first_response_histogram_ms`` is Triton's; the histograms of
durations have the names and buckets of triton-inference-server/core#474; the families that begin with ``tritonnb_`` are
only here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil
from prometheus_client import Metric
from prometheus_client.registry import Collector

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.option_types import check_types
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.endpoints.long_work import LongWork
from tritonnb.endpoints.metrics.exposition import number_text, write_metrics
from tritonnb.endpoints.metrics.gpus import Gpus
from tritonnb.engine.engine import Engine
from tritonnb.engine.models.response_cache import ResponseCache
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.telemetry.custom_metrics import LABEL_NAME, CustomMetricFamily, MetricKind, MetricSample
from tritonnb.telemetry.histogram import Histogram
from tritonnb.telemetry.latencies import DURATION_BUCKETS_US, FIRST_RESPONSE_BUCKETS_MS, HistogramSettings, Latencies
from tritonnb.telemetry.statistics import Duration, ModelStatistics

_FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
#: The model versions, with their labels.
_Models = Sequence[tuple[ServedModel, dict[str, str]]]
#: So many models take a few milliseconds in all families together.
_MODELS_AT_ONCE = 64
#: More samples take more than some milliseconds to write.
_MANY_SAMPLES = 2000

#: The durations that are measured, as the end of the documentation of their families.
_MEASURED = {
    "request": "inference request duration in microseconds (includes cached requests)",
    "queue": "inference queuing duration in microseconds (includes cached requests)",
    "compute_input": "compute input duration in microseconds (does not include cached requests)",
    "compute_infer": "compute inference duration in microseconds (does not include cached requests)",
    "compute_output": "compute output duration in microseconds (does not include cached requests)",
}
_DURATIONS = {
    **{name: f"Cumulative {text}" for name, text in _MEASURED.items()},
    "compute_output": "Cumulative inference compute output duration in microseconds (does not include cached requests)",
}
_SUMMARIES = {**_DURATIONS, **{name: f"Summary of {_MEASURED[name]}" for name in ("request", "queue")}}
_CACHE_SUMMARIES = {
    "cache_hit": "Summary of cache hit counts/durations per model, in microseconds.",
    "cache_miss": "Summary of cache miss counts/durations per model, in microseconds.",
}
_GPU = {
    "nv_gpu_utilization": "GPU utilization rate [0.0 - 1.0)",
    "nv_gpu_memory_total_bytes": "GPU total memory, in bytes",
    "nv_gpu_memory_used_bytes": "GPU used memory, in bytes",
    "nv_gpu_power_usage": "GPU power usage in watts",
    "nv_gpu_power_limit": "GPU power management limit in watts",
    "nv_energy_consumption": "GPU energy consumption in joules since the server started",
}


def _cache_families(cache: ResponseCache) -> Iterator[Metric]:
    """Yield the families of the cache as a whole."""
    lookup_us, insertion_us = cache.lookup_ns // 1000, cache.insertion_ns // 1000
    for name, documentation, value in (
        ("nv_cache_util", "Cache utilization [0.0 - 1.0]", cache.used / cache.size),
        ("nv_cache_num_entries", "Number of responses stored in response cache", len(cache)),
        ("nv_cache_num_hits", "Number of cache hits in response cache", cache.hits),
        ("nv_cache_num_misses", "Number of cache misses in response cache", cache.misses),
        ("nv_cache_num_lookups", "Number of cache lookups in response cache", cache.hits + cache.misses),
        ("nv_cache_num_evictions", "Number of cache evictions in response cache", cache.evictions),
        ("nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds", lookup_us),
        ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds", insertion_us),
    ):
        yield _family(name, documentation, "gauge", [({}, value)])


def _cached_model_families(models: _Models) -> Iterator[Metric]:
    """Yield the families of the models with a response cache."""
    # By their configuration: Triton has these counters even if the server has no cache.
    cached = [(labels, served.statistics) for served, labels in models if served.config.response_cache.enable]
    hits = [(labels, statistics.cache_hit) for labels, statistics in cached]
    misses = [(labels, statistics.cache_miss) for labels, statistics in cached]
    miss_text = "Total cache miss (insert+lookup) duration per model, in microseconds"
    for name, documentation, samples in (
        ("num_hits", "Number of cache hits per model", [(labels, hit.count) for labels, hit in hits]),
        ("hit_duration", "Total cache hit duration per model, in microseconds", _microseconds(hits)),
        ("num_misses", "Number of cache misses per model", [(labels, miss.count) for labels, miss in misses]),
        ("miss_duration", miss_text, _microseconds(misses)),
    ):
        yield _family(f"nv_cache_{name}_per_model", documentation, "counter", samples)


def _microseconds(durations: Sequence[tuple[dict[str, str], Duration]]) -> list[tuple[dict[str, str], int]]:
    return [(labels, duration.ns // 1000) for labels, duration in durations]


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The families that are published.

    Attributes
    ----------
    cpu, gpu : bool
        ``--allow-cpu-metrics``, ``--allow-gpu-metrics``.
    counter_latencies, summary_latencies, histogram_latencies : bool
        ``--metrics-config <name>=<value>``. Without the first, the counters of requests and executions also stay 0.
    quantiles : tuple of float
        ``--metrics-config summary_quantiles=<quantile>:<error>,...``; the quantiles are exact, the errors are ignored.

    Examples
    --------
    >>> MetricsOptions(summary_latencies=True, quantiles=(0.5, 0.99)).quantiles
    (0.5, 0.99)
    """

    cpu: bool = True
    gpu: bool = True
    counter_latencies: bool = True
    summary_latencies: bool = False
    histogram_latencies: bool = False
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)

    def __post_init__(self) -> None:
        check_types(self, "MetricsOptions.")
        for quantile in self.quantiles:
            if not 0 <= quantile <= 1:
                raise InvalidArgumentError(f"MetricsOptions.quantiles: expected numbers from 0 to 1, got {quantile!r}")


class Families(Collector):
    """All metric families of an engine; collected on the server's loop."""

    def __init__(self, engine: Engine, options: MetricsOptions) -> None:
        self._engine = engine
        self._options = options
        if options.cpu:
            psutil.cpu_percent()  # the first scrape covers the time since now
        self._gpus = Gpus() if options.gpu else None
        self._long_work = LongWork()
        self._latencies = Latencies(self._histogram_settings)
        if options.summary_latencies or options.histogram_latencies:
            # Only then: without summaries and histograms, metrics cost the requests nothing, since counters are read
            # from the statistics.
            engine.stream.attach(self._latencies.fold)

    def close(self) -> None:
        """Stop measuring latencies."""
        self._engine.stream.detach(self._latencies.fold)

    def collect(self) -> Iterator[Metric]:
        """Yield all families, in Triton's order."""
        families: dict[str, Metric] = {}
        for piece in self._pieces():
            _extend(families, piece)
        yield from families.values()
        yield from self._custom()

    async def text(self) -> bytes:
        """Return all families as text; the event loop does not pause for long, however many models there are."""
        families: dict[str, Metric] = {}
        for piece in self._pieces():
            _extend(families, piece)
            await asyncio.sleep(0)

        def write() -> bytes:
            return write_metrics([*families.values(), *self._custom()])

        samples = sum(len(family.samples) for family in families.values()) + self._engine.custom_metrics.size
        return write() if samples <= _MANY_SAMPLES else await self._long_work.run(write)

    def _pieces(self) -> Iterator[Metric]:
        """Yield the families in pieces, which take milliseconds each: of some models, and of the machine."""
        served = self._engine.models()
        for begin in range(0, max(1, len(served)), _MODELS_AT_ONCE):
            yield from self._of_models(
                [(entry, self._labels(entry)) for entry in served[begin : begin + _MODELS_AT_ONCE]]
            )
        yield from self._system()
        if self._engine.cache is not None:
            yield from _cache_families(self._engine.cache)

    def _of_models(self, models: _Models) -> Iterator[Metric]:
        # As on Triton, this option is about all counters of the models: without them the numbers of requests stay 0.
        yield from _counts(models, int(self._options.counter_latencies))
        if self._options.counter_latencies:
            yield from _durations(models)
            yield from _cached_model_families(models)
        yield _family(
            "nv_inference_pending_request_count",
            "Instantaneous number of pending requests awaiting execution per-model.",
            "gauge",
            [(labels, served.driver.queue_depth()) for served, labels in models],
        )
        yield _family(
            "nv_model_load_duration_secs",
            "Model load time in seconds",
            "gauge",
            [(labels, served.load_seconds) for served, labels in models],
        )
        if self._options.summary_latencies:
            yield from self._summaries(models)
        if self._options.histogram_latencies:
            yield from _latency_histograms(models, self._latencies)
        yield from _batch_families(models)
        yield _lost_instances(models)

    def _custom(self) -> Iterator[Metric]:
        """Yield the families that models define themselves; may run on any thread."""
        return _custom(self._engine.custom_metrics.snapshot())

    # --- models ---------------------------------------------------------------------------------

    def _labels(self, served: ServedModel) -> dict[str, str]:
        labels = {"model": served.name, "version": str(served.version)}
        # A name that is no label would make the metrics of all models unreadable.
        tags = {f"_{name}": value for name, value in sorted(served.config.metric_tags.items())}
        labels.update({name: value for name, value in tags.items() if LABEL_NAME.fullmatch(name)})
        # A model on several GPUs has one label: its counters are not divided by GPU.
        devices = {instance.spec.device_id for instance in served.instances if instance.spec.kind == "KIND_GPU"}
        uuids = self._gpus.uuids if self._gpus is not None else []
        if devices and min(devices) < len(uuids):
            labels["gpu_uuid"] = uuids[min(devices)]
        return labels

    def _histogram_settings(self, model: str, version: int) -> HistogramSettings:
        try:
            return _histogram_settings(self._engine.model(model, version).config)
        except TritonError:  # it is being unloaded
            return HistogramSettings()

    def _summaries(self, models: _Models) -> Iterator[Metric]:
        cached = [(served, labels) for served, labels in models if served.uses_cache]
        for name, documentation in _SUMMARIES.items():
            # Triton does not measure whole requests of a model if some of its responses come from the cache.
            measured = [entry for entry in models if not entry[0].uses_cache] if name == "request" else models
            yield self._summary(f"nv_inference_{name}_summary_us", documentation, name, measured)
        for name, documentation in _CACHE_SUMMARIES.items():
            yield self._summary(f"nv_{name}_summary_per_model", documentation, name, cached)

    def _summary(self, family: str, documentation: str, name: str, models: _Models) -> Metric:
        now, quantiles = time.monotonic(), self._options.quantiles
        metric = Metric(family, documentation, "summary")
        for served, labels in models:
            summary = self._latencies.for_model(served.name, served.version).summaries[name]
            metric.add_sample(f"{family}_count", labels, summary.count)
            metric.add_sample(f"{family}_sum", labels, summary.sum)
            for quantile, value in zip(quantiles, summary.quantiles(quantiles, now), strict=True):
                metric.add_sample(family, {**labels, "quantile": number_text(quantile)}, value)
        return metric

    # --- the machine ----------------------------------------------------------------------------

    def _system(self) -> Iterator[Metric]:
        # This server has no pinned memory.
        for part, documentation in (("total", "total memory size"), ("used", "used memory size")):
            name = f"nv_pinned_memory_pool_{part}_bytes"
            yield _family(name, f"Pinned memory pool {documentation}, in bytes", "gauge", [({}, 0)])
        if self._options.cpu:
            utilization, memory = psutil.cpu_percent() / 100, psutil.virtual_memory()
            yield _family("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", "gauge", [({}, utilization)])
            for part, value in (("total", memory.total), ("used", memory.total - memory.available)):
                name = f"nv_cpu_memory_{part}_bytes"
                yield _family(name, f"CPU {part} memory (RAM), in bytes", "gauge", [({}, value)])
        gpus = self._gpus.read() if self._gpus is not None else {}
        for name, documentation in _GPU.items():
            samples = [({"gpu_uuid": uuid}, values[name]) for uuid, values in gpus.items() if name in values]
            kind = "counter" if name == "nv_energy_consumption" else "gauge"
            yield _family(name, documentation, kind, samples)


def _extend(families: dict[str, Metric], piece: Metric) -> None:
    """Add the samples of a piece to its family."""
    family = families.setdefault(piece.name, piece)
    if family is not piece:
        family.samples += piece.samples


def _counts(models: _Models, factor: int) -> Iterator[Metric]:
    """Yield the numbers of requests and executions, times a factor."""
    statistics = [(labels, served.statistics) for served, labels in models]
    failures = [({**labels, "reason": reason}, count) for labels, of_model in statistics
                for reason, count in of_model.fail_reasons.items()]  # fmt: skip
    for name, documentation, samples in (
        (
            "nv_inference_request_success",
            "Number of successful inference requests, all batch sizes",
            [(labels, of_model.success.count) for labels, of_model in statistics],
        ),
        ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes", failures),
        (
            "nv_inference_count",
            "Number of inferences performed (does not include cached requests)",
            [(labels, of_model.inference_count) for labels, of_model in statistics],
        ),
        (
            "nv_inference_exec_count",
            "Number of model executions performed (does not include cached requests)",
            [(labels, of_model.execution_count) for labels, of_model in statistics],
        ),
    ):
        yield _family(name, documentation, "counter", [(labels, factor * count) for labels, count in samples])


def _durations(models: _Models) -> Iterator[Metric]:
    for name, documentation in _DURATIONS.items():
        samples = [(labels, _nanoseconds(served.statistics, name) // 1000) for served, labels in models]
        yield _family(f"nv_inference_{name}_duration_us", documentation, "counter", samples)


def _nanoseconds(statistics: ModelStatistics, name: str) -> int:
    part, _, stage = name.partition("_")
    duration = {"request": statistics.success, "queue": statistics.queue}.get(part)
    total_ns: int = (duration or getattr(statistics.compute, stage)).ns
    return total_ns


def _family(name: str, documentation: str, kind: str, samples: Sequence[tuple[dict[str, str], float]]) -> Metric:
    metric = Metric(name, documentation, kind)
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return metric


def _custom(families: Sequence[tuple[CustomMetricFamily, Sequence[MetricSample]]]) -> Iterator[Metric]:
    """Yield the families that models define themselves (``pb_utils.MetricFamily``)."""
    for family, samples in families:
        metric = Metric(family.name, family.description, family.kind.value)
        for sample in samples:
            labels = dict(sample.labels)
            if family.kind is not MetricKind.HISTOGRAM:
                metric.add_sample(family.name, labels, sample.value)
                continue
            _add_histogram(metric, labels, sample.buckets, sample.value)
        yield metric


# --- histograms ---------------------------------------------------------------------------------


def _duration_family(name: str) -> str:
    """Return the name of the family of a duration, such as ``queue``."""
    return f"nv_inference_{name}_duration_histogram_us"


def _histogram_settings(config: pb.ModelConfig) -> HistogramSettings:
    """Return the histograms of a model; ``model_metrics`` of its configuration may change their buckets."""
    buckets = {
        control.metric_identifier.family: tuple(control.histogram_options.buckets)
        for control in config.model_metrics.metric_control
        if control.histogram_options.buckets
    }
    return HistogramSettings(
        decoupled=config.model_transaction_policy.decoupled,
        first_response_ms=buckets.get(_FIRST_RESPONSE, FIRST_RESPONSE_BUCKETS_MS),
        durations_us={
            name: buckets.get(_duration_family(name), bounds) for name, bounds in DURATION_BUCKETS_US.items()
        },
    )


def _latency_histograms(models: _Models, latencies: Latencies) -> Iterator[Metric]:
    """Yield the families that ``--metrics-config histogram_latencies=true`` enables."""
    # Only decoupled models have observations in it: for others the first response is the last, and another family has
    # it.
    first = Metric(_FIRST_RESPONSE, "Duration from request to first response in milliseconds", "histogram")
    durations = {
        name: Metric(_duration_family(name), f"Histogram of {text}", "histogram") for name, text in _MEASURED.items()
    }
    for served, labels in models:
        of_model = latencies.for_model(served.name, served.version)
        _add_histogram(first, labels, of_model.first_response.buckets(), of_model.first_response.sum)
        for name, metric in durations.items():
            histogram = of_model.histograms[name]
            _add_histogram(metric, labels, histogram.buckets(), histogram.sum)
    yield first
    yield from durations.values()


def _batch_families(models: _Models) -> Iterator[Metric]:
    """Yield the number of batches by rule, and the distribution of their sizes; ensembles have no batches."""
    by_rule = "Number of batches that were sent to an instance, by the rule that sent them"
    batches = Metric("tritonnb_batches_total", by_rule, "counter")
    sizes = Metric("tritonnb_batch_size", "Histogram of the sizes of executed batches in rows", "histogram")
    for served, labels in models:
        if not served.instances:
            continue
        for rule, count in sorted(served.statistics.sent_by_rule.items()):
            batches.add_sample(batches.name, {**labels, "rule": rule}, count)
        # Computed at the scrape from the statistics, which have the number of batches of each size anyway.
        executed = Histogram(_size_bounds(served.spec.max_batch_size))
        for size, compute in served.statistics.batches.items():
            executed.observe(size, compute.infer.count)
        _add_histogram(sizes, labels, executed.buckets(), executed.sum)
    yield from (batches, sizes)


def _lost_instances(models: _Models) -> Metric:
    """Return the number of times that instances failed with all that they keep, such as by the end of their process."""
    restarts = "Number of times that an instance failed and was started again"
    lost = Metric("tritonnb_instance_restarts_total", restarts, "counter")
    for served, labels in models:
        for instance, (count, _) in sorted(served.statistics.lost_instances.items()):
            lost.add_sample(lost.name, {**labels, "instance": instance}, count)
    return lost


def _add_histogram(metric: Metric, labels: dict[str, str], buckets: Sequence[tuple[float, int]], total: float) -> None:
    """Add a histogram to its family.

    Parameters
    ----------
    metric : prometheus_client.Metric
    labels : dict of str to str
    buckets : sequence of (float, int)
        The upper bounds, the last of them infinite, and the number of observations up to each.
    total : float
        The sum of the observations.
    """
    # The last bucket is infinite, so its count is the total, as Prometheus demands.
    metric.add_sample(f"{metric.name}_count", labels, buckets[-1][1])
    metric.add_sample(f"{metric.name}_sum", labels, total)
    for bound, count in buckets:
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": number_text(bound)}, count)


def _size_bounds(max_batch_size: int) -> list[float]:
    """Return powers of two up to ``max_batch_size``, which is the last bound."""
    largest = max(1, max_batch_size)
    return [*(2.0**power for power in range(largest.bit_length()) if 2**power < largest), float(largest)]
