"""Files that are damaged, foreign or ambiguous: `explain` says so, and claims nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from tests.lab.explain.test_public_questions import CASES, report, stats, summary
from tests.lab.explain.test_traces import trace

CSV = "Concurrency,Inferences/Second,Server Queue,Server Compute Infer,p99 latency\n1,100,10,9000,9500\n"
TABLE = "│ Request Latency (ms) │ 20.00 │\n│ Request Throughput (requests/sec) │ 50.00 │\n"
GENAI = {"request_latency": {"unit": "ms", "avg": 20}, "request_throughput": {"unit": "requests/sec", "avg": 50}}
LEVEL = "Concurrency: 4, throughput: %s infer/sec, latency %s"


@pytest.fixture
def without_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and are tested elsewhere."""
    monkeypatch.setattr("tritonnb.lab.explain.explain.effects", lambda figures, config: [])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (LEVEL % ("1e400", "5000 usec"), "line 1: expected a finite number with a decimal point, got '1e400'"),
        (LEVEL % ("800", "5,5 ms"), "got '5,5'"),
        (LEVEL % ("1.234,5", "5 ms"), "got '1.234,5'"),
        ("\n\n" + LEVEL % ("1.234.567", "5 ms"), "line 3"),
        (LEVEL % ("", "5 ms"), "expected a throughput"),
        ('{"model_stats": [', "line 1: expected JSON"),
        ('{"model_stats": [{"inference_count": 1e400}]}', "expected fields of another type"),
        ('{"model_stats": [{"inference_count": -5}]}', "inference_count -5"),
        ('{"model_stats": [{"inference_stats": {"queue": 5}}]}', "expected fields of another type"),
        ('{"model_stats": {"m": {}}}', "expected fields of another type"),
        ('{"model_stats": ' + "[" * 5000 + "]" * 5000 + "}", "expected"),
        ('{"model_stats": [{"inference_count": ' + "9" * 5000 + "}]}", "source 1"),
        ('{"error": "Request for unknown model: \'m\' is not found"}', "got the error \"Request for unknown model"),
        (GENAI | {"request_latency": {"unit": "fortnights", "avg": 1}}, "unit of request_latency expected one of"),
        ({"request_throughput": {"avg": None}}, "got neither"),
        ("Concurrency,Inferences/Second\n1,1", ""),
        ("Concurrency,Inferences/Second,p99 latency\n1,10", "line 2: expected 3 numbers as in the header"),
        ("Concurrency,Inferences/Second,p99 latency\n1,nan,3", "line 2"),
        (CSV.replace(",", ";"), "line 1: expected commas between the cells"),
        ("name: 'm'\nk\x00: 1", "line 2: expected a text in UTF-8, or in UTF-16 with a byte order mark, got"),
        ('nv_inference_count{model="m"} 1e400', "line 1: expected a finite number"),
        ('nv_inference_count{model="m", 7', "is it cut off?"),
        ('nv_inference_count{model="m"} 2\nnv_inference_queue_duration_us{model="m"} 5', "lacks nv_inference_req"),
        ('nv_gpu_utilization{gpu_uuid="x"} 0.5', "expected metrics of models"),
        ('[{"id": 1', "source 1"),
        ("max_batch_size: 8 dynamic_batching {", ""),
        ("", "empty"),
        ("100 % of my requests are slow", "100 % of my requests are slow"),
        ("hello: world", ""),
        (7, "expected a path, a text or a dict, got int"),
        ({"model_stats": {1, 2}}, "expected a dict of JSON"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_reason_and_no_cause(source: Any, words: str) -> None:
    answer = tnb.explain(source)
    assert words in " ".join(answer.refused)
    assert "/tmp" not in str(answer)
    assert "inf " not in str(answer).replace("infer", "")
    assert {*answer.causes.values()} <= {""}


@pytest.mark.parametrize("text", [trace(20), CSV, LEVEL])
def test_compressed_file_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert tnb.explain(path).refused == [
        "'file.gz': expected a text, got a compressed file: unpack it with gunzip first"
    ]


def test_configuration_that_cannot_be_parsed_proves_nothing() -> None:
    assert "it proves: nothing, because it cannot be parsed" in str(tnb.explain("max_batch_size: 8 dynamic_batching {"))


@pytest.mark.usefixtures("without_simulations")
def test_no_part_of_a_report_makes_explain_fail() -> None:
    for given, _, _ in CASES.values():
        texts = [json.dumps(source) if isinstance(source, dict) else source for source in given]
        for share in (0.1, 0.37, 0.62, 0.81, 0.97):
            tnb.explain(*(text[: int(share * len(text))] for text in texts))
            tnb.explain(*(text[int(share * len(text)) :] for text in texts))


def test_files_of_other_systems_are_read(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("utf16.txt", "colours.txt", "fenced.md")]
    text = LEVEL % ("800", "5000 usec")
    paths[0].write_bytes(text.encode("utf-16"))
    paths[1].write_text(f"\x1b[1m\t{text}\x1b[0m\r\n")
    paths[2].write_text(f"```\n{text}\n```\n")
    for path in paths:
        answer = tnb.explain(path)
        assert (answer.refused, answer.contradictions) == ([], [])
        assert "rate and latency at concurrency 4" in str(answer)


PARTS = "20 100 100 8000 100"
PERCENTILES = "Inferences/Second vs. Client p95 Batch Latency\n" + summary((1, 100, 11_000), (4, 101, 44_000))
ENSEMBLE = 'name: "m" platform: "ensemble" ensemble_scheduling { step { model_name: "a" model_version: -1 } }'
VERBOSE = report("Request concurrency: 4", 480, 8320, (4800, 4800), PARTS).replace(
    "  Client:", "  Pass [1] throughput: 3 infer/sec. Avg latency: 99 usec (std 1 usec)\n  Client:"
)


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ([VERBOSE], "so 4 / 8.32 ms is the rate"),  # not the first pass
        (["Failed to obtain stable measurement within 10 windows.\n" + VERBOSE], "says: Failed to obtain"),
        (["[WARNING] Perf Analyzer is not able to keep up with the desired load.\n" + VERBOSE], "not able to keep up"),
        ([VERBOSE, VERBOSE.replace("480", "580")], "at concurrency 4: 480.0 requests/s in source 1, 580.0"),
        ([CSV + "2,120,9"], "line 3: expected 5 numbers as in the header, got '2,120,9'; the line is not used"),
        ([CSV], "CSV of perf_analyzer"),
        ([{"model_stats": []}], "no model is loaded"),
        ([{"model_stats": [{"name": "m", "inference_stats": {}}]}], "nothing was executed"),
        ([{"name": "m", "versions": ["1"], "inputs": [], "platform": "x"}], "metadata of a model"),
        (["name: 'a' max_batch_size: 2", "name: 'a' max_batch_size: 4"], "two configurations of model 'a' differ"),
        ([GENAI | {"input_config": {"loadgen": {"concurrency": 1}}}], "rate and latency that clients saw"),
        ([GENAI | {"input_config": {"concurrency": 64, "request_rate": 90.0}}], "90 requests/s were to be sent"),
        ([PERCENTILES], "stops growing at concurrency 1: 100 requests/s there, 101 at concurrency 4. Something"),
        ([ENSEMBLE, stats(10, 10, 0, 5)], "its steps have their own batches"),
        (["CLI Command: aiperf profile --request-rate 90\n" + TABLE], "90 requests/s were to be sent"),
        (['Metric,avg\nRequest Latency (ms),"1,234.50"\n\nMetric,Value\nRequest Throughput (per sec),4.0'], "GenAI"),
    ],
)  # fmt: skip
def test_doubts_and_ambiguities_are_said(sources: list[Any], words: str) -> None:
    answer = tnb.explain(*sources)
    assert words in str(answer)


