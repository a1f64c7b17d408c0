"""From a model's directory to its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonnb.core.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Status,
    TritonError,
)
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import find_batch_strategy, find_library
from tritonnb.model_config.load import ConfigError, finalize_config, load_config
from tritonnb.model_config.normalize import with_instance_groups
from tritonnb.model_config.validate import check_scheduling

TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    return tmp_path / "m"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_model_file_determines_the_backend_without_a_configuration_file(model: Path) -> None:
    (model / "1" / "model.onnx").touch()
    config = load_config(model, "m").config
    assert (config.name, config.backend, config.platform) == ("m", "onnxruntime", "onnxruntime_onnx")


def test_syntax_error_has_its_position_except_for_clients(model: Path) -> None:
    write(model / "config.pbtxt", 'backend: "python"\nmax_batch_size: many\n')
    with pytest.raises(ConfigError) as caught:
        load_config(model, "m")
    error = caught.value
    assert error.status is Status.INTERNAL
    assert error.client_message == "failed to load 'm', failed to poll from model repository"
    assert error.log_lines == [
        "Error parsing text-format inference.ModelConfig: 2:17: Expected integer, got: many",
        f"Poll failed for model directory 'm': failed to read text proto from {model}/config.pbtxt",
    ]


def test_violated_rule_has_its_cause_except_for_clients(model: Path) -> None:
    write(model / "config.pbtxt", 'backend: "python"\nmax_batch_size: -1\n')
    with pytest.raises(ConfigError, match="'max_batch_size' must be non-negative value for m") as caught:
        load_config(model, "m")
    assert caught.value.client_message == "failed to load 'm', failed to poll from model repository"


def test_override_replaces_the_file_without_reading_it(model: Path) -> None:
    write(model / "config.pbtxt", "broken {")
    config = load_config(model, "m", override='{"backend": "python", "maxBatchSize": "3"}').config
    assert config.max_batch_size == 3


def test_custom_configuration_is_used_if_it_exists(model: Path) -> None:
    write(model / "config.pbtxt", 'backend: "python"')
    write(model / "configs" / "wide.pbtxt", 'backend: "python" max_batch_size: 64')
    assert load_config(model, "m", custom_name="wide").config.max_batch_size == 64
    assert load_config(model, "m", custom_name="other").config.max_batch_size == 0


def test_strict_mode_needs_a_file(model: Path) -> None:
    (model / "1" / "model.py").touch()
    with pytest.raises(ConfigError) as caught:
        load_config(model, "m", auto_complete=False)
    assert caught.value.cause == f"failed to open text file for read {model}/config.pbtxt: No such file or directory"


def test_strict_mode_checks_tensors_at_once(model: Path) -> None:
    write(model / "config.pbtxt", 'backend: "python" input { name: "X" data_type: TYPE_FP32 }')
    with pytest.raises(ConfigError, match="model input 'X' must specify 'dims' for m"):
        load_config(model, "m", auto_complete=False)
    load_config(model, "m")


@pytest.mark.parametrize("tag", ["_x", "__x", "_", "a-b", "a:b", "ä"])
def test_metric_tag_must_be_a_valid_label_after_an_underscore(model: Path, tag: str) -> None:
    write(model / "config.pbtxt", f'backend: "python" metric_tags {{ key: "{tag}" value: "x" }}')
    with pytest.raises(InvalidArgumentError, match="metric tag expected letters, digits and underscores"):
        finish(model)


@pytest.mark.parametrize("tag", ["", "1st", "A_1", "a_", "model", "le"])
def test_metric_tag_may_begin_with_a_digit_or_be_empty(model: Path, tag: str) -> None:
    write(model / "config.pbtxt", f'backend: "python" metric_tags {{ key: "{tag}" value: "x" }}')
    assert load_config(model, "m").config.metric_tags[tag] == "x"


def test_platform_of_tensorflow_names_the_file_for_any_backend(model: Path) -> None:
    write(model / "config.pbtxt", 'backend: "python" platform: "tensorflow_graphdef"')
    assert load_config(model, "m").config.default_model_filename == "model.graphdef"


def test_pytorch_model_that_is_run_by_python_has_no_model_file_by_default(model: Path) -> None:
    write(model / "config.pbtxt", 'backend: "pytorch" runtime: "model.py"')
    config = load_config(model, "m").config
    assert (config.platform, config.default_model_filename) == ("pytorch_libtorch", "")


def test_type_of_the_correlation_id_is_checked_after_the_number_of_its_controls(model: Path) -> None:
    control = "control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT8 }"
    text = f'backend: "python" sequence_batching {{ control_input {{ name: "C" {control} {control} }} }}'
    write(model / "config.pbtxt", text)
    with pytest.raises(ConfigError, match="specifies multiple CONTROL_SEQUENCE_CORRID tensors"):
        load_config(model, "m")


def test_runtime_is_found_in_version_model_and_backend_directories(model: Path) -> None:
    config = ModelConfig(name="m", backend="python", runtime="libnosuch.so")
    with pytest.raises(InvalidArgumentError) as caught:
        find_library(config, model, 2, Path("/backends"))
    assert caught.value.message == (
        "unable to find backend library 'libnosuch.so' for model 'm', "
        f"searched: '{model}/2' '{model}' '/backends/python' "
    )


def test_python_runtime_is_found_only_in_the_backend_directory(model: Path, tmp_path: Path) -> None:
    config = ModelConfig(name="m", backend="mine", runtime="model.py")
    with pytest.raises(InvalidArgumentError, match=f"for model 'm', searched: '{tmp_path}/mine/model.py'"):
        find_library(config, model, 1, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.py").touch()
    assert find_library(config, model, 1, tmp_path) == tmp_path / "mine" / "model.py"


def test_batch_output_needs_a_target(model: Path) -> None:
    write(model / "config.pbtxt", f'backend: "python" {TENSORS} batch_output {{ source_input: "X" }}')
    with pytest.raises(InvalidArgumentError, match="batch output must specify 'target_name' for m"):
        finish(model)


def test_repository_agent_is_rejected_before_the_rules_are_checked(model: Path) -> None:
    write(model / "config.pbtxt", 'max_batch_size: -1 model_repository_agents { agents { name: "a" } }')
    with pytest.raises(ConfigError, match=r"unable to find .libtritonrepoagent_a\.so. for repo agent .a."):
        load_config(model, "m")


def test_label_file_may_not_be_a_directory(model: Path) -> None:
    output = 'output { name: "Y" data_type: TYPE_FP32 dims: 4 label_filename: "1" }'
    write(model / "config.pbtxt", f'backend: "python" {output}')
    with pytest.raises(InternalError, match=r"failed to open text file for read .*/m/1: Is a directory"):
        finish(model)


def finish(model: Path, gpus: Sequence[int] = (), count: int = 1) -> pb.ModelConfig:
    config = load_config(model, "m").config
    return finalize_config(with_instance_groups(config, gpus=gpus, default_instance_count=lambda kind: count), model)


def groups(
    model: Path, text: str, gpus: Sequence[int], backend: str = "pytorch"
) -> list[tuple[str, int, int, list[int]]]:
    write(model / "config.pbtxt", f'backend: "{backend}" {TENSORS} {text}')
    return [(group.name, group.kind, group.count, list(group.gpus)) for group in finish(model, gpus, 2).instance_group]


CPU, GPU = 2, 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("m", GPU, 2, [0, 1])]),
        ("instance_group { }", [("m_0", GPU, 2, [0, 1])]),
        ("instance_group { gpus: 1 }", [("m_0", GPU, 2, [1])]),
        ("instance_group { kind: KIND_CPU count: 3 }", [("m_0", CPU, 3, [])]),
        ('instance_group [ { name: "a" kind: KIND_CPU }, { kind: KIND_GPU gpus: 0 } ]',
         [("a", CPU, 2, []), ("m_1", GPU, 2, [0])]),
    ],
)  # fmt: skip
def test_instance_groups_on_a_machine_with_two_gpus(
    model: Path, text: str, expected: list[tuple[str, int, int, list[int]]]
) -> None:
    assert groups(model, text, gpus=(0, 1)) == expected


def test_python_models_run_on_the_cpu_by_default(model: Path) -> None:
    assert groups(model, "", gpus=(0,), backend="python") == [("m", CPU, 2, [])]
    assert groups(model, "instance_group { }", gpus=(0,), backend="python") == [("m_0", GPU, 2, [0])]


@pytest.mark.parametrize(
    ("text", "gpus", "complaint"),
    [
        ("kind: KIND_GPU", (), "has kind KIND_GPU but no GPUs are available"),
        ("kind: KIND_GPU gpus: 5", (0, 1), "compatibility of 6.000000 are: 0, 1"),
        ("gpus: 5", (0, 1), "has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_MODEL gpus: 0", (0,), "has kind KIND_MODEL but specifies one or more GPUs"),
    ],
)
def test_invalid_instance_groups_are_refused(model: Path, text: str, gpus: Sequence[int], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"instance group m_0 of model m .*{complaint}"):
        groups(model, f"instance_group {{ {text} }}", gpus)


@pytest.mark.parametrize(
    ("text", "error", "complaint"),
    [
        ("", NotFoundError, "Batching library path not found: /no/such.so"),
        ("dynamic_batching { }", NotFoundError, "Batching library path not found: /no/such.so"),
        ("sequence_batching { }", InvalidArgumentError, "cannot be specified with sequence batcher"),
    ],
)
def test_missing_batching_library_is_refused(model: Path, text: str, error: type[TritonError], complaint: str) -> None:
    parameter = 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/no/such.so" } }'
    write(model / "config.pbtxt", f'backend: "python" {TENSORS} {text} {parameter}')
    with pytest.raises(error, match=complaint):
        finish(model)


def test_batching_library_is_found_in_version_model_and_backend_directories(model: Path, tmp_path: Path) -> None:
    backends = tmp_path / "backends"
    for directory in (backends / "mine", model, model / "1"):
        config = ModelConfig(name="m", backend="mine")
        (directory / "batchstrategy.so").parent.mkdir(parents=True, exist_ok=True)
        (directory / "batchstrategy.so").touch()
        assert find_batch_strategy(config, model, 1, backends) == directory / "batchstrategy.so"
    outside = f'parameters {{ key: "TRITON_BATCH_STRATEGY_PATH" value {{ string_value: "{backends}" }} }}'
    write(model / "config.pbtxt", f'backend: "python" {TENSORS} {outside}')
    with pytest.raises(InvalidArgumentError, match="Batching library path escapes model repository"):
        finish(model)


def test_library_is_found_in_version_model_and_backend_directories(model: Path, tmp_path: Path) -> None:
    backends = tmp_path / "backends"
    config = ModelConfig(name="m", backend="mine")
    assert find_library(config, model, 1, backends) is None
    for directory in (backends / "mine", model, model / "1"):
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("libtriton_mine.so", "other.so"):
            (directory / name).touch()
        assert find_library(config, model, 1, backends) == directory / "libtriton_mine.so"
        other = ModelConfig(name="m", backend="mine", runtime="other.so")
        assert find_library(other, model, 1, backends) == directory / "other.so"
    (model / "libtriton_python.so").touch()
    assert find_library(ModelConfig(name="m", backend="python"), model, 1, backends) is None
    escaping = ModelConfig(name="m", backend="mine", runtime="../m/other.so")
    with pytest.raises(InvalidArgumentError, match="escapes backend directory"):
        find_library(escaping, model, 1, backends)


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ("", "metric control must specify 'metric_identifier'"),
        ("metric_identifier { }", "metric identifier must specify non-empty 'family'"),
        ('metric_identifier { family: "f" }', "metric control must specify 'histogram_options'"),
        (
            'metric_identifier { family: "f" } histogram_options { }',
            "histogram options must specify non-empty 'buckets'",
        ),
    ],
)
def test_incomplete_metric_control_is_refused(tmp_path: Path, control: str, message: str) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    text = f'backend: "python" model_metrics {{ metric_control {{ {control} }} }}'
    (tmp_path / "m" / "config.pbtxt").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "m", "m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("instance_group { count: 2147483647 }", "expected at most 4096 instances, got 2147483647, for m"),
        (
            'model_warmup { name: "w" batch_size: 4294967295 }',
            "model_warmup 'w' expected a batch_size of at most 65536, got 4294967295, for m",
        ),
        (
            "instance_group { count: 4000 } instance_group { count: 97 }",
            "expected at most 4096 instances, got 4097,",
        ),
        (
            "instance_group { kind: KIND_GPU count: 2049 gpus: [ 0, 1 ] }",
            "expected at most 4096 instances, got 4098,",
        ),
        (
            "max_batch_size: 2147483647 sequence_batching { }",
            r"expected at most 262144 batch slots .*got 2147483647,",
        ),
        (
            "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 2147483647 } }",
            r"expected at most 262144 batch slots .*got 2147483647, for m",
        ),
        (
            "max_batch_size: 1024 instance_group { count: 257 } sequence_batching { }",
            r"expected at most 262144 batch slots .*got 263168, for m",
        ),
    ],
)
def test_numbers_of_objects_that_exhaust_a_machine_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        check_scheduling(text_format.Parse(f'name: "m" {text}', pb.ModelConfig()))


@pytest.mark.parametrize("text", ["max_batch_size: 2147483647 dynamic_batching { }", "instance_group { count: 4096 }"])
def test_large_numbers_are_accepted(text: str) -> None:
    check_scheduling(text_format.Parse(f'name: "m" {text}', pb.ModelConfig()))
