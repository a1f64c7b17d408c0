"""Responses of several replicas as one response of the deployment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tritonnb.core.json_types import Json

#: Members of a statistics entry that are not totals, with how the values of several replicas are combined.
_LATEST = ("last_inference",)
_LISTS = {"batch_stats": ("batch_size",), "memory_usage": ("type", "id")}
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (.+)")


def sum_statistics(responses: Iterable[Mapping[str, Any]]) -> Json:
    """Return the statistics of all replicas: totals are added, the latest ``last_inference`` counts.

    Parameters
    ----------
    responses : iterable of mapping
        Responses of the statistics extension.

    Returns
    -------
    dict
        ``model_stats``: an entry for each model version, in order of first occurrence.

    Examples
    --------
    >>> one = {"model_stats": [{"name": "m", "version": "1", "last_inference": 5, "inference_count": 2}]}
    >>> two = {"model_stats": [{"name": "m", "version": "1", "last_inference": 3, "inference_count": 4}]}
    >>> sum_statistics([one, two])["model_stats"][0]["inference_count"]
    6
    """
    entries: dict[tuple[str, str], Json] = {}
    for response in responses:
        for entry in response["model_stats"]:
            key = entry["name"], entry["version"]
            entries[key] = add_entries(entries[key], entry) if key in entries else dict(entry)
    return {"model_stats": list(entries.values())}


def add_entries(left: Mapping[str, Any], right: Mapping[str, Any]) -> Json:
    """Return the sum of two entries of the statistics, of the same model or of different models."""
    return {name: _sum(name, left.get(name), right.get(name)) for name in {**left, **right}}


def _sum(name: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    if name in _LISTS:
        return _sum_lists(_LISTS[name], left, right)
    if isinstance(left, Mapping):
        return add_entries(left, right)
    if name in _LATEST:
        return max(left, right)
    return left + right if isinstance(left, int) else left


def _sum_lists(key: Sequence[str], left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    rows = {tuple(row[name] for name in key): row for row in left}
    for row in right:
        of = tuple(row[name] for name in key)
        rows[of] = {**add_entries(rows[of], row), **dict(zip(key, of, strict=True))} if of in rows else row
    return [rows[of] for of in sorted(rows)]


def merge_index(indexes: Mapping[str, Sequence[Mapping[str, str]]]) -> list[dict[str, str]]:
    """Return one repository index for several replicas: the state of a model is the first that is not READY.

    Parameters
    ----------
    indexes : mapping of str to sequence of mapping
        The index of each replica.

    Examples
    --------
    >>> ready, failed = {"name": "m", "state": "READY"}, {"name": "m", "state": "UNAVAILABLE", "reason": "no file"}
    >>> merge_index({"r1": [ready], "r2": [failed]})
    [{'name': 'm', 'state': 'UNAVAILABLE', 'reason': 'replica r2: no file'}]
    """
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for replica, index in indexes.items():
        for row in index:
            key = row["name"], row.get("version", "")
            present = rows.get(key)
            if present is None or (present.get("state", "READY") == "READY" and row.get("state", "READY") != "READY"):
                rows[key] = _with_replica(row, replica, len(indexes))
    return [rows[key] for key in sorted(rows)]


def _with_replica(row: Mapping[str, str], replica: str, replicas: int) -> dict[str, str]:
    if replicas > 1 and row.get("state", "READY") != "READY" and row.get("reason"):
        return {**row, "reason": f"replica {replica}: {row['reason']}"}
    return dict(row)


def merge_metrics(texts: Mapping[str, str]) -> str:
    r"""Merge metrics of several replicas in Prometheus' text format: every sample gets the label ``replica``.

    Parameters
    ----------
    texts : mapping of str to str
        The metrics of each replica.

    Examples
    --------
    >>> print(merge_metrics({"r1": "# TYPE a counter\na 1\n", "r2": "# TYPE a counter\na 2\n"}), end="")
    # TYPE a counter
    a{replica="r1"} 1
    a{replica="r2"} 2
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for replica, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("# ") and len(line.split(" ", 3)) >= 3:
                family = line.split(" ", 3)[2]
                comments, _ = families.setdefault(family, ([], []))
                if line not in comments:
                    comments.append(line)
            elif sample := _SAMPLE.fullmatch(line):
                name, labels, value = sample.groups()
                joined = f'replica="{replica}"' + (f",{labels}" if labels else "")
                families.setdefault(family or name, ([], []))[1].append(f"{name}{{{joined}}} {value}")
    lines = [line for comments, samples in families.values() for line in (*comments, *samples)]
    return "".join(f"{line}\n" for line in lines)
