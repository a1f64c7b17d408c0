"""Metric families of the response cache, for the server and for each model that uses it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from tritonnb.runtime.models.response_cache import ResponseCache
from tritonnb.runtime.models.served_model import ServedModel

_CACHE = {
    "nv_cache_util": "Cache utilization [0.0 - 1.0]",
    "nv_cache_num_entries": "Number of responses stored in response cache",
    "nv_cache_num_hits": "Number of cache hits in response cache",
    "nv_cache_num_misses": "Number of cache misses in response cache",
    "nv_cache_num_lookups": "Number of cache lookups in response cache",
    "nv_cache_num_evictions": "Number of cache evictions in response cache",
    "nv_cache_lookup_duration": "Total cache lookup duration (hit and miss), in microseconds",
    "nv_cache_insertion_duration": "Total cache insertion duration, in microseconds",
}
_PER_MODEL = {
    "nv_cache_num_hits_per_model": "Number of cache hits per model",
    "nv_cache_hit_duration_per_model": "Total cache hit duration per model, in microseconds",
    "nv_cache_num_misses_per_model": "Number of cache misses per model",
    "nv_cache_miss_duration_per_model": "Total cache miss (insert+lookup) duration per model, in microseconds",
}


def cache_families(cache: ResponseCache) -> Iterator[Metric]:
    """The families of the cache as a whole."""
    counts = cache.counts
    values = (
        cache.used / cache.size,
        len(cache),
        counts.hits,
        counts.misses,
        counts.hits + counts.misses,
        counts.evictions,
        counts.lookup_ns // 1000,
        counts.insertion_ns // 1000,
    )
    for (name, documentation), value in zip(_CACHE.items(), values, strict=True):
        metric = Metric(name, documentation, "gauge")
        metric.add_sample(name, {}, value)
        yield metric


def cached_model_families(models: list[tuple[ServedModel, dict[str, str]]]) -> Iterator[Metric]:
    """The families of the models that use the cache."""
    metrics = [Metric(name, documentation, "counter") for name, documentation in _PER_MODEL.items()]
    for served, labels in models:
        if served.uses_cache:
            hit, miss = served.statistics.cache_hit, served.statistics.cache_miss
            for metric, value in zip(metrics, (hit.count, hit.ns // 1000, miss.count, miss.ns // 1000), strict=True):
                metric.add_sample(metric.name, labels, value)
    yield from metrics
