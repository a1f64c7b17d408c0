"""The ensemble scheduler, fed with stimuli by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tritonnb.core.errors import InvalidArgumentError, Status, TritonError
from tritonnb.scheduling.ensemble import (
    EndRequest,
    EnsembleDecision,
    EnsembleGraph,
    EnsembleRun,
    EnsembleScheduler,
    EnsembleStep,
    RunStep,
    SendResponse,
)
from tritonnb.scheduling.reasons import explain


def graph(*steps: str, inputs: str = "in", outputs: str = "out", decoupled: str = "", limit: int = 0) -> EnsembleGraph:
    """Steps such as ``"a: in other -> mid"``; the model's tensors are called as the ensemble's."""
    built = []
    for index, step in enumerate(steps):
        name, _, maps = step.partition(":")
        read, _, write = maps.partition("->")
        built.append(
            EnsembleStep(
                index, name, -1, {t: t for t in read.split()}, {t: t for t in write.split()}, name in decoupled
            )
        )
    return EnsembleGraph("e", built, inputs.split(), outputs.split(), ["extra"], limit)


class Play:
    """A scheduler and what it decided."""

    def __init__(self, *steps: str, **options: Any) -> None:
        self.scheduler = EnsembleScheduler(graph(*steps, **options))
        self.running: list[RunStep] = []
        self.answers: list[tuple[dict[str, Any], bool]] = []
        self.ends: list[TritonError | None] = []

    def begin(self, requested: Any = None, **inputs: object) -> list[str]:
        request = SimpleNamespace(id_prefix="[request id: r] ")
        run = EnsembleRun(request, self.scheduler.graph.plan(requested))
        return self._take(self.scheduler.start_run(run, inputs))

    def respond(
        self, name: str, outputs: dict[str, Any] | None = None, final: bool = True, **named: object
    ) -> list[str]:
        sent = self._sent(name, final)
        tensors = None if outputs is None and not named and not final else {**(outputs or {}), **named}
        return self._take(self.scheduler.responded(sent.run, sent.step, sent.iteration, tensors, final))

    def end(self, name: str) -> list[str]:
        sent = self._sent(name, True)
        return self._take(self.scheduler.responded(sent.run, sent.step, sent.iteration, None, True))

    def fail(self, name: str, message: str = "boom") -> list[str]:
        sent = self._sent(name, True)
        return self._take(self.scheduler.failed(sent.run, sent.step, TritonError(message, Status.UNSUPPORTED), True))

    def _sent(self, name: str, final: bool) -> RunStep:
        sent = next(execution for execution in self.running if execution.step.model_name == name)
        if final:
            self.running.remove(sent)
        return sent

    def _take(self, decisions: list[EnsembleDecision]) -> list[str]:
        for decision in decisions:
            if isinstance(decision, RunStep):
                self.running.append(decision)
            elif isinstance(decision, SendResponse):
                self.answers.append((decision.outputs, decision.final))
            else:
                assert isinstance(decision, EndRequest)
                self.ends.append(decision.error)
        return [decision.step.model_name for decision in decisions if isinstance(decision, RunStep)]


def test_steps_run_when_their_inputs_are_available_in_any_order() -> None:
    play = Play("join: left right -> out", "r: mid -> right", "l: mid -> left", "first: in -> mid")
    assert play.begin(**{"in": 1}) == ["first"]
    assert play.respond("first", mid=2) == ["r", "l"]
    assert play.respond("l", left=3) == []
    assert play.respond("r", right=4) == ["join"]
    assert play.running[0].inputs == {"left": 3, "right": 4}
    assert explain(play.running[0].reason) == "its inputs are there: left, right"
    play.respond("join", out=5)
    assert (play.answers, play.ends) == ([({"out": 5}, True)], [])


def test_steps_that_no_requested_output_needs_do_not_run() -> None:
    play = Play("a: in -> one", "b: in -> mid", "c: mid -> two", outputs="one two")
    assert play.begin(requested=["two"], **{"in": 1}) == ["b"]
    play.respond("b", mid=2)
    play.respond("c", two=3)
    assert play.answers == [({"two": 3}, True)]


def test_missing_tensor_does_not_block_its_readers() -> None:
    play = Play("a: in extra -> mid", "b: mid -> out", inputs="in extra")
    assert play.begin(**{"in": 1}) == ["a"]
    assert play.running[0].inputs == {"in": 1, "extra": None}
    assert play.respond("a") == ["b"]
    assert play.running[0].inputs == {"mid": None}
    play.respond("b")
    assert play.answers == [({"out": None}, True)]


def test_step_needs_a_required_input() -> None:
    play = Play("a: in other -> out", inputs="in other")
    assert play.begin(**{"in": 1}) == []
    assert "unexpected deadlock" in play.ends[0].message


def test_ensemble_answers_with_its_first_error_when_all_steps_have_ended() -> None:
    play = Play("a: in -> one", "b: in -> two", "c: one two -> out")
    play.begin(**{"in": 1})
    play.fail("a", "first")
    assert play.ends == []
    play.fail("b", "second")
    assert [(end.message, end.status) for end in play.ends] == [("in ensemble 'e', first", Status.UNSUPPORTED)]
    assert play.answers == []


def test_no_step_starts_after_an_error() -> None:
    play = Play("a: in -> one", "b: in -> two", "c: two -> three", "d: one three -> out")
    play.begin(**{"in": 1})
    play.fail("a")
    assert play.respond("b", two=1) == []
    assert len(play.ends) == 1


def test_every_response_of_a_decoupled_step_starts_an_iteration_of_later_steps() -> None:
    play = Play("d: in -> mid", "a: mid -> out", decoupled="d")
    play.begin(**{"in": 1})
    assert play.respond("d", final=False, mid=10) == ["a"]
    assert play.respond("d", final=False, mid=11) == ["a"]
    assert [execution.iteration for execution in play.running] == [0, 0, 1]
    play.respond("a", out=20)
    play.end("d")
    play.respond("a", out=21)
    assert play.answers == [({"out": 20}, False), ({"out": 21}, True)]
    assert play.ends == []


def test_later_iteration_may_overtake_an_earlier_one_and_keeps_its_own_tensors() -> None:
    play = Play("a: in -> mid side", "b: mid -> left", "c: left side -> out", decoupled="a")
    play.begin(**{"in": 1})
    assert play.respond("a", final=False, mid=10, side="first") == ["b"]
    assert play.respond("a", final=False, mid=20, side="second") == ["b"]
    play.running.reverse()
    assert play.respond("b", left=21) == ["c"]
    assert play.running[-1].inputs == {"left": 21, "side": "second"}
    assert play.respond("b", left=11) == ["c"]
    assert play.running[-1].inputs == {"left": 11, "side": "first"}


def test_tensor_can_be_read_by_a_step_and_be_an_output() -> None:
    play = Play("a: in -> mid", "b: mid -> out", outputs="mid out")
    play.begin(**{"in": 1})
    assert play.respond("a", mid=2) == ["b"]
    assert play.running[0].inputs == {"mid": 2}
    play.respond("b", out=3)
    assert play.answers == [({"mid": 2, "out": 3}, True)]


def test_decoupled_ensemble_ends_with_an_empty_final_response() -> None:
    play = Play("d: in -> out", decoupled="d")
    play.begin(**{"in": 1})
    play.respond("d", final=False, out=1)
    play.end("d")
    assert (play.answers, play.ends) == ([({"out": 1}, False)], [None])


def test_no_response_at_all_is_legal_for_a_decoupled_ensemble() -> None:
    play = Play("d: in -> mid", "a: mid -> out", decoupled="d")
    play.begin(**{"in": 1})
    play.end("d")
    assert (play.answers, play.ends) == ([], [None])


def test_no_more_requests_of_a_step_are_in_flight_than_allowed_over_all_requests() -> None:
    play = Play("a: in -> out", limit=2)
    assert [play.begin(**{"in": number}) for number in range(4)] == [["a"], ["a"], [], []]
    assert play.respond("a", out=0) == ["a"]
    assert explain(play.running[-1].reason).startswith("fewer than max_inflight_requests 2")
    assert play.running[-1].inputs == {"in": 2}


def test_failed_request_in_the_response_order_is_skipped() -> None:
    play = Play("a: in -> one", "b: in -> two", "c: one two -> out", limit=1)
    play.begin(**{"in": 1})
    assert play.begin(**{"in": 2}) == []
    first = play.running[0].run
    play.fail("b")
    assert play.running[-1].run is not first
    play.fail("a")
    assert len(play.ends) == 1
    assert {execution.step.model_name for execution in play.running} == {"a", "b"}


def test_cancelled_ensemble_request_ends_with_its_running_steps() -> None:
    play = Play("a: in -> mid", "b: mid -> out")
    play.begin(**{"in": 1})
    play._take(play.scheduler.cancel(play.running[0].run))
    assert play.respond("a", mid=1) == []
    assert play.ends[0].status is Status.CANCELLED


def test_ensemble_output_that_cannot_be_produced_is_an_error() -> None:
    play = Play("a: in -> out")
    play.begin(**{"in": 1})
    play.end("a")
    assert isinstance(play.ends[0], InvalidArgumentError)
    assert "[request id: r] unexpected deadlock" in play.ends[0].message


@given(st.data())
def test_every_step_runs_once_and_tensors_are_freed_at_the_end(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    names = ["in", *(f"t{index}" for index in range(count))]
    steps = [
        f"m{index}: {' '.join(data.draw(st.sets(st.sampled_from(names[: index + 1]), min_size=1)))} -> t{index}"
        for index in range(count)
    ]
    play = Play(*data.draw(st.permutations(steps)), outputs=names[-1])
    play.begin(**{"in": 0})
    (run,) = {id(execution.run): execution.run for execution in play.running}.values()
    ran = []
    while play.running:
        name = data.draw(st.sampled_from([execution.step.model_name for execution in play.running]))
        ran.append(name)
        play.respond(name, {f"t{name[1:]}": name})
    assert len(ran) == len(set(ran))
    assert set(ran) == {step.model_name for step in play.scheduler.graph.steps_for([names[-1]])}
    assert play.answers == [({names[-1]: f"m{count - 1}"}, True)]
    assert not run._values
    assert run.has_ended
