"""PyTorch 2 archives: names, batching, states, checks. Compiling takes long, so that the tests share the archives."""

from __future__ import annotations

import collections
import dataclasses
import logging
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tritonnb as tnb
from tests.backends.framework_checks import (
    BAD_FILES,
    Breakage,
    OneState,
    check_refusal,
    parameters,
    totals_of_a_sequence,
    truncate,
)
from tests.backends.models import Loaded, config_of, request, rows
from tests.backends.serving import Arrays, check_batches, one_batch, write_config
from tritonnb.backends.contract import InstanceSpec
from tritonnb.backends.pt2 import _run_accepted, least_rows
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.messages import InferRequest
from tritonnb.model_config.load import load_config
from tritonnb.model_config.schema import ModelSpec
from tritonnb.model_zoo import digits

pytestmark = [pytest.mark.build, pytest.mark.slow, pytest.mark.timeout(600)]

AOTI = 'platform: "torch_aoti"'
#: Not optimised, which takes less time.
QUICK = {"aot_inductor.compile_wrapper_opt_level": "O0"}
LIMIT = 16


class Structured(torch.nn.Module):
    """A module whose arguments and results are tuples and dicts."""

    def forward(self, x: torch.Tensor, options: dict[str, Any], *, k: torch.Tensor) -> dict[str, Any]:
        return {"Z": x + options["b"], "A": (x * k, x.sum(1, keepdim=True))}


class Total(torch.nn.Module):
    """The running total of a sequence."""

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + total, x + total


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with compiled modules."""
    if shutil.which("g++") is None:
        pytest.fail("compiling a PyTorch module needs g++")
    repository = tmp_path_factory.mktemp("repository")
    for name, module, args, kwargs, limit in (
        ("structured", Structured(), (torch.zeros(1, 3), {"b": torch.zeros(1, 3)}), {"k": torch.zeros(1, 1)}, LIMIT),
        ("total", Total(), (torch.zeros(1, 1), torch.zeros(1, 1)), None, LIMIT),
        ("fixed", Double(), (torch.zeros(2, 3),), None, 0),
    ):
        tnb.export_pt2(module, args, repository / name, kwargs=kwargs, max_batch_size=limit, inductor_configs=QUICK)
    return repository


TENSORS = """
    input { name: "ARGS[0]" data_type: TYPE_FP32 dims: 3 }
    input { name: "ARGS[1][b]" data_type: TYPE_FP32 dims: 3 }
    input { name: "KWARGS[k]" data_type: TYPE_FP32 dims: 1 }
    output { name: "RESULT[A][0]" data_type: TYPE_FP32 dims: 3 }
    output { name: "RESULT[A][1]" data_type: TYPE_FP32 dims: 1 }
    output { name: "RESULT[Z]" data_type: TYPE_FP32 dims: 3 }