@pytest.mark.parametrize(
    ("header", "contradicts"),
    [("Stabilizing using p99 latency\n", False), ("perf_analyzer -m m -b 10\n", False), ("", True)],
)
def test_percentiles_and_rates_of_rows_do_not_contradict(header: str, contradicts: bool) -> None:
    assert bool(tnb.explain(header + summary((4, 800, 50_000))).contradictions) == contradicts


def two_models() -> dict[str, Any]:
    first, second = (stats(1000, 1000, 90, 6)["model_stats"][0] | {"name": name} for name in ("a", "b"))
    return {"model_stats": [first, second]}


def test_configuration_without_a_name_belongs_to_no_one_of_several_models() -> None:
    answer = tnb.explain(two_models(), "max_batch_size: 0 instance_group { count: 1 kind: KIND_CPU }")
    assert "a configuration without a name can be that of any of 'a', 'b'" in str(answer)
    assert "max_batch_size is 0" not in str(answer).partition("### What to measure next")[0]


def counted(requests: int, queue_ms: float, at_ms: int, **more: Any) -> dict[str, Any]:
    return stats(requests, requests, queue_ms, 5, last_inference=at_ms, **more)


def total(*parts: tuple[int, float]) -> tuple[int, float]:
    """Requests and their mean wait, of parts of the time."""
    requests = sum(count for count, _ in parts)
    return requests, sum(count * ms for count, ms in parts) / requests


FOUR = 'name: "m" max_batch_size: 1 instance_group { count: 4 kind: KIND_CPU } '
DRIFT = (
    "dynamic_batching { max_queue_delay_microseconds: 500 "
    "default_queue_policy { default_timeout_microseconds: 9000000 } }"
)
AT = 1_790_000_000_000  # 14:13:20 UTC


