"""Exercises: drawn from a seed, marked by the simulator, the first mistake explained."""

from __future__ import annotations

from typing import Any

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
def test_same_seed_creates_the_same_exercise_with_a_correct_solution(batcher: str, seed: int) -> None:
    sheet = tnb.worksheet(batcher, seed=seed, requests=7)
    assert repr(sheet) == repr(tnb.worksheet(batcher, seed=seed, requests=7))
    grade = sheet.check(sheet.solution)
    assert grade
    assert grade.correct == grade.total == len(sheet.recording.batches)
    assert sum(len(batch) for batch in sheet.solution) >= 7


@pytest.mark.parametrize("batcher", BATCHERS)
def test_different_seeds_create_different_exercises(batcher: str) -> None:
    assert len({repr(tnb.worksheet(batcher, seed=seed)) for seed in range(10)}) == 10


@pytest.mark.parametrize("batcher", BATCHERS)
def test_exercises_do_not_depend_on_the_order_of_simultaneous_events(batcher: str) -> None:
    for seed in range(20):
        sheet = tnb.worksheet(batcher, seed=seed)
        arrived = {round(arrival.time_us * 1000) for arrival in sheet.arrivals}
        assert len(arrived) == len(sheet.arrivals)
        assert not arrived & {batch.exec_end_ns for batch in sheet.recording.batches}


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
def test_worksheet_accepts_several_notations(answer: Any) -> None:
    assert GUIDE.check(answer)


def test_first_mistake_is_revealed_with_the_reason_of_the_batch() -> None:
    grade = GUIDE.check(["AB", "CD", "E"])
    assert not grade
    assert (grade.correct, grade.total) == (0, 2)
    assert "0 of 2 batches correct" in repr(grade)
    assert "✗" in grade._repr_html_()
    revealed = GUIDE.reveal(["AB", "CD", "E"])
    assert revealed.startswith("Batch 1 is A, B and C, sent at 17 ms, not A and B.")
    assert "Why: A, B and C, 8 rows: max_batch_size 8 reached" in revealed


@pytest.mark.parametrize(
    ("sheet", "answer", "explained"),
    [
        (GUIDE, ["ABCD", "E"], "Batch 1 is not A, B, C and D. D arrives later, at 33 ms."),
        (GUIDE, ["ABC", "ADE"], "Batch 2 is not A, D and E. A already ran in batch 1."),
        (GUIDE, ["ABC"], "The answer ends before batch 2, and not every request has run."),
        (GUIDE, ["ABC", "DE", "E"], "No request is left after batch 2."),
        (GUIDE, ["AB", "C", "DE"], "Batch 1 is not A and B. The scheduler sends more than that."),
        (DIRECT, ["A1", "B1 A2 C1"], "The sequence of C1 waits in the backlog"),
        (DIRECT, ["A1", "B1 B2 A2"], "B2 follows B1 of its sequence"),
    ],
)
def test_wrong_batch_is_contradicted_by_facts(sheet: tnb.Worksheet, answer: list[str], explained: str) -> None:
    assert explained in sheet.check(answer).explanation


def before(name: str) -> str:
    """The name of the request before one of a sequence."""
    return f"{name[0]}{int(name[1:]) - 1}" if name[1:] else ""


@pytest.mark.parametrize("batcher", BATCHERS)
@pytest.mark.parametrize("seed", range(8))
def test_grade_does_not_reveal_the_solution(batcher: str, seed: int) -> None:
    sheet = tnb.worksheet(batcher, seed=seed)
    solution = [frozenset(batch) - {"-"} for batch in sheet.solution]
    for number, members in enumerate(solution):
        changed = {members | {sheet.names[-1]}, members - {min(members)}}
        for wrong in {frozenset({name}) for name in sheet.names} | changed - {members, frozenset()}:
            if wrong == members:
                continue
            answer = [sorted(batch) for batch in [*solution[:number], wrong]]
            grade = sheet.check(answer)
            assert grade.correct == number
            assert sheet.batches[number].why not in grade.explanation
            words = grade.explanation.replace(".", " ").replace(",", " ").split()
            named = {name for name in sheet.names if name in words}
            assert not (named - wrong - {before(name) for name in wrong}) & members
            assert sheet.reveal(answer).startswith(f"Batch {number + 1} is ")


@pytest.mark.parametrize(
    ("preferred", "arrivals", "number", "why"),
    [
        ("[2]", [(0, 1), (1000, 2)], 0, "A, 1 row: B's 2 rows would go beyond preferred 2"),
        ("[]", [(0, 1), (1000, 8)], 0, "A, 1 row: B's 8 rows would go beyond max_batch_size 8"),
        ("[]", [(0, 1), (6000, 1), (14000, 1)], 1, "C came later and was not added"),
        ("[]", [(0, 1), (6000, 4), (7000, 4), (14000, 1)], 1, "B and C, 8 rows: max_batch_size 8 reached; ready for 8"),
        ("[4]", [(0, 4), (1000, 2), (8000, 4)], 1, "C took it beyond preferred 4"),
    ],
)
def test_reason_names_the_request_that_is_added_or_left_out(
    preferred: str, arrivals: list[tuple[int, int]], number: int, why: str
) -> None:
    batching = f"dynamic_batching {{ preferred_batch_size: {preferred} max_queue_delay_microseconds: 5000 }}"
    sheet = tnb.Worksheet(f"max_batch_size: 8 {batching}", arrivals, 10)  # type: ignore[arg-type]
    assert why in sheet.why(number)


