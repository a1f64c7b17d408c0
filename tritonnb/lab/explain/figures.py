"""Figures of one model over one time, whatever they were read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tritonnb.core.protobuf import model_config_pb2 as pb


@dataclass(frozen=True)
class Figures:
    """What is known about one model over one time; None is unknown. Times are in ms, the mean of a request.

    Attributes
    ----------
    source, label : str
        The file, and which of its figures, such as ``concurrency 4``.
    model : str
        Empty if the file does not name it.
    requests, rows, executions, failed, hits : float, optional
        Counts of the server: successful requests, their rows, executions, failed requests, and answers of the cache.
    rate : float, optional
        Successful requests per second.
    clients, offered : float, optional
        Concurrency of a closed loop; requests per second that an open loop should send.
    request_rows : int, optional
        Rows of a request of the load generator.
    latency_ms : float, optional
        Seen by the client.
    server_ms, queue_ms, input_ms, infer_ms, output_ms : float, optional
    sizes : dict of int to (float, float)
        Number of executions and mean time in ms, by batch size in rows.
    steps : tuple of Figures
        Of the composing models of an ensemble.
    config : ModelConfig, optional
        Of a composing model.
    is_time_estimated : bool
        The time of the rate is at most that between two statistics: the load may have begun later.
    before : Figures, optional
        Of an earlier time, to compare; its label says until when.
    """

    source: str
    label: str = ""
    model: str = ""
    requests: float | None = None
    rows: float | None = None
    executions: float | None = None
    failed: float | None = None
    hits: float | None = None
    rate: float | None = None
    clients: float | None = None
    offered: float | None = None
    request_rows: int | None = None
    latency_ms: float | None = None
    server_ms: float | None = None
    queue_ms: float | None = None
    input_ms: float | None = None
    infer_ms: float | None = None
    output_ms: float | None = None
    sizes: dict[int, tuple[float, float]] = field(default_factory=dict)
    steps: tuple[Figures, ...] = ()
    config: pb.ModelConfig | None = None
    is_time_estimated: bool = False
    before: Figures | None = None

    @property
    def executed(self) -> float | None:
        """Requests that ran, without the answers of the cache."""
        return None if self.requests is None else max(0.0, self.requests - (self.hits or 0))

    @property
    def mean_rows(self) -> float | None:
        """Rows per execution."""
        return self.rows / self.executions if self.rows and self.executions else None

    @property
    def mean_requests(self) -> float | None:
        """Requests per execution."""
        return self.executed / self.executions if self.executed and self.executions else None

    @property
    def compute_ms(self) -> float | None:
        """The execution that a request shares, with the copies of inputs and outputs."""
        if self.infer_ms is None:
            return None
        return self.infer_ms + (self.input_ms or 0) + (self.output_ms or 0)

    @property
    def execution_ms(self) -> float | None:
        """The mean execution; without counts by size, that of a request, in which large batches count more often."""
        count = sum(number for number, _ in self.sizes.values())
        if count:
            return sum(number * ms for number, ms in self.sizes.values()) / count
        return self.compute_ms

    @property
    def busy(self) -> float | None:
        """The mean number of instances that are executing; a little too large without counts by size."""
        if self.rate is None or self.execution_ms is None or not self.requests or not self.executions:
            return None
        return self.rate * self.executions / self.requests * self.execution_ms / 1e3  # answers of the cache do not run

    @property
    def in_server(self) -> float | None:
        """The mean number of requests in the server, by Little's law."""
        inside = self.server_ms if self.server_ms is not None else self.latency_ms
        return None if self.rate is None or inside is None else self.rate * inside / 1e3

    def completed(self, other: Figures) -> Figures:
        """Fill in what is unknown here and known there."""
        names = self.__dataclass_fields__
        missing = {
            name: getattr(other, name)
            for name in names
            if getattr(self, name) in (None, {}, (), False) and getattr(other, name) not in (None, {}, (), False)
        }
        return replace(self, **missing)


@dataclass
class Content:
    """What a file contains.

    Attributes
    ----------
    source, kind, proves : str
        The file, what it was recognised as, and what follows from it.
    figures : list of Figures
    counters : dict of str to Mapping
        Statistics by model, in the form of ``model_stats``; two contents of this kind are subtracted.
    configs : list of ModelConfig
    problems, version : list of str, str
        What is wrong in a configuration or a log, and the version of the server.
    """

    source: str
    kind: str
    proves: str
    figures: list[Figures] = field(default_factory=list)
    counters: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    configs: list[pb.ModelConfig] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    version: str = ""
