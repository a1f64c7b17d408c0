"""Reading every form of a configuration; errors contain the field, the expected type and the actual value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

import tritonnb as tnb
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.json_config import parse_json
from tritonnb.model_config.parse import parse_text
from tritonnb.model_config.read import config_json, config_text, read_config
from tritonnb.model_config.validate import check_scheduling

TEXT = """\
name: "m"
max_batch_size: 8
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 500 }
instance_group { count: 2 }
"""
MESSAGE = parse_text(TEXT).config
HTTP = json_format.MessageToDict(MESSAGE, preserving_proto_field_name=True)
HTTP["dynamic_batching"]["max_queue_delay_microseconds"] = 500
GRPC = service_pb2.ModelConfigResponse(config=MESSAGE)
CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text())


@pytest.mark.parametrize(
    "config",
    [
        TEXT,
        TEXT.encode(),
        MESSAGE,
        HTTP,
        json.dumps(HTTP),
        json.dumps(HTTP, indent=2),
        GRPC,
        json_format.MessageToDict(GRPC, preserving_proto_field_name=True),
        json_format.MessageToDict(GRPC),
        json_format.MessageToJson(GRPC),
        {**HTTP, "max_batch_size": np.int64(8)},
        {**HTTP, "dynamic_batching": MESSAGE.dynamic_batching, "instance_group": MESSAGE.instance_group},
    ],
    ids=["text", "bytes", "message", "dict", "json", "indented", "response", "as_json", "camelCase", "as_json text",
         "NumPy", "messages in a dict"],
)  # fmt: skip
def test_every_form_of_a_configuration_is_read_identically(config: Any) -> None:
    assert read_config(config) == MESSAGE
    assert parse_json(config_json(config)) == MESSAGE
    assert parse_text(config_text(config)).config == MESSAGE


@pytest.mark.parametrize("suffix", ["pbtxt", "json"])
@pytest.mark.parametrize("kind", [str, Path])
def test_configuration_is_read_from_a_file(tmp_path: Path, suffix: str, kind: type) -> None:
    path = tmp_path / f"config.{suffix}"
    path.write_text(TEXT if suffix == "pbtxt" else json.dumps(HTTP))
    assert read_config(kind(path)) == MESSAGE


@pytest.mark.parametrize("name", ["configuration", "config.txt", "config.pbtxt", "with:colon.pbtxt"])
def test_text_without_a_field_is_a_path(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InvalidArgumentError, match=f"cannot read the configuration '{path}': No such file"):
        read_config(str(path))
    path.write_text(TEXT)
    assert read_config(str(path)) == MESSAGE


@pytest.mark.parametrize(
    "text", ["", " \n", "# comment", "max_batch_size: 0", "dynamic_batching {}", "dynamic_batching <>"]
)
def test_text_of_another_form_is_a_configuration(text: str) -> None:
    assert read_config(text).name == "simulated"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os", '1:8: Message type "inference.ModelConfig" has no field named "import".'),
        ('{"max_batch_size": ', "the configuration is not valid JSON"),
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value"),
    ],
)
def test_errors_in_a_file_contain_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError) as error:
        read_config(path, check=check_scheduling)
    assert error.value.message.startswith(f"'{path}': {message}")


def normalized_configs() -> list[Any]:
    return [case["normalized_config"] for case in CORPUS if "normalized_config" in case]


def test_responses_of_a_real_triton_are_read() -> None:
    configs = normalized_configs()
    assert len(configs) > 100
    for normalized in configs:
        assert read_config(normalized).max_batch_size == normalized["max_batch_size"]
        assert read_config(json.dumps(normalized)) == read_config(normalized)


def test_normalized_configuration_produces_the_same_batches() -> None:
    text = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 200 }"
    as_shown = {
        "max_batch_size": 4,
        "version_policy": {"latest": {"num_versions": 1}},
        "dynamic_batching": {"preferred_batch_size": [], "max_queue_delay_microseconds": 200},
        "optimization": {"input_pinned_memory": {"enable": True}, "output_pinned_memory": {"enable": True}},
        "instance_group": [{"name": "m", "kind": "KIND_CPU", "count": 1, "gpus": []}],
    }
    arrivals = tnb.poisson(2000, 0.05, seed=1)
    written, shown = (tnb.simulate(config, arrivals, tnb.fixed(2)).batches for config in (text, as_shown))
    assert [batch.requests for batch in written] == [batch.requests for batch in shown]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_batchsize": 8}, "the configuration has no field 'max_batchsize'; did you mean 'max_batch_size'?"),
        (
            {"dynamic_batching": {"max_queue_delay": 8}},
            "the configuration has no field 'dynamic_batching.max_queue_delay'; did you mean "
            "'max_queue_delay_microseconds'?",
        ),
        (
            {"dynamic_batching": True},
            "field 'dynamic_batching' expected a dict of the fields of ModelDynamicBatching, got True; give {} for its "
            "defaults",
        ),
        (
            {"dynamic_batching": 5},
            "field 'dynamic_batching' expected a dict of the fields of ModelDynamicBatching, got 5",
        ),
        (
            {"instance_group": [{"kind": "GPU"}]},
            "field 'instance_group[0].kind' expected one of KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL, got 'GPU'; did "
            "you mean 'KIND_GPU'?",
        ),
        ({"input": [{"dims": ["n"]}]},
         "field 'input[0].dims[0]' expected an integer from -2**63 to 2**63 - 1, got 'n'"),
        ({"max_batch_size": [8]}, "field 'max_batch_size' expected an integer from -2**31 to 2**31 - 1, got [8]"),
        ({"max_batch_size": {"a": 1}},
         "field 'max_batch_size' expected an integer from -2**31 to 2**31 - 1, got {'a': 1}"),
        ({"max_batch_size": True}, "field 'max_batch_size' expected an integer from -2**31 to 2**31 - 1, got True"),
        ({"name": 5}, "field 'name' expected a string, got 5"),
        ({"dynamic_batching": {"preserve_ordering": 5}},
         "field 'dynamic_batching.preserve_ordering' expected a bool, got 5"),
        ({"parameters": ["a"]}, "field 'parameters' expected a dict with a value for each key, got ['a']"),
        (
            {"dynamic_batching": {}, "sequence_batching": {}},
            "field 'sequence_batching' cannot be set together with 'dynamic_batching'",
        ),
        ({"name": {1}}, "field 'name' expected a string, got [1]"),
        ({"name": object}, f"configuration expected strings, numbers, lists and dicts, got {object!r} in 'name'"),
        (5, "configuration expected a ModelConfig, the text of a config.pbtxt, JSON, a dict, or the path of a file, "
            "got 5"),
        (
            service_pb2.ModelInferRequest(),
            "configuration expected a ModelConfig, the text of a config.pbtxt, JSON, a dict, or the path of a file, "
            "got a inference.ModelInferRequest",
        ),
    ],
)  # fmt: skip
def test_mistake_names_the_field_the_expected_and_the_actual_value(config: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_config(config)
    assert str(caught.value) == words


def test_invalid_json_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^the configuration is not valid JSON: Unexpected end of string"):
        read_config('{"max_batch_size": 8, ')


def test_refused_configuration_has_line_column_and_fix() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_config(TEXT.replace("[ 4 ]", "[ 4, 16 ]"), check=check_scheduling)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (3, 20)
    assert problem.fix is not None
    assert problem.fix.text == TEXT
    assert str(caught.value) == (
        "dynamic batching preferred size must be <= max batch size for m; keep preferred sizes from 1 to 8"
    )
    assert caught.value.message == "dynamic batching preferred size must be <= max batch size for m"


def test_worksheet_accepts_every_form_and_checks_it_immediately() -> None:
    arrivals = [tnb.Arrival(0.0, 1), tnb.Arrival(1000.0, 1)]
    written = tnb.Worksheet(TEXT, arrivals, 10)
    assert written.config == TEXT
    assert tnb.Worksheet(json.dumps(HTTP), arrivals, 10).solution == written.solution
    with pytest.raises(InvalidArgumentError, match="did you mean 'max_batch_size'"):
        tnb.Worksheet("max_batchsize: 8", arrivals, 10)


def test_service_times_are_read_from_statistics_over_grpc_as_json() -> None:
    part = service_pb2.StatisticDuration(count=2, ns=6_000_000)
    batch = service_pb2.InferBatchStatistics(
        batch_size=4, compute_input=service_pb2.StatisticDuration(count=2), compute_infer=part, compute_output=part
    )
    answer = service_pb2.ModelStatisticsResponse(
        model_stats=[service_pb2.ModelStatistics(name="m", batch_stats=[batch])]
    )
    as_json = json_format.MessageToDict(answer, preserving_proto_field_name=True)
    assert tnb.measured(as_json)(4) == tnb.measured(as_json["model_stats"][0])(4) == 6_000_000