def test_correct_answer_reveals_nothing() -> None:
    assert GUIDE.reveal("ABC DE") == "All batches are as the scheduler forms them."
    assert GUIDE.reveal("ABC DE A") == "No request is left after batch 2."
    assert GUIDE.reveal("ABC").startswith("Batch 2 is D and E, sent at 67 ms: the answer ends before it.")


def test_null_requests_need_not_be_written() -> None:
    assert DIRECT.solution == [["A1"], ["A2", "B1"], ["C1", "B2"], ["-", "B3"]]
    assert DIRECT.check(["A1", "A2 B1", "C1 B2", "B3"])
    assert DIRECT.check([["A1"], ["A2", "B1"], ["C1", "B2"], ["-", "B3"]])


@pytest.mark.parametrize("answer", [None, 5, ["A", None], [["A"], 3], b"ABC", {"A": "B"}])
def test_invalid_answer_is_refused_with_an_example(answer: Any) -> None:
    with pytest.raises(tnb.TritonError, match="answer expected a string such as 'A BC' or a list such as"):
        GUIDE.check(answer)


def test_answer_with_unknown_request_name_is_refused() -> None:
    with pytest.raises(tnb.TritonError, match="answer expected requests of A, B, C, D, E, got 'Z'"):
        GUIDE.check(["AZ"])


def test_worksheet_shows_the_question_and_not_the_solution() -> None:
    for shown in (repr(GUIDE), GUIDE._repr_html_()):
        assert "Every execution takes 50 ms" in shown
        assert "max_queue_delay_microseconds: 20000" in shown
        assert "why" not in shown.lower()
    assert "<caption>Arrivals</caption>" in GUIDE._repr_html_()
    assert "START END" in repr(DIRECT)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(("rate",), "batcher expected one of dynamic, direct, oldest, got 'rate'"), (("direct", 2), "3 to 26")],
)
def test_wrong_arguments_are_named(arguments: tuple[str, ...] | tuple[Any, ...], complaint: str) -> None:
    with pytest.raises(tnb.TritonError, match=complaint):
        tnb.worksheet(arguments[0], requests=arguments[1] if len(arguments) > 1 else 6)  # type: ignore[arg-type]


CONFIG = "max_batch_size: 8 dynamic_batching { }"
FOLLOWING = tnb.Arrival(ms=1, sequence_id=7, sequence_start=True)


@pytest.mark.parametrize(
    ("config", "arrivals", "execution_ms", "complaint"),
    [
        ("max_batchsize: 8", [(0, 1)], 10, "max_batchsize"),
        ('platform: "ensemble" ensemble_scheduling { }', [(0, 1)], 10, "got an ensemble"),
        (CONFIG, 5, 10, "arrivals expected a list of Arrival or of \\(time in µs, rows\\), got 5"),
        (CONFIG, [(0, 1, 2, 3)], 10, "arrivals expected Arrival or \\(time in µs, rows\\), got \\(0, 1, 2, 3\\)"),
        (CONFIG, [(0, 9)], 10, "batch-size must be <= 8"),
        (CONFIG, [], 10, "worksheet expected 1 to 26 arrivals, got 0"),
        (CONFIG, [(at, 1) for at in range(27)], 10, "worksheet expected 1 to 26 arrivals, got 27"),
        (CONFIG, [(0, 1)], 0, "execution_ms must be positive, got 0"),
        (CONFIG, [(0, 1)], "5", "execution_ms must be positive, got '5'"),
        (
            "max_batch_size: 2 sequence_batching { }",
            [(0, 1)],
            10,
            "must specify a non-zero or non-empty correlation ID",
        ),
        (CONFIG, [(0, 1), FOLLOWING], 10, "expected a sequence_id for all arrivals or for none"),
    ],
)
def test_invalid_exercise_is_refused_on_creation(
    config: str, arrivals: Any, execution_ms: int | str, complaint: str
) -> None:
    with pytest.raises(tnb.TritonError, match=complaint):
        tnb.Worksheet(config, arrivals, execution_ms)  # type: ignore[arg-type]


def test_pairs_of_time_and_rows_become_sorted_arrivals() -> None:
    sheet = tnb.Worksheet(CONFIG, [(3000, 2), (0, 1)], 10)  # type: ignore[list-item]
    assert sheet.arrivals == (tnb.Arrival(ms=0), tnb.Arrival(ms=3, rows=2))
    assert sheet.solution == [["A"], ["B"]]
    assert repr(sheet).splitlines()[-1].split() == ["B", "3", "2"]


