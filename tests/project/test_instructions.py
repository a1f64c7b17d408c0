"""The count of instructions: what callgrind writes, and the figures in the repository."""

from __future__ import annotations

import json
import textwrap

from benchmarks.instructions import BUDGET, Profile
from benchmarks.report import BUDGETS

#: `main` calls a compiled function twice, which calls the library; costs of calls contain what is called.
WRITTEN = textwrap.dedent("""
    fn=(1) main
    3 10
    cfn=(2) CPyDef_http___inference___Inference___submit
    calls=2 7
    +1 60

    fn=(2)
    7 40
    cfn=(3) PyObject_Call
    calls=1 9
    * 20

    fn=(3)
    9 20
    totals: 70
""")


def test_profile_counts_each_instruction_once_and_calls_with_what_they_call() -> None:
    profile = Profile(WRITTEN)
    assert profile.total == 70
    assert profile.shares() == {"endpoints.http.inference: Inference.submit": 60 / 70}


def test_every_kind_of_request_has_figures_and_a_budget() -> None:
    rows = json.loads(BUDGET.read_text())["rows"]
    assert {row.partition(",")[0] for row in rows} == set(BUDGETS)
