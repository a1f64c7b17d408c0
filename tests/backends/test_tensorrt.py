"""The TensorRT backend with doubles of TensorRT and CUDA: it was not tried on a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.backends.fake_tensorrt import Cuda, fake_tensorrt
from tests.backends.framework_checks import (
    BAD_FILES,
    WRONG_TENSORS,
    Breakage,
    OneState,
    check_refusal,
    totals_of_a_sequence,
)
from tests.backends.models import TENSORS, Loaded, config_of, request, rows
from tritonnb.backends.contract import InstanceSpec
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError

GPU = InstanceSpec("m_0_0", 0, "KIND_GPU")
LIMIT = 16
STATES = {
    "STATE_IN": {"mode": "INPUT", "dtype": "FLOAT", "shape": [-1, -1], "limits": [[[1, 1], [LIMIT, 8]]] * 2},
    "STATE_OUT": {"mode": "OUTPUT", "dtype": "FLOAT", "shape": [-1, -1]},
}


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """The doubles, for modules that are imported with them, and are not used by other tests."""
    fake = Cuda()
    package: Any = ModuleType("cuda.bindings")
    package.runtime = fake
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt())
    monkeypatch.delitem(sys.modules, "tritonnb.backends.tensorrt", raising=False)
    return fake


def write_plan(directory: Path, *, extra: dict[str, Any] | None = None, **changes: dict[str, Any]) -> Path:
    """Write the engine of ``OUT0 = IN0 + IN0`` with two profiles; ``changes`` replaces fields of tensors."""
    tensors: dict[str, dict[str, Any]] = {
        "IN0": {
            "mode": "INPUT",
            "dtype": "FLOAT",
            "shape": [-1, -1],
            "limits": [[[1, 1], [LIMIT, 8]], [[1, 1], [4, 2]]],
        },
        "OUT0": {"mode": "OUTPUT", "dtype": "FLOAT", "shape": [-1, -1]},
        **(extra or {}),
    }
    for name, fields in changes.items():
        tensors[name] |= fields
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "1" / "model.plan").write_text(json.dumps({"tensors": tensors, "profiles": 2}))
    return directory


def loaded(
    directory: Path,
    tensors: str = TENSORS,
    extra: str = "",
    max_batch_size: int = 8,
    settings: dict[str, str] | None = None,
) -> Loaded:
    config = config_of("tensorrt", tensors, f'platform: "tensorrt_plan" {extra}', max_batch_size)
    return Loaded(config, directory, settings, spec=GPU)


def test_batch_runs_on_the_device(tmp_path: Path, cuda: Cuda) -> None:
    model = loaded(write_plan(tmp_path))
    for values in ((1, 2), (3, 4, 5)):  # the buffers grow
        responses = model.run(*(request(IN0=rows(value)) for value in values))
        assert [response.outputs[0].array.tolist() for response in responses] == [[[2 * value]] for value in values]
    assert cuda.allocations
    model.instance.finalize()
    model.model.finalize()
    assert (cuda.allocations, cuda.streams) == ({}, set())


def test_engine_completes_the_configuration(tmp_path: Path) -> None:
    write_plan(tmp_path, IN0={"shape": [-1, 3]}, OUT0={"shape": [-1, 3]})
    config = loaded(tmp_path, "", max_batch_size=0).config
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (LIMIT, True)
    assert [(tensor.name, list(tensor.dims)) for tensor in (*config.input, *config.output)] == [
        ("IN0", [3]),
        ("OUT0", [3]),
    ]
    second = loaded(tmp_path, "", 'instance_group { profile: "1" }', max_batch_size=0).config
    assert second.max_batch_size == 4


def test_engine_without_a_batch_dimension_is_completed_without_batching(tmp_path: Path) -> None:
    write_plan(tmp_path, IN0={"shape": [2, 3]}, OUT0={"shape": [2, 3]})
    config = loaded(tmp_path, "", max_batch_size=0).config
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [2, 3])


def test_output_can_be_the_implicit_state_of_a_sequence(tmp_path: Path) -> None:
    state = """
        sequence_batching { state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: 1 } }
    """
    model = loaded(write_plan(tmp_path, extra=STATES), extra=state)
    assert totals_of_a_sequence(model, OneState("STATE_IN", rows(0)), "IN0", (1, 2, 3)) == [1, 3, 6]


def test_shape_outside_the_profile_fails_the_batch(tmp_path: Path) -> None:
    model = loaded(write_plan(tmp_path))
    with pytest.raises(InvalidArgumentError, match=r"'IN0' expected a shape between \[1,1\] and \[16,8\], got \[1,9"):
        model.run(request(IN0=np.ones((1, 9), np.float32)))


def test_failed_execution_has_tensorrts_log_message(tmp_path: Path) -> None:
    model = loaded(write_plan(tmp_path, IN0={"fails": True}))
    with pytest.raises(InternalError, match="model 'm': TensorRT failed: out of memory"):
        model.run(request(IN0=rows(1)))


def test_shape_that_depends_on_values_is_refused(tmp_path: Path) -> None:
    model = loaded(write_plan(tmp_path, OUT0={"depends_on_values": True}))
    with pytest.raises(UnsupportedError, match=r"output 'OUT0' .* got \[-1,1\], which depends on their values"):
        model.run(request(IN0=rows(1)))


def test_plugin_library_from_the_settings_is_loaded(tmp_path: Path) -> None:
    write_plan(tmp_path)
    assert loaded(tmp_path, settings={"plugins": "good.so;", "version-compatible": "true"}).model
    with pytest.raises(InvalidArgumentError, match=r"unable to load the plugin library 'bad.so' \(plugins\)"):
        loaded(tmp_path, settings={"plugins": "good.so;bad.so"})


def test_cpu_instances_are_refused_by_tensorrt(tmp_path: Path) -> None:
    model = loaded(write_plan(tmp_path)).model
    with pytest.raises(InvalidArgumentError, match="model 'm', TensorRT backend supports only GPU device"):
        model.create_instance(InstanceSpec("m_0_0", 0, "KIND_CPU"))
    with pytest.raises(InternalError, match="CUDA: cudaSetDevice failed: cudaErrorInvalidDevice"):
        model.create_instance(InstanceSpec("m_0_1", 1, "KIND_GPU", 7)).initialize()


@pytest.mark.parametrize(
    ("plan", "config", "breakage", "message"),
    [
        pytest.param({}, {}, Path.unlink, "unable to find '.*model.plan' for model 'm'", id="no file"),
        *(
            pytest.param({}, {}, breakage, "unable to load plan file '.*model.plan' of model 'm': Serializ", id=name)
            for name, breakage in BAD_FILES.items()
        ),
        *(
            pytest.param({}, {"tensors": tensors}, None, message, id=name)
            for name, (tensors, message) in WRONG_TENSORS.items()
        ),
        pytest.param(
            {},
            {"tensors": TENSORS.replace("FP32", "INT32", 1)},
            None,
            "configuration expects datatype TYPE_INT32 for input 'IN0', model provides TYPE_FP32",
            id="datatype",
        ),
        pytest.param(
            {"OUT0": {"shape": [-1, 4]}},
            {"tensors": TENSORS.replace("dims: -1 }", "dims: 5 }")},
            None,
            r"tensor 'OUT0': the model expects 2 dimensions \(shape \[-1,4\]\)",
            id="dims",
        ),
        pytest.param(
            {"IN0": {"dtype": "FP8"}}, {}, None, "tensor 'IN0': expected one of FLOAT, .*, got FP8", id="type of engine"
        ),
        pytest.param(
            {"OUT0": {"shape_tensor": True}},
            {},
            None,
            "tensor 'OUT0': expected an execution tensor, got a shape tensor",
            id="shape tensor",
        ),
        pytest.param(
            {},
            {"max_batch_size": 17},
            None,
            "unexpected configuration maximum batch size 17 for 'm', input 'IN0' of the engine has .* at most 16 rows",
            id="batch size",
        ),
        pytest.param(
            {},
            {"extra": 'instance_group { profile: "2" }'},
            None,
            "profile expected a number below 2, got 2",
            id="profile",
        ),
        pytest.param(
            {}, {"extra": 'instance_group { profile: "a" }'}, None, "profile expected the number of .* 'a'", id="name"
        ),
        pytest.param(
            {},
            {"extra": 'instance_group { profile: ["0", "1"] }'},
            None,
            "expected one optimization profile in instance_group, got 0, 1",
            id="profiles",
        ),
        pytest.param(
            {},
            {"extra": 'parameters { key: "enable_multi_device" value { string_value: "true" } }'},
            None,
            "expected an engine for one GPU, got enable_multi_device",
            id="several GPUs",
        ),
    ],
)
def test_model_that_cannot_run_is_refused(
    tmp_path: Path, plan: dict[str, Any], config: dict[str, Any], breakage: Breakage, message: str
) -> None:
    path = write_plan(tmp_path, **plan) / "1" / "model.plan"
    check_refusal(path, breakage, lambda: loaded(tmp_path, **config), message)
