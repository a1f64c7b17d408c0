"""The metrics of a server."""

from __future__ import annotations

from collections.abc import Mapping

from tritonnb.client.options import ConnectionOptions


def read_metrics(access: ConnectionOptions, url: str) -> dict[str, float]:
    """Read metrics in the text format of Prometheus.

    Parameters
    ----------
    access : ConnectionOptions
    url : str
        Such as ``http://HOST:8002/metrics``.

    Returns
    -------
    dict of str to float
        By name with labels.

    Raises
    ------
    UnavailableError
        If nothing responds there.
    """
    from prometheus_client.parser import text_string_to_metric_families

    content, _ = access.fetch(url)
    samples = (sample for family in text_string_to_metric_families(content.decode()) for sample in family.samples)
    return {f"{sample.name}{_labels(sample.labels)}": float(sample.value) for sample in samples}


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""
