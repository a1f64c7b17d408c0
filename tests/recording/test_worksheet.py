"""Exercises: drawn from a seed, marked by the simulator, the first mistake explained."""

from __future__ import annotations

import pytest

import tritonnb as tnb

BATCHERS = ["dynamic", "direct", "oldest"]
#: The example of Triton's Conceptual Guide, in whole milliseconds.
GUIDE = tnb.Worksheet(
    "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }",
    [tnb.Arrival(0, 4), tnb.Arrival(1000, 2), tnb.Arrival(17000, 2), tnb.Arrival(33000, 6), tnb.Arrival(34000, 2)],
    50,
)
#: Two slots; C has to wait for one.
DIRECT = tnb.Worksheet(
    "max_batch_size: 2 sequence_batching { direct { } }",
    [
        tnb.Arrival(0, sequence_id=7, sequence_start=True),
        tnb.Arrival(1000, sequence_id=8, sequence_start=True),
        tnb.Arrival(2000, sequence_id=9, sequence_start=True, sequence_end=True),
        tnb.Arrival(3000, sequence_id=7, sequence_end=True),
        tnb.Arrival(4000, sequence_id=8),
        tnb.Arrival(25000, sequence_id=8, sequence_end=True),
    ],
    10,
)


@pytest.mark.parametrize("batcher", BATCHERS)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_exercise_and_its_solution_is_right(batcher: str, seed: int):
    sheet = tnb.worksheet(batcher, seed=seed, requests=7)
    assert repr(sheet) == repr(tnb.worksheet(batcher, seed=seed, requests=7))
    mark = sheet.check(sheet.solution)
    assert mark
    assert mark.right == mark.of == len(sheet.recording.batches)
    assert sum(len(each) for each in sheet.solution) >= 7


@pytest.mark.parametrize("batcher", BATCHERS)
def test_other_seeds_give_other_exercises(batcher: str):
    assert len({repr(tnb.worksheet(batcher, seed=seed)) for seed in range(10)}) == 10


@pytest.mark.parametrize("batcher", BATCHERS)
def test_nothing_hangs_on_which_of_two_things_at_one_moment_comes_first(batcher: str):
    for seed in range(20):
        sheet = tnb.worksheet(batcher, seed=seed)
        arrived = {round(each.time_us * 1000) for each in sheet.arrivals}
        assert len(arrived) == len(sheet.arrivals)
        assert not arrived & {each.exec_end_ns for each in sheet.recording.batches}


@pytest.mark.parametrize(
    "answer",
    [
        ["ABC", "DE"],
        [["C", "B", "A"], ("D", "E")],
        "a b c\n\nd, e\n",
        [["a", "b", "c"], "ED"],
        "ABC DE",
        " acb, ed ",
    ],
)
def test_an_answer_may_be_written_in_several_ways(answer):
    assert GUIDE.check(answer)


def test_the_first_mistake_is_explained_from_the_batchs_reason():
    mark = GUIDE.check(["AB", "CD", "E"])
    assert not mark
    assert (mark.right, mark.of) == (0, 2)
    assert mark.explanation.startswith("Batch 1 is A, B and C, sent at 17 ms, not A and B.")
    assert GUIDE.recording.batches[0].why in mark.explanation
    assert "0 of 2 batches right" in repr(mark)
    assert "✗" in mark._repr_html_()


@pytest.mark.parametrize(
    ("sheet", "answer", "explained"),
    [
        (GUIDE, ["ABCD", "E"], "D arrives at 33 ms only."),
        (GUIDE, ["ABC", "ADE"], "A ran in batch 1 already."),
        (GUIDE, ["ABC"], "Batch 2 is D and E, sent at 67 ms: the answer ends before it."),
        (GUIDE, ["ABC", "DE", "E"], "After batch 2 nothing is left"),
        (DIRECT, ["A1", "B1 A2 C1"], "C1's sequence waits in the backlog"),
        (DIRECT, ["A1", "B1 B2 A2"], "B2 comes after B1 of its sequence"),
    ],
)
def test_what_speaks_against_a_wrong_name_is_said(sheet, answer, explained):
    assert explained in sheet.check(answer).explanation


def test_null_requests_need_not_be_written():
    assert DIRECT.solution == [["A1"], ["A2", "B1"], ["C1", "B2"], ["-", "B3"]]
    assert DIRECT.check(["A1", "A2 B1", "C1 B2", "B3"])
    assert DIRECT.check([["A1"], ["A2", "B1"], ["C1", "B2"], ["-", "B3"]])


@pytest.mark.parametrize("answer", [None, 5, ["A", None], [["A"], 3], b"ABC", {"A": "B"}])
def test_what_is_no_answer_is_refused_with_an_example(answer):
    with pytest.raises(tnb.TritonError, match="an answer is text such as 'A BC' or a list such as"):
        GUIDE.check(answer)


def test_a_name_that_does_not_exist_is_refused():
    with pytest.raises(tnb.TritonError, match="no request 'Z': they are A, B, C, D, E"):
        GUIDE.check(["AZ"])


def test_a_sheet_shows_what_is_asked_and_not_the_solution():
    for shown in (repr(GUIDE), GUIDE._repr_html_()):
        assert "Every execution takes 50 ms" in shown
        assert "max_queue_delay_microseconds: 20000" in shown
        assert "why" not in shown.lower()
    assert "<caption>Arrivals</caption>" in GUIDE._repr_html_()
    assert "START END" in repr(DIRECT)


@pytest.mark.parametrize(("given", "complaint"), [(("rate",), "batcher cannot be 'rate'"), (("direct", 2), "3 to 26")])
def test_wrong_arguments_are_named(given, complaint):
    with pytest.raises(tnb.TritonError, match=complaint):
        tnb.worksheet(given[0], requests=given[1] if len(given) > 1 else 6)
