"""Prometheus' text format, with the names as they are.

The writer of ``prometheus_client`` appends ``_total`` to the name of every counter, as OpenMetrics wants it;
Triton's counters have no such ending, and dashboards look for Triton's names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; charset=utf-8"


def write_metrics(metrics: Iterable[Metric]) -> bytes:
    """The families, each with its help and type, as text."""
    lines: list[str] = []
    for metric in metrics:
        documentation = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines += (f"# HELP {metric.name} {documentation}", f"# TYPE {metric.name} {metric.type}")
        lines += map(_sample, metric.samples)
    return "".join(line + "\n" for line in lines).encode()


def _sample(sample: Sample) -> str:
    named = sorted(sample.labels.items(), key=_place)
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in named)
    value = number_text(sample.value)
    return f"{sample.name}{{{labels}}} {value}" if labels else f"{sample.name} {value}"


def _place(label: tuple[str, str]) -> tuple[bool, str]:
    """By name, as Triton has them, but for what tells the samples of one metric apart."""
    return label[0] in ("le", "quantile"), label[0]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number_text(value: float) -> str:
    """A number as the text format has it, whole ones without a point."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
