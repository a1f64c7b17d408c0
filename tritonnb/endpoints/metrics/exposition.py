"""Prometheus' text format, with unchanged metric names.

The writer of ``prometheus_client`` appends ``_total`` to the name of every counter, as OpenMetrics demands;
Triton's counters have no such suffix, and dashboards use Triton's names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; charset=utf-8"


def write_metrics(metrics: Iterable[Metric]) -> bytes:
    """Write the families that have samples, each with its help and type."""
    lines: list[str] = []
    for metric in _merged(metrics):
        # A family without samples has no lines at all on Triton.
        if not metric.samples:
            continue
        documentation = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines += (f"# HELP {metric.name} {documentation}", f"# TYPE {metric.name} {metric.type}")
        lines += map(_sample, metric.samples)
    return "".join(line + "\n" for line in lines).encode()


def _merged(metrics: Iterable[Metric]) -> Iterable[Metric]:
    """Yield one family of each name: models may add metrics to a family of the server, and even to its series.

    Values of the same labels are added, as on Triton; readers refuse a series that is there twice. A family of a model
    that has another kind than the server's family is left out.
    """
    families: dict[str, Metric] = {}
    for metric in metrics:
        first = families.setdefault(metric.name, metric)
        if first is metric or first.type != metric.type:
            continue
        merged = Metric(first.name, first.documentation, first.type)
        values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in [*first.samples, *metric.samples]:
            series = sample.name, tuple(sorted(sample.labels.items()))
            values[series] = values.get(series, 0) + sample.value
        for (name, labels), value in values.items():
            merged.add_sample(name, dict(labels), value)
        families[metric.name] = merged
    return families.values()


def _sample(sample: Sample) -> str:
    sorted_labels = sorted(sample.labels.items(), key=_sort_key)
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted_labels)
    value = number_text(sample.value)
    return f"{sample.name}{{{labels}}} {value}" if labels else f"{sample.name} {value}"


def _sort_key(label: tuple[str, str]) -> tuple[bool, str]:
    """Sort labels by name, as on Triton; labels that distinguish the samples of one metric come last."""
    return label[0] in ("le", "quantile"), label[0]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number_text(value: float) -> str:
    """Write a number in the text format, integers without a decimal point."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    # Prometheus reads either; without the point, the text equals Triton's for counters.
    return str(int(value)) if value == int(value) else repr(value)
