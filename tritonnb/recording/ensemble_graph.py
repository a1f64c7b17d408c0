"""The graph of an ensemble: its steps in layers, and the tensors between them."""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb

#: The nodes before the first and after the last step.
REQUEST, RESPONSE = "request", "response"


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A step, or the request or the response.

    Attributes
    ----------
    label : str
        The name of the model; ``"request"`` or ``"response"``.
    step : int
        The number of the step, from 0; -1 for the request and the response.
    layer : int
        One more than the layer of any node whose tensors it reads; the request is in layer 0.
    place : int
        The number of the node in its layer, from 0.
    """

    label: str
    step: int
    layer: int
    place: int


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Tensors that a node writes and another node reads; ``source`` and ``target`` are positions in the nodes."""

    source: int
    target: int
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The nodes, the request first and the response last, and the edges."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.nodes[-1].layer + 1

    @property
    def places(self) -> int:
        """The number of nodes of the largest layer."""
        return 1 + max(node.place for node in self.nodes)


def ensemble_graph(config: pb.ModelConfig) -> StepGraph:
    """Return the graph of an ensemble.

    Parameters
    ----------
    config : inference.ModelConfig
        A valid configuration; its steps form no cycle.

    Raises
    ------
    InvalidArgumentError
        If it is not the configuration of an ensemble.

    Examples
    --------
    >>> config = pb.ModelConfig(output=[pb.ModelOutput(name="OUT")])
    >>> for name, source, target in [("cut", "IN", "parts"), ("read", "parts", "OUT")]:
    ...     step = config.ensemble_scheduling.step.add(model_name=name)
    ...     step.input_map["X"], step.output_map["Y"] = source, target
    >>> [(node.label, node.layer) for node in ensemble_graph(config).nodes]
    [('request', 0), ('cut', 1), ('read', 2), ('response', 3)]
    """
    steps = config.ensemble_scheduling.step
    if not steps:
        raise InvalidArgumentError(f"model '{config.name}' expected an ensemble, got a model without steps")
    reads = [set[str](), *(set(step.input_map.values()) for step in steps), {tensor.name for tensor in config.output}]
    last = len(reads) - 1
    writer = {tensor: number for number, step in enumerate(steps, 1) for tensor in step.output_map.values()}
    sources = [{writer.get(tensor, 0) for tensor in tensors} for tensors in reads]
    layers = _layers(sources)
    layers[last] = 1 + max(layers[:last])
    labels = [REQUEST, *(step.model_name for step in steps), RESPONSE]
    taken = [0] * (last + 2)
    nodes = []
    for number, (label, layer) in enumerate(zip(labels, layers, strict=True)):
        nodes.append(GraphNode(label, number - 1 if 0 < number < last else -1, layer, taken[layer]))
        taken[layer] += 1
    edges = [
        GraphEdge(source, target, tuple(sorted(tensor for tensor in tensors if writer.get(tensor, 0) == source)))
        for target, tensors in enumerate(reads)
        for source in sorted(sources[target])
    ]
    return StepGraph(tuple(nodes), tuple(edges))


def _layers(sources: list[set[int]]) -> list[int]:
    """Return the length of the longest path to each node."""
    layers = [0] * len(sources)
    for _ in sources:  # after as many rounds as the longest path is long, nothing changes
        for number, before in enumerate(sources):
            layers[number] = max((1 + layers[source] for source in before), default=0)
    return layers
