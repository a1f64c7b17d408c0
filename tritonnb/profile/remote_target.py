"""What the HTTP and the gRPC target of a load have in common."""

from __future__ import annotations

from typing import TypedDict

from tritonnb.client.address import ModelAddress
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.schema import ModelSpec
from tritonnb.profile.targets import is_stateful
from tritonnb.simulation.arrivals import Arrival


class RequestParameters(TypedDict, total=False):
    """Request parameters of the sequence and schedule policy extensions."""

    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    priority: int
    timeout: int


class RemoteTarget:
    """A model reached over a network: the server of this process, or any other server of the v2 protocol.

    Parameters
    ----------
    model : ModelAddress
    config : ModelConfig
        The model's configuration on that server.
    """

    alive = True

    def __init__(self, model: ModelAddress, config: pb.ModelConfig) -> None:
        self.spec = ModelSpec.from_config(config)
        self.decoupled = config.model_transaction_policy.decoupled
        self.stateful = is_stateful(config, lambda *step: model.sibling(*step).config())


def request_parameters(arrival: Arrival) -> RequestParameters:
    """The request parameters that an arrival needs; empty for a request without options."""
    parameters: RequestParameters = {}
    if arrival.sequence_id:
        parameters["sequence_id"] = arrival.sequence_id
        parameters["sequence_start"] = arrival.sequence_start
        parameters["sequence_end"] = arrival.sequence_end
    if arrival.priority:
        parameters["priority"] = arrival.priority
    if arrival.timeout_us:
        parameters["timeout"] = arrival.timeout_us
    return parameters