@pytest.mark.usefixtures("without_simulations")
@pytest.mark.parametrize(
    ("first", "between", "config", "words"),
    [
        ((6000, 2.0), (1000, 80.0), FOUR + DRIFT, "since 14:13:20 UTC"),
        (
            (6000, 2.0),
            (1000, 80.0),
            FOUR + DRIFT,
            "(server #8870, core #509; 23.08 to 26.07, fixed in 26.08): a reload",
        ),
        ((6000, 2.0), (1000, 80.0), FOUR, "may be damaged: a reload of the model would tell"),
        ((6000, 2.0), (7000, 80.0), FOUR + DRIFT, ""),  # the instances are busy
        ((6000, 70.0), (1000, 80.0), FOUR + DRIFT, ""),  # it was so before
        ((6000, 2.0), (1000, 3.0), FOUR + DRIFT, ""),  # they wait no longer
    ],
)
def test_waits_that_grow_beside_idle_instances_are_recognised_in_two_statistics(
    first: tuple[int, float], between: tuple[int, float], config: str, words: str
) -> None:
    dumps = [counted(*first, AT), counted(*total(first, between), AT + 10_000)]
    for given in (dumps, dumps[::-1]):  # files come in any order
        text = str(tnb.explain(*given, config))
        assert words in text
        assert ("Degrades" in text) == bool(words)


def test_counters_that_fell_are_not_subtracted() -> None:
    answer = tnb.explain(counted(6000, 2, AT), counted(50, 2, AT + 10_000))
    assert "a counter fell between both: it was loaded again meanwhile" in str(answer)
    assert answer.causes == {}


@pytest.mark.usefixtures("without_simulations")
@pytest.mark.parametrize(("seconds", "is_certain"), [(None, False), (600.0, True)])
def test_idle_time_before_the_load_is_not_taken_for_idle_instances(seconds: float | None, is_certain: bool) -> None:
    config = 'name: "m" max_batch_size: 1 instance_group { count: 1 kind: KIND_CPU }'
    text = str(tnb.explain(counted(1000, 50, AT), counted(2000, 50, AT + 600_000), config, seconds=seconds))
    assert "nstances idle" in text.replace("if the load was there all the time between both", "")
    assert ("(otherwise give its seconds)" not in text) == is_certain


def scrape(requests: int) -> str:
    of_request = {"request_success": 1, "count": 1, "exec_count": 1, "request_duration_us": 1000,
                  "queue_duration_us": 50, "compute_infer_duration_us": 900}  # fmt: skip
    return "\n".join(
        f'nv_inference_{name}{{model="m",version="1"}} {value * requests}' for name, value in of_request.items()
    )


def test_metrics_in_any_order_are_subtracted() -> None:
    ordered, reverse = (
        tnb.explain(scrape(first), scrape(last), seconds=10) for first, last in ((500, 900), (900, 500))
    )
    assert ordered.causes == reverse.causes == {"m": "load"}
    assert "the counts in source 1 are larger than those in source 2: it is taken as the later one" in str(reverse)
    assert "taken as the later one" not in str(ordered)


def level(clients: int, busy: float, infer_ms: float, rows: int = 1) -> str:
    rate = busy / infer_ms * 1e3
    return report(
        f"Request concurrency: {clients}", rate * rows, 1000 * clients / rate * 1e3, (1000 * rows, 1000),
        f"0 0 0 {infer_ms * 1e3} 0", rows,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("beside", "config", "is_said"),
    [
        (level(2, 2.0, 16), FOUR, True),
        (level(2, 2.0, 16), 'name: "m" max_batch_size: 1', True),
        (level(2, 2.0, 11), FOUR, False),  # about as fast
        (level(2, 1.0, 16), FOUR, False),  # not at the same time
        (level(2, 2.0, 16, rows=2), FOUR, False),  # larger batches take longer by themselves
        (level(2, 2.0, 16), FOUR.replace("4", "1"), False),
    ],
)
def test_instances_that_slow_each_other_down_are_recognised_at_two_loads(
    beside: str, config: str, is_said: bool
) -> None:
    text = str(tnb.explain(level(1, 1.0, 10) + beside, config))
    assert ("Instances slow each other down: an execution takes 10.00 ms at concurrency 1" in text) == is_said


def test_threads_of_instances_are_said_from_the_configuration() -> None:
    assert "together 4 times as many" in str(tnb.explain(FOUR + 'backend: "onnxruntime"'))
    assert "threads" not in str(tnb.explain(FOUR + 'backend: "python"'))


@pytest.mark.usefixtures("without_simulations")
@pytest.mark.parametrize(("earlier", "cause"), [([], "load"), ([stats(1000, 1000, 0.1, 1)], "outside_server")])
def test_counts_since_the_start_do_not_blame_the_way_to_the_client(earlier: list[Any], cause: str) -> None:
    answer = tnb.explain(summary((4, 100, 40_000)), *earlier, stats(9000, 9000, 0.1, 1), seconds=10)
    assert answer.causes == {"m": cause}


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "`<script>alert(1)</script>`"])
def test_no_element_of_a_page_comes_from_a_name(name: str) -> None:
    config = f"name: '{name}' max_batch_size: 8"
    answer = tnb.explain(config, "Concurrency: 8, throughput: 100 infer/sec, latency 80000 usec", "<b>unreadable</b>")
    assert name in answer.markdown()
    assert "<" not in answer._repr_markdown_()
