"""The graphs of steps that an ensemble may have: Triton's verdicts, and the law behind them."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws import law
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.ensemble import check_ensemble_scheduling
from tritonnb.scheduling.ensemble import EnsembleGraph, EnsembleRun, EnsembleScheduler, EnsembleStep, RunStep


@dataclass
class Graph:
    """Inputs, outputs, and steps: the tensors that each reads and writes."""

    inputs: list[str]
    outputs: list[str]
    steps: list[tuple[list[str], list[str]]]

    def config(self) -> pb.ModelConfig:
        config = pb.ModelConfig(name="e", platform="ensemble")
        for tensors, names in ((config.input, self.inputs), (config.output, self.outputs)):
            for name in names:
                tensors.add(name=name, data_type=pb.TYPE_INT32, dims=[1])
        for read, written in self.steps:
            step = config.ensemble_scheduling.step.add(model_name="m", model_version=-1)
            step.input_map.update(_numbered(read))
            step.output_map.update(_numbered(written))
        return config

    def refusal(self) -> str:
        try:
            check_ensemble_scheduling(self.config())
        except InvalidArgumentError as error:
            return str(error)
        return ""

    def is_valid(self) -> bool:
        """Each tensor has one source, is used, and the steps can run in some order."""
        sources = Counter([*self.inputs, *(tensor for _, written in self.steps for tensor in written)])
        read = {tensor for tensors, _ in self.steps for tensor in tensors}
        used = read | set(self.outputs)
        ready, waiting = set(self.inputs), list(self.steps)
        while runnable := [step for step in waiting if ready.issuperset(step[0])]:
            for step in runnable:
                waiting.remove(step)
                ready.update(step[1])
        return (
            set(sources.values()) == {1}
            and used <= sources.keys() <= used
            and read.issuperset(self.inputs)
            and not waiting
        )


def _numbered(tensors: list[str]) -> dict[str, str]:
    return {str(index): tensor for index, tensor in enumerate(tensors)}


def random_graph(rng: random.Random) -> Graph:
    """A valid graph, except that a tensor or two may be replaced by others or written once more."""
    names = [f"t{index}" for index in range(12)]
    inputs = [names.pop() for _ in range(rng.randint(1, 2))]
    available, steps = list(inputs), []
    for _ in range(rng.randint(1, 4)):
        read = [rng.choice(available) for _ in range(rng.randint(1, 2))]
        written = [names.pop() for _ in range(rng.randint(1, 2))]
        steps.append((read, written))
        available += written
    read_tensors = {tensor for tensors, _ in steps for tensor in tensors}
    outputs = [tensor for tensor in available if tensor not in read_tensors or rng.random() < 0.1]
    graph = Graph([tensor for tensor in inputs if tensor in read_tensors], outputs, steps)
    graph.outputs = [tensor for tensor in outputs if tensor not in inputs or tensor in read_tensors]
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        read, written = rng.choice(steps)
        if rng.random() < 0.5:
            written.append(rng.choice(available))
        else:
            tensors = rng.choice([read, written])
            tensors[rng.randrange(len(tensors))] = rng.choice([*available, "other"])
    rng.shuffle(steps)
    return graph


def test_verdicts_are_tritons() -> None:
    """Random graphs, and the messages of Triton 2.51; the graphs that it loads and never answers are refused.

    Graphs are left out for which the tensor that the message names depends on the order of a hash map.
    """
    rows = json.loads((Path(__file__).parent / "ensemble_graphs.json").read_text("utf-8"))
    endless = 0
    for inputs, outputs, texts, message in rows:
        steps = [(read.split(), written.split()) for read, written in (text.split(" -> ") for text in texts)]
        graph = Graph(inputs.split(), outputs.split(), steps)
        refusal = graph.refusal()
        if not message and "is an input of ensemble" in refusal:
            endless += 1
            continue
        assert refusal == message, graph
    assert len(rows) > 100
    assert 0 < endless < 10


def test_step_that_writes_an_input_of_its_ensemble_is_refused() -> None:
    for graph in (
        Graph(["X"], ["X"], [(["X"], ["X"])]),
        Graph(["X"], ["Z"], [(["X"], ["X"]), (["X"], ["Z"])]),
        Graph(["X"], ["Z"], [(["X"], ["A"]), (["A"], ["X"]), (["A"], ["Z"])]),
        Graph(["X"], ["X"], [(["A"], ["X"]), (["X"], ["A"])]),
        Graph(["X", "Y"], ["Z"], [(["X"], ["Z", "Y"]), (["Y"], ["W"]), (["W", "Z"], ["V"])]),
    ):
        assert graph.refusal()
    assert Graph(["X"], ["Z"], [(["X"], ["Z"]), (["X"], ["X"])]).refusal() == (
        "ensemble tensor 'X' is an input of ensemble 'e' and cannot appear in an output map: step 1, model 'm'; give "
        "the output of the step another name"
    )


def test_input_may_be_an_output() -> None:
    assert not Graph(["X"], ["X", "Y"], [(["X"], ["Y"])]).refusal()


@given(st.integers(0, 2**32 - 1))
@law(300)
def test_graph_is_accepted_if_each_tensor_has_one_source_and_then_each_step_runs_once(seed: int) -> None:
    graph = random_graph(random.Random(seed))
    refusal = graph.refusal()
    assert (not refusal) == graph.is_valid(), (graph, refusal)
    if not refusal:
        assert Counter(execute(graph)) == Counter(range(len(graph.steps)))


def execute(graph: Graph) -> list[int]:
    """Answer one request with all outputs; return the steps that ran."""
    steps = [
        EnsembleStep(index, "m", -1, _numbered(read), _numbered(written))
        for index, (read, written) in enumerate(graph.steps)
    ]
    scheduler = EnsembleScheduler(EnsembleGraph("e", steps, graph.inputs, graph.outputs))
    run = EnsembleRun(None, scheduler.graph.plan(None))
    waiting = scheduler.start_run(run, {name: name for name in graph.inputs})
    ran: list[int] = []
    answers = 0
    while waiting:
        decision = waiting.pop()
        if not isinstance(decision, RunStep):
            answers += 1
            continue
        step = decision.step
        ran.append(step.index)
        if len(ran) > len(steps):
            pytest.fail(f"a step runs again: {ran} in {graph}")
        waiting += scheduler.responded(run, step, 0, step.outputs, True)
    assert answers == 1
    assert run.has_ended
    return ran
