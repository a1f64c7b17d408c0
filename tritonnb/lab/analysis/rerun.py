"""Recorded requests under another configuration, with the execution times that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Set

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.backlog import busy_until
from tritonnb.lab.analysis.learned_times import LearnedTimes
from tritonnb.lab.simulation.run import instance_count, recorded_run, refuse_ensemble
from tritonnb.lab.simulation.service import Service
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.recording import Recording


class Rerun:
    """The requests of a recording of one model, to simulate them under other configurations.

    What-if, remedies, drafts and twins use it.

    Parameters
    ----------
    rec : Recording
    purpose : str
        For error messages.
    service : Service, optional
        Execution times; by default the recorded times.
    first : int, optional
        The number of the first request. Instances begin with the execution of the requests before it.

    Attributes
    ----------
    config : ModelConfig
    arrivals : list of Arrival
        From the first request on, in µs after the first recorded arrival.
    times : Service
    first_step_ns : int
        What the first step of a generation adds to its time.

    Raises
    ------
    InvalidArgumentError
        If the recording is not of exactly one model, lacks its configuration, or has no executed batch.
    """

    def __init__(self, rec: Recording, purpose: str, service: Service | None = None, *, first: int = 0) -> None:
        self.config = config_of(rec, purpose)
        self.arrivals = rec.arrivals()[first:]
        self.times: Service = service or rec.service()
        self.first_step_ns = 0
        self._replicas = len(rec.replicas) or 1
        self._busy_until = busy_until(rec, {*list(rec.arrived)[first:]}, rec.first_arrival_ns)

    def edited(self, edits: Mapping[str, object]) -> pb.ModelConfig:
        """Return the recorded configuration with edits.

        Parameters
        ----------
        edits : mapping of str to object
            As for `Recording.what_if`.

        Raises
        ------
        InvalidArgumentError
            If a field does not exist, or a value is invalid.
        """
        return with_overrides(self.config, edits)

    def run(self, config: pb.ModelConfig, arrivals: list[Arrival], seed: int = 0) -> Recording:
        """Simulate a configuration on as many replicas as were recorded.

        Parameters
        ----------
        config : ModelConfig
        arrivals : list of Arrival
            All `arrivals` or some of them.
        seed : int, optional
            Of execution times that were not recorded.
        """
        refuse_ensemble(config)
        name = config.name
        return recorded_run(
            *({name: config}, {name: arrivals}, {name: self.times}, seed),
            replicas=self._replicas,
            first_step_ns=self.first_step_ns,
            busy_until=self._busy_until,
        )


def unknown_instances(times: Service, config: pb.ModelConfig) -> str:
    """Return that the instances of a configuration were not recorded at the same time, as `SlowDown.unknown`.

    Times that are given instead of learned are known for each number.
    """
    return times.slow_down.unknown(instance_count(config)) if isinstance(times, LearnedTimes) else ""


def config_of(rec: Recording, purpose: str) -> pb.ModelConfig:
    """Return the configuration of the only model in a recording.

    Raises
    ------
    InvalidArgumentError
        If it is of another number of models, or lacks the configuration.
    """
    name = only_model({event.model for event in rec.arrived.values()}, purpose)
    if name not in rec.configs:
        raise InvalidArgumentError(f"{purpose} expected the configuration of model '{name}', got none: give config=")
    return rec.configs[name]


def only_model(models: Set[str], purpose: str) -> str:
    """Return the only model in a recording.

    Raises
    ------
    InvalidArgumentError
        If there is another number of them.
    """
    if len(models) != 1:
        names = f"{', '.join(sorted(models))}: use rec.for_model()" if models else "no model"
        raise InvalidArgumentError(f"{purpose} expected a recording of one model, got one of {names}")
    return next(iter(models))
