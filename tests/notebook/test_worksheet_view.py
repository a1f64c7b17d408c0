"""The widget of a worksheet, without a browser."""

from __future__ import annotations

import pytest

import tritonnb as tnb
from tritonnb.notebook.worksheet_view import WorksheetView


@pytest.fixture
def view() -> WorksheetView:
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    times = [(0, 4), (1, 2), (17, 2), (33, 6), (34, 2)]
    return tnb.Worksheet(config, [tnb.Arrival(ms=ms, rows=rows) for ms, rows in times], 50).view()


def test_browser_receives_the_question_without_the_solution(view: WorksheetView) -> None:
    assert view.sheet["requests"][0] == ["A", 0.0, "4 rows"]
    assert view.sheet["detail"] == "rows"
    assert view.result == {}


@pytest.mark.parametrize(
    ("action", "known", "next_ms"), [("check", [], 17), ("hint", [], 17), ("reveal", [["A", "B", "C"]], 67)]
)
def test_quiz_action_shows_only_allowed_results(
    view: WorksheetView, action: str, known: list[list[str]], next_ms: float
) -> None:
    view.answer = [["A"]]
    view._handle_custom_msg({"action": action}, [])
    assert [batch["names"] for batch in view.result["batches"]] == known
    assert view.result["next_ms"] == next_ms
    assert not view.result["done"]


def test_correct_answer_is_drawn(view: WorksheetView) -> None:
    view.answer = [["C", "A", "B"], ["D", "E"]]
    view.check()
    assert view.result["done"]
    assert [(batch["begin_ms"], batch["end_ms"]) for batch in view.result["batches"]] == [(17, 67), (67, 117)]
    assert "Predicted batches: C A B; D E" in view.last_state()
    assert "2 of 2 batches correct" in view.last_state()


def test_unknown_name_is_an_error_of_the_answer(view: WorksheetView) -> None:
    view.answer = [["Z"]]
    view._handle_custom_msg({"action": "check"}, [])
    assert view.result["text"] == "answer expected requests of A, B, C, D, E, got 'Z'"


def test_other_messages_are_ignored(view: WorksheetView) -> None:
    view._handle_custom_msg({"action": "solution"}, [])
    assert view.result == {}


def test_check_grades_the_answer_in_its_message(view: WorksheetView) -> None:
    view.answer = [["A"]]
    view._handle_custom_msg({"action": "check", "answer": [["A", "B", "C"], ["D", "E"]]}, [])
    assert view.result["text"].startswith("2 of 2 batches correct.")
