"""The result of `Twin.plan`: the cheapest servers that satisfy a constraint, and the second-best ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tritonnb.core.accessors import extensible
from tritonnb.core.html_table import html_report
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.constraint import Constraint
from tritonnb.lab.prediction.prediction import Prediction
from tritonnb.lab.simulation.run import instance_count
from tritonnb.scheduling.reasons import pluralize


@dataclass(frozen=True)
class Option:
    """One way to satisfy a constraint.

    Attributes
    ----------
    edits : dict
        The edited fields of the configuration.
    config : ModelConfig
    replicas : int
        Servers, with the spare ones.
    prediction : Prediction
        With all replicas; the throughput is that of all.
    """

    edits: dict[str, Any]
    config: pb.ModelConfig
    replicas: int
    prediction: Prediction

    @property
    def instances(self) -> int:
        """Instances of all replicas."""
        return self.replicas * instance_count(self.config)

    @property
    def cost(self) -> tuple[float, ...]:
        """Sort key: replicas first, then instances, then the p99."""
        return cost_of(self.replicas, self.instances, self.prediction.latency_p99_ms.value, self.edits)

    def __str__(self) -> str:
        edits = ", ".join(f"{name} {value}" for name, value in self.edits.items())
        each = pluralize(instance_count(self.config), "instance")
        return f"{pluralize(self.replicas, 'replica')} with {each} each" + (f", {edits}" if edits else "")


def cost_of(replicas: int, instances: int, p99_ms: float, edits: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the sort key of an option; of a p99 two digits count, then the fewest edits."""
    return replicas, instances, float(f"{p99_ms:.1e}"), len(edits)


@extensible
@dataclass(frozen=True)
class Plan:
    """The cheapest servers that satisfy a constraint; see `Twin.plan`.

    Attributes
    ----------
    model : str
    constraint : Constraint
    rate : float
        Requests per second.
    spare : int
        Replicas of `best` that may be lost.
    best : Option
    runner_up : Option or None
        The next one, with another configuration.
    highest_rate : float
        The highest rate at which ``best`` satisfies the constraint without its spare replicas.
    limit : str
        What prevents a higher rate.
    after_loss : Prediction or None
        With one replica less; None if there is only one.
    holds_after_loss : bool
        Whether the constraint holds then.

    Examples
    --------
    >>> from tritonnb import jittered, linear, poisson, simulate
    >>> config = 'name: "m" max_batch_size: 8 dynamic_batching { }'
    >>> rec = simulate(config, poisson(100, 1, seed=1), jittered(linear(1, 5), sigma=0.1))
    >>> plan = rec.twin().plan(
    ...     "p99 < 50 ms", rate=500, count=[1], max_queue_delay_microseconds=[0], max_batch_size=[8]
    ... )
    >>> plan.verdict()
    "'m' at 500 requests/s with p99 < 50 ms: 2 replicas with 1 instance each."
    >>> [name for name, _ in plan.rows()]
    ['p99 (ms)', 'mean batch', 'utilization', 'runner-up', 'margin', 'breaks first', 'one replica lost']
    """

    export: ClassVar[Callable[..., Any]]

    model: str
    constraint: Constraint
    rate: float
    spare: int
    best: Option
    runner_up: Option | None
    highest_rate: float
    limit: str
    after_loss: Prediction | None
    holds_after_loss: bool

    @property
    def margin(self) -> float:
        """The growth of the rate that the plan allows, relative to `rate`: 0.2 for 20 %."""
        return self.highest_rate / self.rate - 1

    def verdict(self) -> str:
        """Summarize the plan in one sentence."""
        spare = f", {self.spare} of them spare" if self.spare else ""
        return f"'{self.model}' at {self.rate:,.0f} requests/s with {self.constraint.text}: {self.best}{spare}."

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table: names and texts."""
        prediction = self.best.prediction
        runner_up = "none"
        if self.runner_up is not None:
            runner_up = f"{self.runner_up}; p99 {self.runner_up.prediction.latency_p99_ms} ms"
        rows = [
            ("p99 (ms)", str(prediction.latency_p99_ms)),
            ("mean batch", str(prediction.mean_batch_size)),
            ("utilization", str(prediction.utilization)),
            ("runner-up", runner_up),
            ("margin", f"up to {self.highest_rate:,.0f} requests/s ({self.margin:+.0%})"),
            ("breaks first", self.limit),
        ]
        loss = "no replica is left"
        if self.after_loss is not None:
            holds = "holds" if self.holds_after_loss else "does not hold"
            loss = f"the constraint {holds}; p99 {self.after_loss.latency_p99_ms} ms"
        return [*rows, ("one replica lost", loss)]

    def __repr__(self) -> str:
        lines = [f"  {name:<17}{text}" for name, text in self.rows()]
        return "\n".join([self.verdict(), *lines, *(f"  {remark}" for remark in self.best.prediction.remarks)])

    def _repr_html_(self) -> str:
        return html_report(self.verdict(), (), self.rows(), self.best.prediction.remarks)