"""


def loaded(directory: Path, tensors: str = TENSORS, extra: str = "", max_batch_size: int = LIMIT) -> Loaded:
    return Loaded(config_of("pytorch", tensors, f"{AOTI} {extra}", max_batch_size), directory)


def test_requests_over_http_and_grpc_share_batches_with_the_results_of_pytorch(archives: Path, tmp_path: Path) -> None:
    shutil.copytree(archives / "structured", tmp_path / "structured")
    write_config(tmp_path, "structured", f'backend: "pytorch" {AOTI} {TENSORS} {one_batch(LIMIT)}')
    random = np.random.default_rng(1)
    sizes = {"ARGS[0]": 3, "ARGS[1][b]": 3, "KWARGS[k]": 1}
    requests = [
        {name: random.random((count, size), np.float32) for name, size in sizes.items()} for count in (1, 5, 10)
    ]

    def expected(arrays: Arrays) -> Arrays:
        x, b, k = (torch.from_numpy(array) for array in arrays.values())
        result = Structured()(x, {"b": b}, k=k)
        return {"RESULT[Z]": result["Z"].numpy(), "RESULT[A][0]": result["A"][0].numpy()}

    check_batches(tmp_path, "structured", requests, expected, rtol=1e-6)


@pytest.mark.parametrize("has_source", [True, False])
def test_program_that_needs_two_rows_runs_with_one(
    archives: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], has_source: bool
) -> None:
    (tmp_path / "1").mkdir()
    with (
        zipfile.ZipFile(archives / "structured" / "1" / "model.pt2") as whole,
        zipfile.ZipFile(tmp_path / "1" / "model.pt2", "w") as archive,
    ):
        for name in whole.namelist():
            if has_source or not name.endswith(".cpp"):
                archive.writestr(name, whole.read(name))
    assert least_rows(tmp_path / "1" / "model.pt2") == (2 if has_source else None)
    model = loaded(tmp_path)
    (answer,) = model.run(
        request(None, **{"ARGS[0]": rows(1, 2, 3).T, "ARGS[1][b]": rows(1, 1, 1).T, "KWARGS[k]": rows(2)})
    )
    assert answer is not None
    assert {output.name: output.array.tolist() for output in answer.outputs}["RESULT[Z]"] == [[2, 3, 4]]
    assert ("dim value is too small" in capfd.readouterr().err) is not has_source


def test_exported_configuration_names_tensors_by_position(archives: Path) -> None:
    config = load_config(archives / "structured", "structured").config
    assert (config.backend, config.platform, config.max_batch_size) == ("pytorch", "torch_aoti", LIMIT)
    assert config.HasField("dynamic_batching")
    tensors = [(tensor.name, list(tensor.dims)) for tensor in (*config.input, *config.output)]
    assert tensors == [
        ("INPUT__0", [3]),
        ("INPUT__1", [3]),
        ("INPUT__2", [1]),
        ("OUTPUT__0", [3]),
        ("OUTPUT__1", [3]),
        ("OUTPUT__2", [1]),
    ]
    model = Loaded(config, archives / "structured")
    x, b, k = (np.full((2, size), value, np.float32) for size, value in ((3, 1), (3, 10), (1, 5)))
    (response,) = model.run(request(INPUT__0=x, INPUT__1=b, INPUT__2=k))
    assert [tensor.array[0].tolist() for tensor in response.outputs] == [[11] * 3, [5] * 3, [3]]


def test_example_model_is_the_network_of_digits(tmp_path: Path) -> None:
    path = tmp_path / "digits_pt2" / "1" / "model.pt2"
    path.parent.mkdir(parents=True)
    digits.write_pt2(path)
    assert digits.digest_pt2(path) == digits.PT2_SHA256
    model = Loaded(load_config(path.parents[1], "digits_pt2").config, path.parents[1])
    images, _ = digits.held_out()
    (response,) = model.run(request(INPUT__0=images[:60]))
    expected = digits.load_network()(torch.from_numpy(images[:60])).detach().numpy()
    np.testing.assert_allclose(response.outputs[0].array.astype(float), expected, rtol=1e-4, atol=1e-6)
    truncate(path)
    with pytest.raises(ValueError, match="expected an archive for this machine"):
        digits.digest_pt2(path)


def test_model_pt2_selects_the_platform_without_a_configuration(archives: Path, tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    shutil.copy(archives / "fixed" / "1" / "model.pt2", tmp_path / "m" / "1")
    config = load_config(tmp_path / "m", "m").config
    assert (config.backend, config.platform, config.default_model_filename) == ("pytorch", "torch_aoti", "model.pt2")
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "pytorch" platform: "torch_aoti"')
    assert load_config(tmp_path / "m", "m").config.default_model_filename == "model.pt2"
    (tmp_path / "m" / "config.pbtxt").write_text('default_model_filename: "model.pt2"')
    assert load_config(tmp_path / "m", "m").config.platform == "torch_aoti"
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "pytorch"')
    assert load_config(tmp_path / "m", "m").config.platform == "pytorch_libtorch"


def test_program_with_a_fixed_first_dimension_runs_without_batching_only(archives: Path) -> None:
    tensors = """
        input { name: "ARGS[0]" data_type: TYPE_FP32 dims: [ 2, 3 ] }
        output { name: "RESULT" data_type: TYPE_FP32 dims: [ 2, 3 ] }
    """
    model = loaded(archives / "fixed", tensors, max_batch_size=0)
    (response,) = model.run(named(**{"ARGS[0]": np.ones((2, 3), np.float32)}))
    assert response.outputs[0].array.tolist() == [[2] * 3] * 2
    with pytest.raises(
        InvalidArgumentError, match=r"input 'ARGS\[0\]' of shape \[4, 3\].*expected: 2, but got: 4.*export"
    ):
        loaded(archives / "fixed", tensors.replace("[ 2, 3 ]", "[ 3 ]"), max_batch_size=4)


def test_single_row_runs_in_a_program_that_needs_two_rows(archives: Path) -> None:
    model = loaded(archives / "structured")
    x, k = np.ones((1, 3), np.float32), np.ones((1, 1), np.float32)
    (response,) = model.run(named(**{"ARGS[0]": x, "ARGS[1][b]": x, "KWARGS[k]": k}))
    assert {tensor.name: tensor.array.tolist() for tensor in response.outputs} == {
        "RESULT[A][0]": [[1, 1, 1]],
        "RESULT[A][1]": [[3]],
        "RESULT[Z]": [[2, 2, 2]],
    }


def test_size_of_variable_dimension_is_checked_for_each_request(archives: Path) -> None:
    tensors = TENSORS.replace("dims: 3", "dims: -1")
    model = loaded(archives / "structured", tensors)
    x, k = np.ones((1, 4), np.float32), np.ones((1, 1), np.float32)
    with pytest.raises(InternalError, match=r"input 'ARGS\[0\]': unmatched dim value at 1, expected: 3, but got: 4"):
        model.run(named(**{"ARGS[0]": x, "ARGS[1][b]": x, "KWARGS[k]": k}))


def test_result_can_be_the_implicit_state_of_a_sequence(archives: Path) -> None:
    tensors = """
        input { name: "INPUT__0" data_type: TYPE_FP32 dims: 1 }
        output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 1 }
    """
    state = (
        'sequence_batching { state { input_name: "INPUT__1" output_name: "OUTPUT__1" data_type: TYPE_FP32 dims: 1 } }'
    )
    model = loaded(archives / "total", tensors, state)
    assert totals_of_a_sequence(model, OneState("INPUT__1", rows(0)), "INPUT__0", (1, 2, 3)) == [1, 3, 6]


def test_auto_completion_is_skipped_with_tritons_message(archives: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loaded(archives / "structured")
    assert caplog.messages[0] == (
        'Auto-complete configuration is not supported for Inductor models. Skipping auto-complete for model "m".'
    )


def test_instances_share_an_archive_with_weight_sharing(archives: Path) -> None:
    model = loaded(archives / "structured", extra=parameters(ENABLE_WEIGHT_SHARING="true")).model
    assert model.load(-1) is model.load(-1)


def named(**arrays: np.ndarray) -> InferRequest:
    """A request of arrays whose names are not identifiers."""
    return request(None, **arrays)


@pytest.mark.parametrize(
    ("config", "breakage", "message"),
    [
        pytest.param({}, Path.unlink, 'PyTorch inductor model file ".*model.pt2" is unreachable', id="no file"),
        *(
            pytest.param({}, breakage, "unable to load '.*model.pt2' of model 'm'", id=name)
            for name, breakage in BAD_FILES.items()
        ),
        pytest.param(
            {"tensors": TENSORS.replace("ARGS[0]", "X")}, None, "unexpected inference input 'X', allowed", id="input"
        ),
        pytest.param(
            {"tensors": TENSORS.replace("RESULT[Z]", "RESULT[Y]")},
            None,
            r"unexpected inference output 'RESULT\[Y\]', allowed outputs are: OUTPUT__0",
            id="output",
        ),
        pytest.param(
            {"tensors": TENSORS.replace('input { name: "KWARGS[k]" data_type: TYPE_FP32 dims: 1 }', "")},
            None,
            r"configuration expects 2 inputs, model provides 3: 'KWARGS\[k\]' \(INPUT__2\) is not configured",
            id="missing input",
        ),
        pytest.param(
            {"tensors": TENSORS + 'input { name: "INPUT__0" data_type: TYPE_FP32 dims: 3 }'},
            None,
            r"inputs 'ARGS\[0\]' and 'INPUT__0' are the same input",
            id="the same input twice",
        ),
        pytest.param(
            {"tensors": TENSORS.replace("FP32 dims: 3", "FP64 dims: 3", 1)},
            None,
            r"input 'ARGS\[0\]' of shape \[16, 3\].*unmatched dtype",
            id="datatype of an input",
        ),
        pytest.param(
            {"tensors": TENSORS.replace('"RESULT[Z]" data_type: TYPE_FP32', '"RESULT[Z]" data_type: TYPE_INT32')},
            None,
            r"expects datatype TYPE_INT32 for output 'RESULT\[Z\]', model provides TYPE_FP32",
            id="datatype of an output",
        ),
        pytest.param(
            {"tensors": TENSORS.replace("FP32", "STRING", 1)},
            None,
            r"unsupported datatype TYPE_STRING for input 'ARGS\[0\]' for model 'm'",
            id="strings",
        ),
        pytest.param(
            {
                "extra": "sequence_batching { control_input { name: 'ID' control { kind: CONTROL_SEQUENCE_CORRID "
                "data_type: TYPE_STRING } } }"
            },
            None,
            "input 'ID' type 'TYPE_STRING' is not supported by PyTorch",
            id="sequence IDs that are strings",
        ),
        pytest.param(
            {"tensors": TENSORS.replace("dims: 3", "dims: 4", 1)},
            None,
            r"input 'ARGS\[0\]' of shape \[16, 4\].*unmatched dim value at 1, expected: 3, but got: 4",
            id="dims of an input",
        ),
        pytest.param(
            {
                "tensors": TENSORS.replace(
                    '"RESULT[Z]" data_type: TYPE_FP32 dims: 3', '"RESULT[Z]" data_type: TYPE_FP32 dims: 5'
                )
            },
            None,
            r"tensor 'RESULT\[Z\]': the model expects 2 dimensions \(shape \[16,3\]\)",
            id="dims of an output",
        ),
        pytest.param(
            {"max_batch_size": LIMIT + 1},
            None,
            r"dim value is too large at 0, expected to be <= 16, but got: 17.*max_batch_size",
            id="max_batch_size",
        ),
    ],
)
def test_model_that_cannot_run_is_refused(
    archives: Path, tmp_path: Path, config: dict[str, Any], breakage: Breakage, message: str
) -> None:
    shutil.copytree(archives / "structured", tmp_path, dirs_exist_ok=True)
    check_refusal(tmp_path / "1" / "model.pt2", breakage, lambda: loaded(tmp_path, **config), message)


def test_archive_for_wrong_device_is_refused(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(archives / "structured").model
    instance = model.create_instance(InstanceSpec("m_0_0", 0, "KIND_GPU"))
    monkeypatch.setattr(model, "load", lambda index: model.__class__.load(model, -1))
    with pytest.raises(
        InvalidArgumentError, match=r"model\.pt2' is compiled for cpu, expected cuda for an instance of KIND"
    ):
        instance.initialize()


Pair = collections.namedtuple("Pair", "values indices")  # as users write it


@dataclasses.dataclass
class Scores:
    best: torch.Tensor
    rest: torch.Tensor | None = None


class Everything(torch.nn.Module):
    """A module whose result has every kind of container."""

    def forward(self, x: torch.Tensor) -> Any:
        return collections.OrderedDict(
            named=Pair(x + 1, x + 2),
            top=torch.topk(x, 2, dim=1),
            scores=Scores(x.sum(1, keepdim=True)),
            rows=x.shape[0],
            more=[x * 3, {"deep": (x * 4, None)}],
        )


def test_results_in_every_container_are_outputs(tmp_path: Path) -> None:
    tnb.export_pt2(Everything(), (torch.zeros(1, 3),), tmp_path / "m", max_batch_size=LIMIT, inductor_configs=QUICK)
    x = np.array([[3, 1, 2], [4, 6, 5]], np.float32)
    with tnb.serve(tmp_path, port=0) as server:
        outputs = list(server["m"](INPUT__0=x).values())
    expected = [x + 1, x + 2, [[3, 2], [6, 5]], [[0, 2], [1, 2]], [[6], [15]], x * 3, x * 4]
    assert [output.tolist() for output in outputs] == [np.asarray(array).tolist() for array in expected]


def test_inputs_and_outputs_can_be_bf16(tmp_path: Path) -> None:
    x = torch.zeros(1, 3, dtype=torch.bfloat16)
    tnb.export_pt2(Double(), (x,), tmp_path / "m", max_batch_size=LIMIT, inductor_configs=QUICK)
    with tnb.serve(tmp_path, port=0) as server:
        assert server["m"](INPUT__0=[[1.5, 2, 3]])["OUTPUT__0"].tolist() == [[3, 4, 6]]


def test_archives_of_other_exporters_have_their_containers(tmp_path: Path) -> None:
    """With classes that are registered where the archive is written only."""
    torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="tests.Pair")
    torch.export.register_dataclass(Scores, serialized_type_name="tests.Scores")

    class Results(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return collections.OrderedDict(pair=Pair(x + 1, (None, x + 2)), scores=Scores(x + 3))

    (tmp_path / "1").mkdir()
    program = torch.export.export(Results(), (torch.zeros(2, 3),))
    package = str(tmp_path / "1/model.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=QUICK)
    names = ["RESULT[pair][0]", "RESULT[pair][1][1]", "RESULT[scores][best]", "OUTPUT__3"]
    tensors = 'input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 2, 3 ] }' + "".join(
        f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2, 3 ] }}' for name in names
    )
    loaded = Loaded(config_of("pytorch", tensors, AOTI, max_batch_size=0), tmp_path)
    (answer,) = loaded.run(request(INPUT__0=np.zeros((2, 3), np.float32)))
    assert [output.array[0, 0] for output in answer.outputs] == [1, 2, 3, 3]
    with pytest.raises(InvalidArgumentError, match=r"output 'RESULT\[pair\]\[1\]\[0\]': expected a tensor, got None"):
        Loaded(config_of("pytorch", tensors.replace("[1][1]", "[1][0]"), AOTI, max_batch_size=0), tmp_path)


def test_output_of_variable_size_is_not_configured_with_a_size(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    columns = torch.export.Dim("columns", min=1, max=9)
    program = torch.export.export(Double(), (torch.zeros(2, 3),), dynamic_shapes=({1: columns},))
    package = str(tmp_path / "1/model.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=QUICK)
    tensors = """input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 2, -1 ] }
                 output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2, -1 ] }"""
    loaded = Loaded(config_of("pytorch", tensors, AOTI, max_batch_size=0), tmp_path)
    (answer,) = loaded.run(request(INPUT__0=np.ones((2, 4), np.float32)))
    assert answer.outputs[0].array.shape == (2, 4)
    for size in (2, 3, 4):
        specific = tensors.replace("-1 ] }", f"{size} ] }}").replace(f"{size} ] }}", "-1 ] }", 1)
        with pytest.raises(InvalidArgumentError, match="'OUTPUT__0': the model expects 2 dimensions"):
            Loaded(config_of("pytorch", specific, AOTI, max_batch_size=0), tmp_path)


def test_program_whose_checks_contradict_each_other_is_refused() -> None:
    calls = iter(range(1000))

    def run(arrays: list[Any]) -> list[Any]:
        expected = 5 + next(calls) % 2
        raise RuntimeError(
            f"input_handles[0]: unmatched dim value at 1, expected: {expected}, but got: {arrays[0].shape[1]}"
        )

    spec = ModelSpec.from_config(config_of("pytorch", 'input { name: "X" data_type: TYPE_FP32 dims: [ 2, -1 ] }'))
    with pytest.raises(InvalidArgumentError, match="got sizes that contradict one another: input_handles"):
        _run_accepted(spec, run, {"X": ([2, -1], tnb.FP32)}, {"X": 0})
