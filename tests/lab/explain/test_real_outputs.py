"""Outputs of perf_analyzer 2.46 and 2.51, AIPerf 0.13 and GenAI-Perf 0.0.16 against Triton 2.51, and their truth.

The models sleep, so that the truth is known: ``plain`` 5 ms, ``batched`` 6 ms and 0.5 ms for each request, ``delayed``
4 ms on two instances, ``seq`` 3 ms; ``dec`` sends five responses, one each 4 ms, on two instances; the server of
``aiperf`` and ``genai_perf`` sends eight responses, one each 5 ms.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tritonnb as tnb
from tritonnb.lab.explain.explain import Explanation

OUTPUTS = Path(__file__).parent / "outputs"
ONE, TWO = (f"instance_group {{ count: {count} kind: KIND_CPU }}" for count in (1, 2))
CONFIGS = {
    "plain": f"max_batch_size: 8 {ONE}",
    "batched": f"max_batch_size: 8 dynamic_batching {{ }} {ONE}",
    "delayed": f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 20000 }} {TWO}",
    "seq": f"max_batch_size: 4 sequence_batching {{ }} {ONE}",
    "dec": f"model_transaction_policy {{ decoupled: true }} {TWO}",
    "cached": f"max_batch_size: 8 response_cache {{ enable: true }} {ONE}",
    "bls": f"max_batch_size: 8 {TWO}",
    "prep": f"max_batch_size: 8 {TWO}",
    "fails": ONE,
    "ens": 'platform: "ensemble" ensemble_scheduling { step { model_name: "prep" input_map { key: "X" value: "X" } '
    'output_map { key: "Y" value: "M" } } step { model_name: "batched" input_map { key: "X" value: "M" } output_map { '
    'key: "Y" value: "Y" } } }',
}


def explained(files: str, models: str) -> Explanation:
    configs = [f'name: "{model}" {CONFIGS[model]}' for model in models.split()]
    return tnb.explain(*(OUTPUTS / file for file in files.split()), *configs)


@pytest.fixture
def without_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and one test compares them with the truth."""
    monkeypatch.setattr("tritonnb.lab.explain.explain.effects", lambda figures, config: [])


