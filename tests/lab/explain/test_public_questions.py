"""Questions that users asked in public, with their figures re-created by hand, and what `explain` says.

A case has a name of what limits the rate; it is empty where the figures do not tell, and `explain` must not claim more.
"""

# ruff: noqa: E501 -- reports are wide

from __future__ import annotations

from typing import Any

import pytest

import tritonnb as tnb


def report(level: str, rate: float, latency: float, counts: tuple[int, int], parts: str, rows: int = 1) -> str:
    """A report of perf_analyzer; times in microseconds; parts are overhead, queue, and compute."""
    names = ("overhead", "queue", "compute input", "compute infer", "compute output")
    times = [float(part) for part in parts.split()]
    detail = " + ".join(f"{name} {time:g} usec" for name, time in zip(names, times, strict=True))
    return f"""*** Measurement Settings ***
  Batch size: {rows}
{level}
  Client:
    Request count: {counts[0] // rows}
    Throughput: {rate} infer/sec
    Avg latency: {latency:g} usec (standard deviation 10 usec)
  Server:
    Inference count: {counts[0]}
    Execution count: {counts[1]}
    Successful request count: {counts[0] // rows}
    Avg request latency: {sum(times):g} usec ({detail})
"""


def summary(*levels: tuple[int, float, int]) -> str:
    return "\n".join(
        f"Concurrency: {clients}, throughput: {rate} infer/sec, latency {us} usec" for clients, rate, us in levels
    )


def stats(requests: int, executions: int, queue_ms: float, compute_ms: float, **more: Any) -> dict[str, Any]:
    def entry(ms: float) -> dict[str, int]:
        return {"count": requests, "ns": round(ms * 1e6 * requests)}

    parts = {"success": entry(queue_ms + compute_ms), "queue": entry(queue_ms), "compute_infer": entry(compute_ms)}
    model = {"name": "m", "version": "1", "inference_count": requests, "execution_count": executions}
    return {"model_stats": [{**model, "inference_stats": parts, **more}]}


STEPS = (
    report("Request concurrency: 128", 148.2, 869558, (879, 879), "25590 730224 36000 36000 36479")
    + """
  Composing models:
  pypost16, version:
      Inference count: 879
      Execution count: 879
      Successful request count: 879
      Avg request latency: 664244 usec (overhead 2 usec + queue 657469 usec + compute input 3459 usec + compute infer 3105 usec + compute output 209 usec)

  sfpn16, version:
      Inference count: 931
      Execution count: 40
      Successful request count: 40
      Avg request latency: 175917 usec (overhead 1456 usec + queue 72755 usec + compute input 30000 usec + compute infer 71000 usec + compute output 706 usec)
"""
)
METRICS = "\n".join(
    f'nv_inference_{name}{{model="tensorrt_llm",version="1"}} {value}'
    for name, value in {
        "request_success": 4, "count": 4, "exec_count": 4, "request_duration_us": 8000000, "queue_duration_us": 100,
        "compute_infer_duration_us": 7900000,
    }.items()
)  # fmt: skip
LOG = "".join(
    f"I1126 10:15:28.{number:06} 27161 libtorch.cc:1347] model main, instance main_0, executing {size} requests\n"
    for number, size in enumerate([1, 1, 1, 2])
)
CASES: dict[str, tuple[list[Any], str, str]] = {
    # A closed loop of 1,000 clients: Little's law. The thread has no other answer.
    "server#7986": ([report("Request concurrency: 1000", 4005.66, 247602, (72262, 4518), "844 242704 2241 1613 94"),
        'name: "m" max_batch_size: 16 dynamic_batching { } instance_group { count: 1 kind: KIND_GPU gpus: 0 }'],
        "instances_busy", "batches are full"),
    # perf_analyzer with a uniform rate shows no problem: the user's own generator sends bursts.
    "server#8251": ([report("Request Rate: 100 inference requests per second", 3199.51, 2027, (115200, 3600), "40 60 100 1700 20", 32)],
        "load", "hardly wait"),
    # The configuration has no max_batch_size; the thread's answer is to set it.
    "server#5721": ([report("Request concurrency: 2", 14.6, 138764, (87, 87), "58 66156 373 67000 561"),
        'platform: "onnxruntime_onnx" input { name: "a" data_type: TYPE_INT64 dims: [-1, -1] } instance_group { count: 1 kind: KIND_CPU }'],
        "instances_busy", "max_batch_size is 0"),
    # One GPU is full with one instance.
    "server#3066": ([summary((1, 121.2, 8257), (2, 127.6, 15673), (3, 129.4, 23204), (4, 129.6, 30836))],
        "saturated", "stops growing at concurrency 1"),
    "server#6210": ([summary((1, 144.078, 7614), (2, 171.16, 12416), (3, 170.414, 18546))],
        "saturated", "stops growing at concurrency 2"),
    # The Python step with one instance and without a batcher is the limit of the ensemble.
    "server#2760": ([STEPS], "step:instances_busy", "the step 'pypost16'"),
    "server#6243": ([summary((1, 55.827, 17906), (4, 58.992, 67699))], "saturated", "stops growing at concurrency 1"),
    # Two calls of client.infer() one after another; the answer: each waits for its response.
    "server#4129": ([stats(2, 2, 50.1, 6), 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 50000 }'],
        "", "no other request arrives in this time"),
    # 4,800 rows a request: half of the time is spent on the way.
    "server#7492": ([report("Request concurrency: 1", 53742.9, 89179, (8707200, 1814), "4185 303 10000 20000 4444", 4800)],
        "outside_server", "outside of the server"),
    "tensorrtllm_backend#360": ([METRICS, 'name: "tensorrt_llm" max_batch_size: 16'], "load", "no dynamic_batching"),
    "server#6637": ([report("Request Rate: 1000 inference requests per second", 361.97, 2600, (3600, 3600), "50 80 100 1800 50")],
        "load_generator", "more threads"),
    # 300 requests/s leave most of four instances idle, and yet requests wait: averages do not tell why.
    "server#6267": ([report("Request Rate: 300 inference requests per second", 300, 9600, (3000, 3000), "40 4718 100 4400 100"),
        'name: "m" max_batch_size: 8 dynamic_batching { } instance_group { count: 4 kind: KIND_GPU gpus: 0 }'], "", "arrive in bursts"),
    "server#3624": ([LOG, 'name: "main" max_batch_size: 8 dynamic_batching { }'], "", "1.25 requests share an execution"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_question_gets_the_answer_of_its_thread_and_no_wrong_one(case: str) -> None:
    given, cause, words = CASES[case]
    answer = tnb.explain(*given)
    assert (answer.refused, [*answer.causes.values()]) == ([], [cause])
    assert words in str(answer)