def test_question_has_the_number_of_instances() -> None:
    assert GUIDE.question.startswith("1 instance, idle from the start.")
    two = tnb.Worksheet(f"{CONFIG} instance_group {{ count: 2 }}", [(0, 1)], 10)  # type: ignore[list-item]
    assert two.question.startswith("2 instances, idle from the start.")


@pytest.mark.parametrize(
    ("sheet", "answer", "hint"),
    [
        (GUIDE, (), "Batch 1 is sent at 17 ms, when C arrives. By then A, B and C have arrived"),
        (GUIDE, "AB CDE", "Batch 1 is sent at 17 ms"),
        (GUIDE, "ABC", "Batch 2 is sent at 67 ms, when the execution of batch 1 ends. By then D and E have arrived"),
        (GUIDE, "ABC DE A", "One batch too many: every request has run after 2 batches."),
        (GUIDE, "ABC DE", "This answer is correct."),
        (DIRECT, (), "Batch 1 is sent at 0 ms, when A1 arrives. By then A1 has arrived"),
        (DIRECT, "A1", "Batch 2 is sent at 10 ms, when the execution of batch 1 ends. By then A2, B1, B2 and C1 have"),
    ],
)
def test_hint_names_time_and_candidates_of_the_first_wrong_batch(
    sheet: tnb.Worksheet, answer: tuple[Any, ...] | str, hint: str
) -> None:
    assert sheet.hint(answer).startswith(hint)


def test_hint_says_that_a_delay_expires() -> None:
    late = tnb.Worksheet("max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000 }", [(0, 1)], 10)  # type: ignore[list-item]
    assert late.hint().startswith("Batch 1 is sent at 5 ms, when a delay expires. By then A has arrived")


@pytest.mark.parametrize("batcher", BATCHERS)
def test_hint_does_not_reveal_the_reason_of_the_batch(batcher: str) -> None:
    sheet = tnb.worksheet(batcher, seed=3)
    for number, batch in enumerate(sheet.solution):
        hint = sheet.hint(sheet.solution[:number])
        assert hint.startswith(f"Batch {number + 1} is sent at")
        assert sheet.recording.batches[number].why not in hint
        assert all(name in hint for name in batch if name != "-")


# --- recorded requests --------------------------------------------------------------------------


def test_recording_becomes_an_exercise() -> None:
    config = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }'
    rec = tnb.simulate(config, tnb.poisson(rate=100, duration=1, seed=2), tnb.linear(per_row_ms=2, base_ms=10))
    sheet = rec.worksheet(requests=8)
    assert sheet.names == list("ABCDEFGH")
    assert sheet.arrivals[0].time_us == 0
    begin_us = rec.arrivals()[0].time_us
    expected_us = [round(arrival.time_us - begin_us) for arrival in rec.arrivals()[:8]]
    assert [arrival.time_us for arrival in sheet.arrivals] == expected_us
    assert sheet.check(sheet.solution)
    later = rec.worksheet(start_ms=500, requests=3)
    times_us = [arrival.time_us for arrival in rec.arrivals() if arrival.time_us >= 500_000][:3]
    assert [arrival.time_us for arrival in later.arrivals] == [round(time_us - times_us[0]) for time_us in times_us]
    assert "An execution takes 12 ms for 1 row, 14 ms for 2 rows" in sheet.question


def test_worksheet_has_execution_times_by_batch_size() -> None:
    sheet = tnb.Worksheet(CONFIG, [tnb.Arrival(ms=0), tnb.Arrival(ms=1, rows=2)], {1: 5, 2: 7})
    assert [batch.compute_ns for batch in sheet.batches] == [5_000_000, 7_000_000]
    assert "An execution takes 5 ms for 1 row, 7 ms for 2 rows, and proportionally" in sheet.question
    with pytest.raises(tnb.TritonError, match="execution_ms must be positive, got -1"):
        tnb.Worksheet(CONFIG, [tnb.Arrival(ms=0)], {1: -1})


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"requests": 27}, "requests expected a number from 1 to 26, got 27"),
        ({"start_ms": 9000}, "worksheet expected a request after start_ms=9000, got none"),
    ],
)
def test_recording_without_requests_in_the_range_is_refused(arguments: dict[str, int], complaint: str) -> None:
    rec = tnb.simulate(CONFIG, [(0, 1)], tnb.fixed(5))
    with pytest.raises(tnb.TritonError, match=complaint):
        rec.worksheet(**arguments)
    with pytest.raises(tnb.TritonError, match="expected a recording of one model with its configuration, got none"):
        tnb.Recording().worksheet()


@pytest.mark.parametrize("answer", ["AA", "A1 A1", "AaB", [["A", "A"]]])
def test_request_twice_in_a_batch_is_refused(answer: Any) -> None:
    sheet = tnb.Worksheet("max_batch_size: 8 dynamic_batching { }", [tnb.Arrival(ms=0), tnb.Arrival(ms=2)], 10)
    if answer == "A1 A1":  # two batches
        assert not sheet.check("A A")
        return
    with pytest.raises(tnb.TritonError, match="answer expected each request once in a batch, got 'A' twice"):
        sheet.check(answer)