@pytest.mark.usefixtures("without_simulations")
@pytest.mark.parametrize(
    ("files", "models", "cause", "words"),
    [
        ("batched.txt", "batched", "instances_busy", "batches are full"),
        ("batched.csv", "batched", "", "queue"),  # it has no numbers of executions
        # The rate grew from 450 to 618 requests/s with 16 clients.
        ("batched_pct.txt", "batched", "batches_not_full", "batches have room (4.0 of 8 rows)"),
        ("mix.txt", "batched", "batches_not_full", "batches have room (4.3 of 8 rows)"),
        ("mix.txt mix.before.json mix.after.json", "batched", "batches_not_full", "1.0 executions of 9.22 ms"),
        ("mix.log mix.txt", "batched", "batches_not_full", "4.34 requests share an execution"),
        ("seq.txt", "seq", "batches_not_full", "batches have room (2.0 of 4 rows)"),
        # 100 requests/s more did not change what limits it, since all of them are answered.
        ("rate.txt", "batched", "load", "the load: 150 requests/s are sent, and all are answered"),
        ("rate.txt rate.csv", "batched", "load", "batches have room (1.1 of 8 rows)"),
        ("rateover.txt", "plain", "instances_busy", "requests wait 15.9 ms for them"),
        ("delayed.txt", "delayed", "few_clients", "all 4 are in the same batch"),
        ("dec.txt", "dec", "instances_busy", "1.9 executions of 22.75 ms run at the same time on 2 instances"),
        ("dec.export.json", "dec", "", "concurrency 2"),
        ("dec251.export.json", "dec", "", "concurrency 2"),  # with tensors of very large numbers
        ("periodic.export.json", "dec", "", "the concurrency varied, as with --periodic-concurrency-range"),
        ("cached.txt", "cached", "outside_server", "the response cache answered all 9,380 requests"),
        ("partly_cached.txt", "cached", "outside_server", "outside of the server"),  # and 8,169 hits
        ("bls.txt", "plain bls", "overhead", "or its requests wait for its instances"),
        ("ens.txt", "ens prep batched", "step:batches_not_full", "the step 'batched' takes 13.9 ms"),
        ("ens.txt", "ens", "step:", "how many there are was not given"),
        ("intervals.txt", "plain", "", "Requests that arrive in bursts do that"),
        ("unstable2.txt", "batched", "", "not stable at concurrency 2: the last of 3 passes is used"),
        ("aiperf.txt", "dec", "", "concurrency 4"),
        ("aiperf.csv", "dec", "", "rate and latency that clients saw"),
        ("aiperf.jsonl", "dec", "", "request by request"),
        ("aiperf_rate.json", "dec", "", "request rate 20"),
        ("genai_perf.txt", "dec", "", "rate and latency that clients saw"),
        ("genai_perf.csv", "dec", "", "rate and latency that clients saw"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_real_output_is_true(files: str, models: str, cause: str, words: str) -> None:
    answer = explained(files, models)
    assert (answer.refused, [*answer.causes.values()]) == ([], [cause])
    assert words in str(answer)
    assert not any("do not fit" in text for text in answer.contradictions)
    assert "No figures" not in str(answer)
    assert "Several measurements" not in str(answer)  # files of one run are one measurement


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("fails.txt", "had error: Failed to process the request(s) for model 'fails_0_0', message: RuntimeError: no"),
        ("refused.txt", "line 1: expected figures of perf_analyzer, got its error"),
        ("aiperf_failed.txt", "got its error 'All 10 inference request(s) failed"),
    ],
)
def test_failed_run_is_refused_with_its_error(file: str, words: str) -> None:
    answer = explained(file, "fails")
    assert words in " ".join(answer.refused)
    assert answer.causes == {}


#: Rates of Triton with eight clients before and after a change, the means of three runs in turn on a machine that did
#: other work too (before 411 to 487, two instances 560 to 662, a delay 449 to 663).
BEFORE, AFTER = 448.7, {"twice as many instances": 594.8, "max_queue_delay_microseconds 4": 539.4}


def test_measured_effect_of_a_change_is_in_its_range() -> None:
    report = f"Concurrency: 8, throughput: {BEFORE} infer/sec, latency 17829 usec"
    files = [OUTPUTS / f"eight.{when}.json" for when in ("before", "after")]
    answer = str(tnb.explain(report, *files, f"name: 'batched' {CONFIGS['batched']}"))
    for change, measured in AFTER.items():
        found = re.search(rf"^- {change}\d*: (\d+) to (\d+) requests/s", answer, re.MULTILINE)
        assert found is not None, answer
        assert int(found[1]) <= measured <= int(found[2])


REPORT = (OUTPUTS / "batched.txt").read_text()
COMMAND = "root@host:/workspace# perf_analyzer -m batched -u 127.0.0.1:8000 --concurrency-range 2:16:7\n"


@pytest.mark.parametrize(
    "text",
    [
        REPORT.replace("\n", "\r\n"),
        COMMAND + REPORT + "root@host:/workspace#",
        "\x1b]0;root@host: /workspace\x07\x1b[01;32mroot@host\x1b[00m:" + COMMAND + REPORT,
        f"I ran this:\n```shell\n$ {COMMAND}{REPORT}```\nWhy is it slow?",
        f"~~~\n{REPORT}~~~",
        re.sub("^", "> ", REPORT, flags=re.MULTILINE),
        re.sub(r"^ +", lambda spaces: "\t" * (len(spaces[0]) // 2), REPORT, flags=re.MULTILINE),
        REPORT.replace(" ", "\xa0"),
        REPORT[REPORT.index("Request concurrency: 16") :],
        REPORT[REPORT.index("    Request count: 1716") :],  # cut at both ends
        REPORT[: REPORT.index("\nInferences/Second")],
    ],
)
def test_report_is_read_however_it_was_copied(text: str) -> None:
    answer = tnb.explain(text, f"name: 'batched' {CONFIGS['batched']}")
    assert (answer.refused, answer.causes) == ([], {"batched": "instances_busy"})
    assert "7.97 requests share an execution" in str(answer)


def test_runs_in_one_file_keep_their_models_and_sizes() -> None:
    other = (OUTPUTS / "delayed.txt").read_text()
    command = COMMAND.replace("batched", "delayed")
    configs = [f'name: "{model}" {CONFIGS[model]}' for model in ("batched", "delayed")]
    for text in (COMMAND + REPORT + command + other, command + other + COMMAND + REPORT):
        answer = tnb.explain(text, *configs)
        assert answer.causes == {"batched": "instances_busy", "delayed": "few_clients"}
        assert answer.contradictions == []  # the second run has two rows a request
    answer = tnb.explain(REPORT + other, *configs)
    assert "figures without the name of a model can be those of any of 'batched', 'delayed'" in str(answer)
    assert {*answer.causes.values()} == {""} or "" in answer.causes


@pytest.mark.parametrize("numbers", [("618.", "618,"), ("25862 usec", "25.862,0 usec"), ("25862 usec", "25 862 usec")])
def test_other_forms_of_numbers_are_refused_with_their_line_or_not_used(numbers: tuple[str, str]) -> None:
    answer = tnb.explain(
        "\n" + REPORT.replace("617.602", "618.0").replace(*numbers), f"name: 'batched' {CONFIGS['batched']}"
    )
    assert answer.refused or answer.causes["batched"] in ("", "instances_busy")
    assert all("line 45" in text or "line 3" in text or "line 4" in text for text in answer.refused)
