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
#: A model that calls another eleven times; most of its time is its own code.
CALLS = (
    report("Request concurrency: 1", 7.41631, 134594, (267, 267), "117254 70 216 2374 102")
    + """
  Composing models:
  defect-classifier, version: 202403071807
      Inference count: 2940
      Execution count: 2940
      Successful request count: 2940
      Avg request latency: 2782 usec (overhead 20 usec + queue 70 usec + compute input 216 usec + compute infer 2374 usec + compute output 101 usec)
"""
)
DALI = (
    report("Request concurrency: 3", 48.8, 61500, (878, 878), "300 34000 20 25800 900")
    + """
  Composing models:
  dali, version:
      Inference count: 878
      Execution count: 878
      Successful request count: 878
      Avg request latency: 54600 usec (overhead 70 usec + queue 34000 usec + compute input 7 usec + compute infer 20028 usec + compute output 495 usec)

  model, version:
      Inference count: 878
      Execution count: 878
      Successful request count: 878
      Avg request latency: 6500 usec (overhead 10 usec + queue 60 usec + compute input 30 usec + compute infer 6000 usec + compute output 400 usec)
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
    # 424 executions/s of 2.357 ms, and 1.33 requests in each: 565 requests/s on one instance are no contradiction.
    "server#8173": ([report("Request Rate: 700 inference requests per seconds", 564.952, 7075, (10172, 7631), "185 1194 3 2357 1962"),
        'name: "resnet50_dynamic" max_batch_size: 8 dynamic_batching { } instance_group { count: 1 kind: KIND_GPU gpus: 0 }'], "batches_not_full", "1.33 requests share"),
    # Four threads of perf_analyzer wait for their sequences; the figures are of different times.
    "server#3113": ([report("Request Rate: 24 inference requests per seconds", 12.65, 209294, (1088, 1088), "150 98779 65 110095 36")], "", "requests do wait (98.8 ms) and yet run alone"),
    # The copy of the input to the GPU is most of the time.
    "server#3657": ([report("Request concurrency: 1", 219.6, 4553, (1315, 1315), "2 30 3012 1100 36")], "few_clients", "compute input takes 3.01 of 4.15 ms"),
    # perf_analyzer of 2022 divides the compute times by the rows: the rest is no overhead.
    "server#4250": ([report("Request concurrency: 1", 384, 342044, (2304, 18), "233900 57 101 1739 0", 128)], "few_clients", "are those of a row"),
    # A timestamp of the server is wrong; the thread's answer is a defect of the release.
    "server#2137": ([report("Request concurrency: 1", 8.8, 114044, (53, 53), "776538442544 124 3725 12169 72")], "load", "cannot be true"),
    # The response of several MB goes to another machine.
    "server#2783": ([report("Request concurrency: 6", 0.933333, 6450700, (33, 33), "4 179 4017 9553 122719")], "outside_server", "outside of the server"),
    # The model alone is at its capacity; the thread found another process on its GPU. Instances and batches are not given.
    "server#5865": ([report("Request concurrency: 20", 335.954, 59469, (6048, 605), "104 28517 42 30599 25")], "", "10.00 requests share an execution"),
    # The maintainer computed the rate of the slowest step: 1 / 20.5 ms = 48.7.
    "server#3245": ([DALI], "step:instances_busy", "the step 'dali'"),
    "server#6980": ([CALLS], "overhead", "its own code"),
    "server#6422": ([report("Request concurrency: 128", 783.788, 163087, (282460, 8232), "103572 4570 3425 26264 27213")], "overhead", "neither queue nor compute"),
    # The GPU works while the backend already waits for the output.
    "server#4691": ([report("Request concurrency: 1", 1.3, 760000, (45, 45), "32 78 12555 215699 525591")], "few_clients", "compute output takes 525.59 of 753.85 ms"),
    # One request at a time; trtexec has several on the way.
    "server#7848": ([summary((1, 340, 2900))], "few_clients", "one request at a time"),
    # One client, whose requests wait for nobody; the delay is a small part of their latency.
    "server#6241": ([report("Request concurrency: 1", 523.465, 1898, (9423, 9423), "40 130 60 1400 20"),
        'name: "m" max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 100 } instance_group { count: 2 kind: KIND_GPU }'],
        "few_clients", "concurrency is 1"),
    # The form of 2019: half of the time is outside of the server; two versions of one model are two steps.
    "server#502": (["Request concurrency: 1\n  Client: \n    Throughput: 2038 infer/sec\n    Avg latency: 481 usec\n  Server: \n    Request count: 12210\n"
        "    Avg request latency: 232 usec (overhead 232 usec + queue 0 usec + compute 0 usec)\n\n  Composing models: \n"
        "  simple, version: 1\n    Request count: 12210\n    Avg request latency: 176 usec (overhead 6 usec + queue 16 usec + compute 154 usec)\n\n"
        "  simple, version: 2\n    Request count: 12210\n    Avg request latency: 168 usec (overhead 5 usec + queue 15 usec + compute 148 usec)\n"],
        "outside_server", "outside of the server"),
    # 80 requests at once in batches of five: the thread has no cause, and the figures have no rate.
    "server#7271": ([stats(80, 16, 4900, 100), 'name: "m" max_batch_size: 400 dynamic_batching { max_queue_delay_microseconds: 10000000 } instance_group { count: 1 kind: KIND_CPU }'],
        "", "probably max_queue_delay"),
    # The statistics of an ensemble lack the waits of its steps.
    "server#5374": ([{"model_stats": [{"name": "ensemble_yolox", "version": "1", "inference_count": "3076", "execution_count": "3076", "inference_stats": {
        "success": {"count": "3076", "ns": "13579332296838"}, "fail": {}, "queue": {"count": "3076", "ns": "6090355"}, "compute_input": {"count": "3076", "ns": "197975601539"},
        "compute_infer": {"count": "3076", "ns": "413736506048"}, "compute_output": {"count": "3076", "ns": "317987215209"}}}]}],
        "overhead", "steps of an ensemble"),
    # Eight clients with one request each, of as many rows as fit: Little's law.
    "server#1878": ([report("Request concurrency: 8", 2067.2, 30970, (12440, 1554), "6 24611 35 3756 11", 8), 'name: "my_model" max_batch_size: 8 instance_group { count: 1 kind: KIND_GPU gpus: 0 }'],
        "instances_busy", "no dynamic_batching"),
    # The client needs 0.4 s to receive the response, and more to send random values.
    "server#1544": ([report("Request concurrency: 1", 1, 1007446, (6, 6), "7 51 0 45152 0"), "max_batch_size: 2 instance_group { count: 2 kind: KIND_GPU }"],
        "outside_server", "outside of the server"),
    # The release counts executions as requests; each batch waits for the delay of 200 ms.
    "server#3321": ([report("Request concurrency: 9", 19.8, 435831, (126, 14), "180 199847 72 234828 59").replace("Successful request count: 126", "Successful request count: 14"),
        'name: "m" max_batch_size: 32 dynamic_batching { max_queue_delay_microseconds: 200000 } instance_group { count: 1 kind: KIND_GPU gpus: 0 }'],
        "queue_delay", "9.00 requests share an execution"),
    # The client's count is of the last window, the server's of all.
    "server#3941": ([report("Request concurrency: 1", 108.8, 290000, (672, 21), "50 100 2000 200000 2000", 32)], "few_clients", "concurrency is 1"),
    "server#3624": ([LOG, 'name: "main" max_batch_size: 8 dynamic_batching { }'], "", "1.25 requests share an execution"),
    # Custom operations of TensorRT: the copy of the input is most of the time, for one client.
    "server#2591": ([report("Request concurrency: 1", 45000, 33358, (267000, 178), "3 158 23862 2925 17", 1500)], "few_clients", "compute input takes 23.86 of 26.80 ms"),
    # The model of one instance is slow.
    "server#3386": ([report("Request concurrency: 5", 4.8, 1041343, (573, 573), "4 838434 12 209423 58")], "instances_busy", "(assumed, because the number of instances was not given: 1)"),
    # Four threads send synchronous requests. The last level is cut off.
    "server#5725": ([report("Request Rate: 23 inference requests per seconds", 18.462, 215672, (997, 997), "33 102 117 214445 101")
        + "Request Rate: 24 inference requests per seconds\n  Client:\n    Request count: 997\n    Throughput: 18.4621 infer/sec\n    p50 latency: 215175 usec\n"],
        "load_generator", "4.0 are on the way on average"),
    # One request.
    "server#5106": (["\n".join(f'nv_inference_{name}{{model="gpt2_16",version="1"}} {value}' for name, value in {
        "request_success": 1, "exec_count": 1, "request_duration_us": 32435, "queue_duration_us": 64, "compute_input_duration_us": 4629,
        "compute_infer_duration_us": 2230, "compute_output_duration_us": 266}.items())], "overhead", "Only 1 request since the start"),
    # The asker's own client, which sends JSON, is slow; the figures are those of perf_client.
    "server#1963": (["perf_client -m 'pad' --concurrency-range 1:4\n" + summary((1, 25.2, 39608), (2, 40.2, 49598), (3, 59, 50977), (4, 82, 48694))],
        "few_clients", "from concurrency 1 to 4, the rate grows nearly as much"),
    # Shared memory helps, and the GPU is nearly full with one instance; the server's figures of the second level are missing.
    "server#3312": (['name: "yolo5" max_batch_size: 16 dynamic_batching { preferred_batch_size: [ 1, 2, 4, 8, 10, 16 ] } instance_group { count: 2 kind: KIND_GPU }',
        "perf_analyzer -m yolo5 -b 16\n" + report("Request concurrency: 1", 1017.6, 15723, (6096, 381), "2 68 611 13127 1031", 16)
        + "Request concurrency: 2\n  Client:\n    Throughput: 1152 infer/sec\n    Avg latency: 27669 usec (standard deviation 631 usec)\n"], "", "the rate grows only 1.13 times"),
    # Four GPUs: the rate grows with the clients, and a third of the time is outside of the server.
    "server#239": (["  Batch size: 8\n" + "".join(f"Request concurrency: {clients}\n  Client:\n    Throughput: {rate} infer/sec\n    Avg latency: {us} usec\n  Server:\n    Request count: {count}\n"
        f"    Avg request latency: {queue + compute} usec (overhead 20 usec + queue {queue} usec + compute {compute} usec)\n"
        for clients, rate, us, count, queue, compute in ((1, 273, 29080, 205, 72, 17586), (2, 516, 30839, 389, 59, 18552), (3, 859, 27694, 641, 53, 17779)))],
        "few_clients", "The figures do not tell: the numbers of requests"),
    # Requests run one after another. Rates have two digits.
    "tensorrtllm_backend#171": ([summary((1, 0.13, 7_300_000), (2, 0.14, 14_260_000))], "saturated", "stops growing at concurrency 1"),
    "TensorRT-LLM#1938": ([summary((1, 3.014, 328_207), (5, 3.088, 1_607_147))], "saturated", "stops growing at concurrency 1"),
    "client#779": (["genai-perf -m gemma2 --concurrency 1\n│ Request latency (ms) │ 3,792.74 │ 3,781.30 │\nOutput token throughput (per sec): 26.37\nRequest throughput (per sec): 0.26\n"],
        "few_clients", "one request at a time"),
    # The queue of an ensemble is no wait of its steps: the sum was missing in the release.
    "server#2429": ([report("Request concurrency: 500", 241.2, 1889372, (1597, 1597), "1877955 0 4184 3291 281")], "overhead", "whose steps have their own batches"),
    # The asker doubts the counts; nobody answered.
    "onnxruntime_backend#164": ([{"model_stats": [{"name": "decoder", "version": "1", "last_inference": 1672110878962, "inference_count": 437, "execution_count": 349,
        "inference_stats": {"success": {"count": 437, "ns": 2098376803}, "queue": {"count": 437, "ns": 1674632856}, "compute_input": {"count": 437, "ns": 35891659},
        "compute_infer": {"count": 437, "ns": 368605960}, "compute_output": {"count": 437, "ns": 9855404}}}]}], "", "The rate is needed to tell"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_question_gets_the_answer_of_its_thread_and_no_wrong_one(case: str) -> None:
    given, cause, words = CASES[case]
    answer = tnb.explain(*given)
    assert (answer.refused, [*answer.causes.values()]) == ([], [cause])
    assert words in str(answer)
