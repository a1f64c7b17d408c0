"""A server, its models and their states as plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tritonnb.core.errors import TritonError
from tritonnb.core.json_types import IndexEntry
from tritonnb.telemetry.statistics_entry import StatisticsEntry, StatisticsResponse


class IndexedServer(Protocol):
    """A server with an index and statistics, such as a `Server` of this process."""

    @property
    def url(self) -> str:
        """The URL of its HTTP endpoint; empty without one."""

    def index(self) -> list[IndexEntry]:
        """Return the repository index."""

    def stats(self) -> StatisticsResponse:
        """Return the statistics of all models."""


def server_text(server: IndexedServer) -> str:
    """Return a server's address, and each model with its state and counts."""
    versions, absent = models_of(server)
    rows = [["model", "version", "rows", "executions", "state"]]
    for entry, stats in versions:
        counts = [str(stats["inference_count"]), str(stats["execution_count"])] if stats else ["", ""]
        rows.append([entry["name"], entry.get("version", ""), *counts, state_text(entry)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    title = f"tritonnb server at {server.url}" if server.url else "tritonnb server without HTTP"
    rest = [f"not loaded: {', '.join(absent)}"] if absent else []
    return "\n  ".join([title, *(line.rstrip() for line in lines if len(rows) > 1), *rest])


def models_of(server: IndexedServer) -> tuple[list[tuple[IndexEntry, StatisticsEntry | None]], list[str]]:
    """Return the model versions of the index with their statistics, if served, and the models not loaded."""
    stats = {(model["name"], model["version"]): model for model in server.stats()["model_stats"]}
    try:
        entries = server.index()
    except TritonError as error:  # such as of a repository that was deleted; the models are served on
        entries = [{"name": name, "version": version, "state": "READY"} for name, version in stats]
        entries.append({"name": "", "state": "UNAVAILABLE", "reason": error.message})
    versions = [(entry, stats.get((entry["name"], entry.get("version", "")))) for entry in entries if "state" in entry]
    return versions, [entry["name"] for entry in entries if "state" not in entry]


def state_text(entry: Mapping[str, object]) -> str:
    """Return the state of an entry of the repository index, with its reason."""
    return str(entry["state"]) + (f": {entry['reason']}" if entry.get("reason") else "")
