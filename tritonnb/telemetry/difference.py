"""The difference between two responses of the statistics extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonnb.core.json_types import Json


def difference(after: Mapping[str, object], before: Mapping[str, object]) -> Json:
    """Return the statistics of a model between two times.

    Parameters
    ----------
    after, before : mapping
        Two entries of ``model_stats`` of the same model version, as returned by ``server["name"].stats()``.

    Returns
    -------
    dict
        In the same form. Counters are subtracted; everything else is as in ``after``.

    Examples
    --------
    >>> entry = {"batch_size": 4, "compute_infer": {"count": 9, "ns": 90}}
    >>> earlier = {"batch_size": 4, "compute_infer": {"count": 2, "ns": 20}}
    >>> difference({"inference_count": 36, "batch_stats": [entry]}, {"inference_count": 8, "batch_stats": [earlier]})
    {'inference_count': 28, 'batch_stats': [{'batch_size': 4, 'compute_infer': {'count': 7, 'ns': 70}}]}
    """
    return {name: _subtracted(name, value, before.get(name)) for name, value in after.items()}


def _subtracted(name: str, value: Any, before: Any) -> object:
    if name == "batch_stats":
        known = {row["batch_size"]: row for row in before or ()}
        rows = [difference(row, known.get(row["batch_size"], {})) for row in value]
        return [row for row in rows if row["compute_infer"]["count"]]
    if isinstance(value, Mapping):
        return difference(value, before or {})
    counts = isinstance(value, int) and name not in ("batch_size", "last_inference")
    return value - (before or 0) if counts else value
