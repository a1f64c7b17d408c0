"""The result of `Twin.plan`: the cheapest servers that satisfy a constraint, and the second best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tritonnb.core.accessors import extensible
from tritonnb.core.html_table import html_report
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.constraint import Constraint
from tritonnb.lab.analysis.pipeline_what_if import flat_edits
from tritonnb.lab.prediction.prediction import Prediction, Range
from tritonnb.lab.prediction.timed_models import EditsByModel, TimedModels
from tritonnb.scheduling.reasons import pluralize


@dataclass(frozen=True)
class Option:
    """One way to satisfy a constraint.

    Attributes
    ----------
    edits : dict of str to dict
        The edited fields of the configurations, by model.
    models : TimedModels
        With these configurations.
    replicas : int
        Servers, including spare servers.
    prediction : Prediction
        With all replicas; the throughput is the sum of their throughputs.
    constrained : dict of str to Range
        The quantities of the constraint in ms, such as ``p90``.
    """

    edits: EditsByModel
    models: TimedModels
    replicas: int
    prediction: Prediction
    constrained: Mapping[str, Range]

    @property
    def config(self) -> pb.ModelConfig:
        """The configuration of the model that clients call."""
        return self.models.config

    @property
    def instances(self) -> int:
        """Instances of all replicas."""
        return self.replicas * self.models.instances

    @property
    def cost(self) -> tuple[float, ...]:
        """Sort key: replicas first, then instances, then the p99."""
        return cost_of(self.replicas, self.instances, self.prediction.latency_p99_ms.value, self.edits)

    def __str__(self) -> str:
        flat = self.edits if self.models.is_pipeline else self.edits.get(self.models.model, {})
        edits = ", ".join(f"{name} {value}" for name, value in flat_edits(flat).items())
        each = pluralize(self.models.instances, "instance")
        return f"{pluralize(self.replicas, 'replica')} with {each} each" + (f", {edits}" if edits else "")


def cost_of(replicas: int, instances: int, p99_ms: float, edits: EditsByModel) -> tuple[float, ...]:
    """Return the sort key of an option; of a p99 two digits count, then the fewest edits."""
    return replicas, instances, float(f"{p99_ms:.1e}"), sum(map(len, edits.values()))


def _constrained_text(constrained: Mapping[str, Range]) -> str:
    return ", ".join(f"{name} {value} ms" for name, value in constrained.items())


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
        The next option, with another configuration.
    highest_rate : float
        The highest rate at which ``best`` satisfies the constraint without its spare replicas.
    limit : str
        What prevents a higher rate.
    after_loss : Prediction or None
        With one replica less; None for a single replica.
    holds_after_loss : bool
        Whether the constraint holds then: in 95 % of the measured values that are to be expected.
    constrained_after_loss : dict of str to Range
        The quantities of the constraint then, in ms.
    capacity_share : float
        The share (0 to 1) of the capacity that the rate uses with all replicas: of what is executed under overload.
    interrupted : bool
        Whether the search was interrupted: another configuration may be cheaper.

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
    constrained_after_loss: Mapping[str, Range]
    capacity_share: float
    interrupted: bool = False

    @property
    def margin(self) -> float:
        """The growth of the rate that the plan allows, relative to `rate`: 0.2 for 20 %."""
        return self.highest_rate / self.rate - 1

    def verdict(self) -> str:
        """Summarize the plan in one sentence."""
        spare = f", {self.spare} of them spare" if self.spare else ""
        text = f"'{self.model}' at {self.rate:,.0f} requests/s with {self.constraint.text}: {self.best}{spare}."
        return f"{text} Interrupted: another plan may be cheaper." if self.interrupted else text

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table: names and texts."""
        prediction = self.best.prediction
        runner_up = "none"
        if self.runner_up is not None:
            runner_up = f"{self.runner_up}; {_constrained_text(self.runner_up.constrained)}"
        rows = [(f"{name} (ms)", str(value)) for name, value in self.best.constrained.items()]
        if "p99" not in self.best.constrained:
            rows.append(("p99 (ms)", str(prediction.latency_p99_ms)))
        without = f" with {self.best.replicas - self.spare} replicas, after the loss of the spare" if self.spare else ""
        rows += [
            ("mean batch", str(prediction.mean_batch_size)),
            ("utilization", f"{prediction.utilization} of the time; {self.capacity_share:.0%} of the capacity"),
            ("runner-up", runner_up),
            ("margin", f"up to {self.highest_rate:,.0f} requests/s{without} ({self.margin:+.0%})"),
            ("breaks first", self.limit),
        ]
        loss = "not simulated" if self.interrupted and self.best.replicas > 1 else "no replica is left"
        if self.after_loss is not None:
            holds = "holds" if self.holds_after_loss else "does not hold"
            loss = f"the constraint {holds}; {_constrained_text(self.constrained_after_loss)}"
        return [*rows, ("one replica lost", loss)]

    def __repr__(self) -> str:
        lines = [f"  {name:<17}{text}" for name, text in self.rows()]
        return "\n".join([self.verdict(), *lines, *(f"  {remark}" for remark in self.best.prediction.remarks)])

    def _repr_html_(self) -> str:
        return html_report(self.verdict(), (), self.rows(), self.best.prediction.remarks)
