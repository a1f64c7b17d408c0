"""The metrics port: Triton's names, types and labels, and values that are those of the statistics."""

from __future__ import annotations

import contextlib
import http.client
import math
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchExecuted, EnsembleExecuted
from tritonnb.core.packed_events import pack
from tritonnb.endpoints.metrics import families, gpus
from tritonnb.endpoints.metrics.exposition import write_metrics
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.server.options import ServerKeywords
from tritonnb.server.server import Server
from tritonnb.telemetry.custom_metrics import MetricKind
from tritonnb.telemetry.histogram import Histogram
from tritonnb.telemetry.latencies import HistogramSettings, Latencies, Summary

MODELS = Path(__file__).parents[1] / "models"
EVERYTHING = MetricsOptions(summary_latencies=True, histogram_latencies=True)


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*models: str, metrics: MetricsOptions | None = None) -> Server:
        options: ServerKeywords = {"metrics_port": 0, "metrics": metrics}
        options |= {"model_control_mode": "explicit", "load_models": models}
        servers.append(Server(MODELS, port=0, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def get(server: Server, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def samples(server: Server) -> dict[str, float]:
    """Values by name and labels, as Prometheus reads them."""
    _, _, text = get(server)
    return {
        # The parser gives counters the ending that OpenMetrics wants.
        f"{sample.name.removesuffix('_total')}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def add(server: Server, times: int = 3) -> None:
    for _ in range(times):
        server["addsub"](INPUT0=np.ones((2, 4), np.int32), INPUT1=np.ones((2, 4), np.int32))


def test_metric_families_have_tritons_names_and_types(start: Callable[..., Server]) -> None:
    _, _, text = get(start("addsub"))
    kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    assert {name: kind for name, kind in kinds.items() if name.startswith("nv_inference")} == {
        "nv_inference_request_success": "counter",
        "nv_inference_request_failure": "counter",
        "nv_inference_count": "counter",
        "nv_inference_exec_count": "counter",
        "nv_inference_request_duration_us": "counter",
        "nv_inference_queue_duration_us": "counter",
        "nv_inference_compute_input_duration_us": "counter",
        "nv_inference_compute_infer_duration_us": "counter",
        "nv_inference_compute_output_duration_us": "counter",
        "nv_inference_pending_request_count": "gauge",
    }
    assert kinds["nv_model_load_duration_secs"] == "gauge"
    assert {"nv_pinned_memory_pool_total_bytes", "nv_cpu_utilization"} <= kinds.keys()
    assert not any(name.startswith("nv_cache") for name in kinds)


def test_cpu_utilization_covers_the_time_since_the_last_scrape(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    none = psutil.cpu_times()._replace(**dict.fromkeys(psutil.cpu_times()._fields, 0.0))
    seconds = {"user": 10, "idle": 90}
    monkeypatch.setattr(psutil, "cpu_times", lambda: none._replace(**seconds))
    server = start("addsub")
    for more, utilization in (({"user": 60, "idle": 140}, 0.5), ({"idle": 240}, 0)):
        seconds.update(more)
        assert samples(server)["nv_cpu_utilization[]"] == utilization


def test_pinned_memory_metrics_are_zero(start: Callable[..., Server]) -> None:
    values = samples(start("addsub"))
    assert [values[f"nv_pinned_memory_pool_{what}_bytes[]"] for what in ("total", "used")] == [0, 0]


def test_loaded_model_has_metrics_before_its_first_request(start: Callable[..., Server]) -> None:
    values = samples(start("versioned"))
    assert values["nv_inference_count[('model', 'versioned'), ('version', '3')]"] == 0
    for reason in ("OTHER", "CANCELED", "REJECTED", "BACKEND"):
        labels = [("model", "versioned"), ("reason", reason), ("version", "1")]
        assert values[f"nv_inference_request_failure{labels}"] == 0


def test_metric_labels_are_sorted_with_the_quantile_last(start: Callable[..., Server]) -> None:
    _, _, text = get(start("versioned", metrics=EVERYTHING))
    lines = [line.rpartition(" ")[0] for line in text.splitlines()]
    assert 'nv_inference_request_failure{model="versioned",reason="OTHER",version="1"}' in lines
    assert 'nv_inference_request_summary_us{model="versioned",version="1",quantile="0.5"}' in lines


def test_counters_equal_the_statistics(start: Callable[..., Server]) -> None:
    server = start("addsub")
    add(server)
    values = samples(server)
    labels = "[('model', 'addsub'), ('version', '1')]"
    statistics: Any = server.stats("addsub")["model_stats"][0]
    assert values[f"nv_inference_request_success{labels}"] == 3
    assert values[f"nv_inference_count{labels}"] == 6
    assert values[f"nv_inference_exec_count{labels}"] == statistics["execution_count"]
    for name, total in (("request", "success"), ("queue", "queue"), ("compute_infer", "compute_infer")):
        nanoseconds = statistics["inference_stats"][total]["ns"]
        assert values[f"nv_inference_{name}_duration_us{labels}"] == nanoseconds // 1000


def test_unloaded_model_is_not_in_the_metrics(start: Callable[..., Server]) -> None:
    server = start("addsub")
    server.unload("addsub")
    assert not any("addsub" in name for name in samples(server))


def test_summaries_and_histograms_are_published_when_asked_for(start: Callable[..., Server]) -> None:
    server = start("addsub", "countdown", metrics=EVERYTHING)
    add(server)
    server["countdown"].infer_all(COUNT=np.array([2], np.int32))
    values = samples(server)
    labels = "[('model', 'addsub'), ('version', '1')]"
    assert values[f"nv_inference_request_summary_us_count{labels}"] == 3
    assert values["nv_inference_queue_summary_us[('model', 'addsub'), ('quantile', '0.99'), ('version', '1')]"] >= 0
    first = "nv_inference_first_response_histogram_ms"
    assert values[f"{first}_count[('model', 'countdown'), ('version', '1')]"] == 1
    assert values[f"{first}_bucket[('le', '5000'), ('model', 'countdown'), ('version', '1')]"] == 1
    assert values[f"{first}_count{labels}"] == 3
    for name in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        family = f"nv_inference_{name}_duration_histogram_us"
        assert values[f"{family}_bucket[('le', '+Inf'), ('model', 'addsub'), ('version', '1')]"] == 3
        assert values[f"{family}_count{labels}"] == 3
        total = values[f"nv_inference_{name}_duration_us{labels}"]
        assert values[f"{family}_sum{labels}"] == pytest.approx(total, abs=1)


def test_model_with_a_response_cache_has_its_counters_on_a_server_without_one(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "addsub", tmp_path / "addsub")
    with (tmp_path / "addsub" / "config.pbtxt").open("a") as config:
        config.write("response_cache { enable: true }")
    with Server(tmp_path, port=0, metrics_port=0) as server:
        add(server)
        values = samples(server)
    # As a Triton 2.51 answers: no counters of the cache as a whole.
    labels = "[('model', 'addsub'), ('version', '1')]"
    assert {name: value for name, value in values.items() if name.startswith("nv_cache")} == {
        f"nv_cache_{name}_per_model{labels}": 0 for name in ("num_hits", "hit_duration", "num_misses", "miss_duration")
    }


def test_cache_summaries_exist_for_models_with_a_cache(tmp_path: Path) -> None:
    for name, extra in (("cached", "response_cache { enable: true }"), ("plain", "")):
        shutil.copytree(MODELS / "addsub", tmp_path / name)
        config = (tmp_path / name / "config.pbtxt").read_text().replace('"addsub"', f'"{name}"')
        (tmp_path / name / "config.pbtxt").write_text(config + extra)
    inputs = {name: np.ones((1, 4), np.int32) for name in ("INPUT0", "INPUT1")}
    options: ServerKeywords = {"metrics_port": 0, "metrics": EVERYTHING, "cache_config": {"local": {"size": "1000000"}}}
    with Server(tmp_path, port=0, **options) as server:
        for name in ("cached", "plain"):
            for _ in range(3):
                server[name](inputs)
        values = samples(server)
    cached, plain = (f"[('model', '{name}'), ('version', '1')]" for name in ("cached", "plain"))
    assert values[f"nv_cache_hit_summary_per_model_count{cached}"] == 2
    assert values[f"nv_cache_miss_summary_per_model_count{cached}"] == 1
    assert f"nv_cache_hit_summary_per_model_count{plain}" not in values
    for family, ran in (("request", None), ("queue", 3), ("compute_infer", 1)):
        assert values.get(f"nv_inference_{family}_summary_us_count{cached}") == ran
        assert values[f"nv_inference_{family}_summary_us_count{plain}"] == 3


ANSWERS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender, error = request.get_response_sender(), pb_utils.TritonError("no")
            for _ in range(COUNT):
                answer = [pb_utils.Tensor("Y", x)]
                sender.send(pb_utils.InferenceResponse(answer, error if x[0, 0] < 0 else None))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CACHED, DECOUPLED = "response_cache { enable: true }", "model_transaction_policy { decoupled: true }"


def write_ensembles(repository: Path) -> None:
    """The models m (one response) and d (two), and ensembles whose steps are chains of models."""
    io = """max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: 1 }
            output { name: "Y" data_type: TYPE_INT32 dims: 1 } """
    for name, count in (("m", 1), ("d", 2)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1/model.py").write_text(ANSWERS.replace("COUNT", str(count)))
        (repository / name / "config.pbtxt").write_text(f'backend: "python" {io} {DECOUPLED if count > 1 else ""}')
    for name, models, extra in (
        ("chain", "mm", ""),
        ("cached", "m", CACHED),
        ("nested", ["chain"], ""),
        ("nested_cached", ["cached"], ""),
        ("decoupled", "d", ""),
    ):
        tensors = ["X", *(f"t{index}" for index in range(len(models) - 1)), "Y"]
        steps = " ".join(
            f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{read}" }} '
            f'output_map {{ key: "Y" value: "{written}" }} }}'
            for model, read, written in zip(models, tensors, tensors[1:], strict=False)
        )
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(
            f'platform: "ensemble" {io} ensemble_scheduling {{ {steps} }} {extra}'
        )


def test_summaries_and_histograms_of_ensembles_equal_the_statistics(tmp_path: Path) -> None:
    """The counts are those of Triton 2.51; each ensemble gets two equal requests, another, and one that fails."""
    write_ensembles(tmp_path)
    options: ServerKeywords = {"metrics_port": 0, "metrics": EVERYTHING, "cache_config": {"local": {"size": "1000000"}}}
    measured = ("request", "queue", "compute_input", "compute_infer", "compute_output")
    expected = {
        # request (not published with a cache), queue, and compute times
        "chain": (6, 6, 6),  # of them, three are requests of "nested"
        "cached": (None, 6, 4),
        "nested": (3, 3, 3),
        "nested_cached": (3, 3, 3),
        "decoupled": (3, 3, 3),
    }
    with Server(tmp_path, port=0, **options) as server:
        for index, name in enumerate(expected):
            for number in (index * 10 + 1, index * 10 + 1, index * 10 + 2, -1):
                with contextlib.suppress(TritonError):
                    list(server[name].infer_all(X=np.full((1, 1), number, np.int32)))
        values = samples(server)
        for name, counts in expected.items():
            labels = f"[('model', '{name}'), ('version', '1')]"
            statistics: Any = server.stats(name)["model_stats"][0]["inference_stats"]
            for family, count in zip(measured, (*counts, counts[2], counts[2]), strict=True):
                assert values.get(f"nv_inference_{family}_summary_us_count{labels}") == count, (name, family)
                assert values[f"nv_inference_{family}_duration_histogram_us_count{labels}"] == (count or counts[1])
                duration = statistics["success" if family == "request" else family]["ns"] / 1000
                if count is not None:
                    total = values[f"nv_inference_{family}_summary_us_sum{labels}"]
                    assert total == pytest.approx(duration, abs=count), (name, family)


def test_first_response_of_an_ensemble_is_measured_when_it_is_sent(tmp_path: Path) -> None:
    write_ensembles(tmp_path)
    with Server(tmp_path, port=0, metrics_port=0, metrics=EVERYTHING) as server:
        for name in ("chain", "nested", "decoupled"):
            for number in (1, -1):
                with contextlib.suppress(TritonError):
                    list(server[name].infer_all(X=np.full((1, 1), number, np.int32)))
        values = samples(server)
    first = "nv_inference_first_response_histogram_ms_count"
    counts = {
        name: values[f"{first}[('model', '{name}'), ('version', '1')]"] for name in ("chain", "nested", "decoupled")
    }
    assert counts == {"chain": 4, "nested": 2, "decoupled": 2}


CONTROL = """
model_metrics {
  metric_control { metric_identifier { family: "%s" } histogram_options { buckets: [ 1, 2.5 ] } }
  metric_control {
    metric_identifier { family: "nv_inference_first_response_histogram_ms" } histogram_options { buckets: [ 7 ] }
  }
}
"""


def test_histogram_buckets_can_be_configured_per_model(tmp_path: Path) -> None:
    family = "nv_inference_queue_duration_histogram_us"
    shutil.copytree(MODELS / "addsub", tmp_path / "addsub")
    with (tmp_path / "addsub/config.pbtxt").open("a") as config:
        config.write(CONTROL % family)
    with Server(tmp_path, port=0, metrics_port=0, metrics=EVERYTHING) as server:
        names = samples(server).keys()
    labels = "('model', 'addsub'), ('version', '1')"
    bounds = [f"{family}_bucket[('le', '{bound}'), {labels}]" for bound in ("1", "2.5", "+Inf")]
    assert [name for name in names if name.startswith(f"{family}_bucket")] == bounds
    first = [name for name in names if name.startswith("nv_inference_first_response_histogram_ms_bucket")]
    assert len(first) == 2


def test_latencies_are_not_measured_without_histograms(start: Callable[..., Server]) -> None:
    assert not any("histogram" in name for name in samples(start("addsub")))


def test_load_time_metric_is_per_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(MODELS / "versioned", tmp_path / "versioned")
    with Server(tmp_path, port=0, metrics_port=0) as server:
        values = samples(server)
        labels = {version: f"[('model', 'versioned'), ('version', '{version}')]" for version in (1, 3)}
        seconds = {version: values[f"nv_model_load_duration_secs{labels[version]}"] for version in labels}
        assert all(0 < value < 30 for value in seconds.values())
        assert seconds == {version: server.engine.model("versioned", version).load_seconds for version in labels}


def test_batches_are_counted_by_rule_and_size(start: Callable[..., Server]) -> None:
    server = start("addsub")
    add(server)  # two rows each
    server["addsub"](INPUT0=np.ones((5, 4), np.int32), INPUT1=np.ones((5, 4), np.int32))
    values = samples(server)
    labels = "('model', 'addsub')"
    rules = {name: value for name, value in values.items() if name.startswith("tritonnb_batches")}
    assert rules == {f"tritonnb_batches[{labels}, ('rule', 'no_delay'), ('version', '1')]": 4}
    buckets = {
        bound: values[f"tritonnb_batch_size_bucket[('le', '{bound}'), {labels}, ('version', '1')]"]
        for bound in ("1", "2", "4", "8", "+Inf")
    }
    assert buckets == {"1": 0, "2": 3, "4": 3, "8": 4, "+Inf": 4}
    assert values[f"tritonnb_batch_size_sum[{labels}, ('version', '1')]"] == 11
    assert values[f"tritonnb_batch_size_count[{labels}, ('version', '1')]"] == 4


def test_without_counters_only_the_numbers_of_requests_are_left_and_zero(start: Callable[..., Server]) -> None:
    options = MetricsOptions(counter_latencies=False, summary_latencies=True, cpu=False)
    server = start("addsub", metrics=options)
    add(server)
    values = samples(server)
    assert not any("duration_us" in name or "per_model[" in name or name.startswith("nv_cpu") for name in values)
    counters = (
        "nv_inference_request_success",
        "nv_inference_request_failure",
        "nv_inference_count",
        "nv_inference_exec",
    )
    counted = {name: value for name, value in values.items() if name.startswith(counters)}
    assert len(counted) == 7
    assert set(counted.values()) == {0}
    assert any("queue_summary_us_count" in name and value > 0 for name, value in values.items())


def test_other_metrics_paths_are_empty_and_other_methods_are_refused(start: Callable[..., Server]) -> None:
    server = start("addsub")
    assert get(server, "/other") == (200, "text/plain; charset=utf-8", "")
    assert get(server, "/metrics/")[2].startswith("# HELP nv_inference_request_success ")
    assert get(server, method="POST") == (405, "text/plain", '{"error":"Method Not Allowed"}')


class FakeNvml:
    """As much of nvidia-ml as is asked: one GPU that tells nothing of its power."""

    class NVMLError(Exception):
        pass

    energy = 5000.0

    nvmlInit = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: 1)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetUUID = staticmethod(lambda handle: "GPU-1")
    nvmlDeviceGetUtilizationRates = staticmethod(lambda handle: type("Rates", (), {"gpu": 50}))
    nvmlDeviceGetMemoryInfo = staticmethod(lambda handle: type("Memory", (), {"total": 8, "used": 2}))
    nvmlDeviceGetTotalEnergyConsumption = classmethod(lambda cls, handle: cls.energy)

    @classmethod
    def nvmlDeviceGetPowerUsage(cls, handle: int) -> int:
        raise cls.NVMLError

    nvmlDeviceGetPowerManagementLimit = nvmlDeviceGetPowerUsage


def test_gpu_metrics_omit_values_that_the_driver_does_not_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "pynvml", FakeNvml)
    devices = gpus.Gpus()
    monkeypatch.setattr(FakeNvml, "energy", 7500.0)
    assert devices.read() == {
        "GPU-1": {
            "nv_gpu_utilization": 0.5,
            "nv_gpu_memory_total_bytes": 8.0,
            "nv_gpu_memory_used_bytes": 2.0,
            "nv_energy_consumption": 2.5,
        }
    }


def test_summary_discards_old_values_but_counts_them() -> None:
    summary = Summary()
    summary.observe(1000, now=0.0)
    for value in (1, 2, 3, 4):
        summary.observe(value, now=100.0)
    assert summary.quantiles([0.5, 1.0], now=120.0) == [2.5, 4.0]
    assert (summary.count, summary.sum) == (5, 1010)
    assert all(value != value for value in summary.quantiles([0.5], now=1000.0))


def test_infinite_values_have_prometheus_format(start: Callable[..., Server]) -> None:
    server = start("addsub")
    custom = server.engine.custom_metrics
    gauge = custom.open("temperature", "", MetricKind.GAUGE).metric({})
    gauge.set(-math.inf)
    histogram = custom.open("took", "", MetricKind.HISTOGRAM).metric({"a": "b"}, [1.0, math.inf])
    for value in (0.5, math.inf):
        histogram.observe(value)
    lines = get(server)[2].splitlines()
    assert "temperature -Inf" in lines
    assert [line for line in lines if line.startswith("took")] == [
        'took_count{a="b"} 2',
        'took_sum{a="b"} +Inf',
        'took_bucket{a="b",le="1"} 1',
        'took_bucket{a="b",le="+Inf"} 2',
    ]
    values = samples(server)
    assert (values["temperature[]"], values["took_sum[('a', 'b')]"]) == (-math.inf, math.inf)


def test_histogram_counts_a_value_equal_to_a_bound_in_its_bucket() -> None:
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert (histogram.buckets(), histogram.sum) == ([(1.0, 2), (2.0, 3), (math.inf, 4)], 12.0)


def test_first_response_times_are_counted_in_whole_milliseconds() -> None:
    latencies = Latencies(lambda model, version: HistogramSettings())
    for received_ns in (0, 1_000_000):
        requests = ((1, 1, received_ns, received_ns, ""),)
        latencies.fold(pack(BatchExecuted(0, "m", 1, 1, "m_0", 1, 0, 0, 0, 2_999_999, requests)))
    assert latencies.for_model("m", 1).first_response.sum == 2 + 1
    latencies.fold(pack(EnsembleExecuted(9_000_000, "e", 1, 1, 1, 1_000_000, 0, 0, 0, 0, 0, "", 4_999_999)))
    assert latencies.for_model("e", 1).first_response.sum == 3


def test_failed_requests_are_not_in_latency_summaries() -> None:
    latencies = Latencies(lambda model, version: HistogramSettings())
    requests = ((1, 1, 0, 1_000, ""), (2, 1, 0, 1_000, "BACKEND"))
    latencies.fold(pack(BatchExecuted(0, "m", 1, 1, "m_0", 2, 3_000, 4_000, 6_000, 9_000, requests)))
    sums = {name: summary.sum for name, summary in latencies.for_model("m", 1).summaries.items() if summary.count}
    assert sums == {"request": 9, "queue": 2, "compute_input": 1, "compute_infer": 2, "compute_output": 3}
    histograms = latencies.for_model("m", 1).histograms
    assert {name: histogram.sum for name, histogram in histograms.items()} == sums
    assert {histogram.buckets()[-1] for histogram in histograms.values()} == {(math.inf, 1)}


def test_metric_family_without_samples_is_omitted() -> None:
    assert write_metrics([Metric("f", "Failures", "counter")]) == b""


def test_metric_labels_are_sorted_with_bucket_labels_last() -> None:
    failures, latencies = Metric("f", "Failures", "counter"), Metric("l", "Latencies", "histogram")
    failures.add_sample("f", {"model": "m", "version": "1", "reason": "OTHER"}, 2)
    latencies.add_sample("l_bucket", {"le": "1", "model": "m"}, 3)
    lines = write_metrics([failures, latencies]).decode().splitlines()
    assert lines[2] == 'f{model="m",reason="OTHER",version="1"} 2'
    assert lines[5] == 'l_bucket{model="m",le="1"} 3'


def test_metrics_of_models_are_added_to_families_of_the_server() -> None:
    """On Triton the series of `nv_inference_count` has the sum of both: 6."""
    own, custom, gauge = (Metric("n", "Count", kind) for kind in ("counter", "counter", "gauge"))
    own.add_sample("n", {"model": "m", "version": "1"}, 1)
    custom.add_sample("n", {"version": "1", "model": "m"}, 5)
    custom.add_sample("n", {"other": "m"}, 5)
    gauge.add_sample("n", {}, 7)
    lines = write_metrics([own, custom, gauge]).decode().splitlines()
    assert lines == ["# HELP n Count", "# TYPE n counter", 'n{model="m",version="1"} 6', 'n{other="m"} 5']


def test_metrics_of_many_models_are_collected_in_pieces_and_written_on_another_thread(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("addsub", "echo_fp32", "echo_text")
    for name in ("custom_a", "custom_b"):
        family = server.engine.custom_metrics.open(name, "d", MetricKind.COUNTER)
        family.metric({"label": name}).increment(2)
    kept = ("nv_cpu", "nv_gpu", "nv_energy", "nv_model_load")  # they change from one scrape to the next

    def scraped() -> list[str]:
        return [line for line in get(server)[2].splitlines() if not line.startswith(kept)]

    whole, threads, turns = scraped(), [], []

    def write(metrics: Iterable[Metric]) -> bytes:
        threads.append(threading.current_thread())
        return write_metrics(metrics)

    async def sleep(delay: float) -> None:
        turns.append(delay)

    monkeypatch.setattr(families, "write_metrics", write)
    monkeypatch.setattr(families, "_MODELS_AT_ONCE", 1)
    monkeypatch.setattr(families, "_MANY_SAMPLES", 10)
    monkeypatch.setattr(families, "asyncio", SimpleNamespace(sleep=sleep))
    assert scraped() == whole
    assert len(turns) >= 3 * 10
    assert len(threads) == 1
    assert threads != [server.call(threading.current_thread)]
