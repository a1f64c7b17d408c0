"""The TensorFlow backend: SavedModel and GraphDef, signatures, strings, checks.

TensorFlow is not part of the extra ``all``: ``make test-tensorflow`` runs these tests in a dedicated environment.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

tf: Any = pytest.importorskip("tensorflow", reason="make test-tensorflow installs TensorFlow and runs these tests")

from tests.backends.framework_checks import (  # noqa: E402
    BAD_FILES,
    STATE,
    Breakage,
    check_refusal,
    parameters,
)
from tests.backends.models import Loaded, config_of, request  # noqa: E402
from tests.backends.serving import check_batches, one_batch, write_config  # noqa: E402
from tritonnb.backends.contract import InstanceSpec  # noqa: E402
from tritonnb.backends.registry import BackendRegistry  # noqa: E402
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError  # noqa: E402
from tritonnb.model_config.load import load_config  # noqa: E402
from tritonnb.model_zoo import digits  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SAVED_MODEL = 'platform: "tensorflow_savedmodel"'
GRAPH_DEF = 'platform: "tensorflow_graphdef"'
TENSORS = """
    input { name: "x" data_type: TYPE_FP32 dims: 4 }
    output { name: "y" data_type: TYPE_FP32 dims: 2 }
    output { name: "text" data_type: TYPE_STRING dims: 2 }
"""
UPPER = """
    input { name: "s" data_type: TYPE_STRING dims: 1 }
    output { name: "u" data_type: TYPE_STRING dims: 1 }
"""
#: Names in a GraphDef are those of its operations.
GRAPH_TENSORS = """
    input { name: "x" data_type: TYPE_FP32 dims: 4 }
    output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""


class Network(tf.Module):  # type: ignore[misc]
    """A matrix product and its text; a second signature for strings, and a third without a batch dimension."""

    def __init__(self) -> None:
        self.weights = tf.Variable(np.arange(8, dtype=np.float32).reshape(4, 2))

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])  # type: ignore[untyped-decorator]
    def serve(self, x: Any) -> dict[str, Any]:
        y = tf.matmul(x, self.weights)
        return {"y": y, "text": tf.strings.as_string(y, precision=1)}

    @tf.function(input_signature=[tf.TensorSpec((None, 1), tf.string)])  # type: ignore[untyped-decorator]
    def upper(self, s: Any) -> dict[str, Any]:
        return {"u": tf.strings.upper(s)}

    @tf.function(input_signature=[tf.TensorSpec((2, 4), tf.float32)])  # type: ignore[untyped-decorator]
    def fixed(self, x: Any) -> dict[str, Any]:
        return {"y": x + x}

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.complex64)])  # type: ignore[untyped-decorator]
    def complex(self, x: Any) -> dict[str, Any]:
        return {"y": x}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with a SavedModel."""
    directory = tmp_path_factory.mktemp("saved")
    network = Network()
    signatures = {
        "serving_default": network.serve,
        "upper": network.upper,
        "fixed": network.fixed,
        "complex": network.complex,
    }
    tf.saved_model.save(network, str(directory / "1" / "model.savedmodel"), signatures=signatures)
    return directory


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A model directory with a GraphDef whose variable an operation initialises."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, 4), name="x")
        weights = tf.compat.v1.Variable(np.ones((4, 2), np.float32), name="weights", use_resource=False)
        tf.identity(tf.matmul(x, weights), name="y")
        tf.group(weights.initializer, name="init")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())
    (tmp_path / "1" / "init_ops.json").write_text(json.dumps({"init_ops": ["init"]}))
    return tmp_path


def loaded(
    directory: Path, tensors: str = TENSORS, extra: str = "", max_batch_size: int = 8, platform: str = SAVED_MODEL
) -> Loaded:
    return Loaded(config_of("tensorflow", tensors, f"{platform} {extra}", max_batch_size), directory)


def test_requests_over_http_and_grpc_share_batches_with_the_results_of_tensorflow(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "network")
    write_config(tmp_path, "network", f'backend: "tensorflow" {SAVED_MODEL} {TENSORS} {one_batch(7)}')
    function = tf.saved_model.load(str(saved / "1" / "model.savedmodel")).signatures["serving_default"]
    random = np.random.default_rng(1)
    requests = [{"x": random.random((count, 4), np.float32)} for count in (1, 2, 4)]
    check_batches(
        tmp_path,
        "network",
        requests,
        lambda inputs: {"y": function(x=tf.constant(inputs["x"]))["y"].numpy()},
        rtol=1e-6,
    )


def test_example_model_is_the_network_of_digits(tmp_path: Path) -> None:
    path = tmp_path / "digits_tensorflow" / "1" / "model.savedmodel" / "saved_model.pb"
    path.parent.mkdir(parents=True)
    digits.write_tensorflow(path)
    assert digits.digest_tensorflow(path) == digits.TENSORFLOW_SHA256
    model = Loaded(load_config(path.parents[2], "digits_tensorflow").config, path.parents[2])
    images = np.random.default_rng(0).random((60, 8, 8), np.float32)
    (response,) = model.run(request(image=images))
    expected = digits.load_network()(torch.from_numpy(images)).detach().numpy()
    np.testing.assert_allclose(response.outputs[0].array.astype(float), expected, rtol=1e-4, atol=1e-6)


def test_openvino_reads_tensorflow_lite(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="make test-tensorflow installs it")
    (tmp_path / "1").mkdir()
    network = Network()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([_product(network).get_concrete_function()], network)
    (tmp_path / "1" / "model.tflite").write_bytes(converter.convert())
    model = Loaded(config_of("openvino", "", 'default_model_filename: "model.tflite"'), tmp_path)
    name = model.config.input[0].name  # such as serving_default_x:0
    (response,) = model.run(request(None, **{name: np.ones((3, 4), np.float32)}))
    assert response.outputs[0].array.tolist() == [[12, 16]] * 3


def test_strings_are_passed_as_bytes(saved: Path) -> None:
    model = loaded(saved, UPPER, parameters(TF_SIGNATURE_DEF="upper"))
    responses = model.run(request(s=np.array([[b"a\xff"]], object)), request(s=np.array([[b"b"], [b""]], object)))
    assert [response.outputs[0].array.tolist() for response in responses] == [[[b"A\xff"]], [[b"B"], [b""]]]
    (response,) = loaded(saved).run(request(x=np.ones((1, 4), np.float32)))
    assert {tensor.name: tensor.array.tolist() for tensor in response.outputs} == {
        "y": [[12, 16]],
        "text": [[b"12.0", b"16.0"]],
    }


def test_graphdef_runs_its_initialisation_operations_first(graph: Path) -> None:
    model = loaded(graph, GRAPH_TENSORS, parameters(TF_INIT_OPS_FILE="init_ops.json"), platform=GRAPH_DEF)
    (response,) = model.run(request(x=np.ones((2, 4), np.float32)))
    assert response.outputs[0].array.tolist() == [[4, 4], [4, 4]]
    (graph / "1" / "init_ops.json").rename(graph / "init_ops.json")
    assert loaded(graph, GRAPH_TENSORS, parameters(TF_INIT_OPS_FILE="init_ops.json"), platform=GRAPH_DEF)
    without = loaded(graph, GRAPH_TENSORS, platform=GRAPH_DEF)
    with pytest.raises(InternalError, match=r"model 'm': TensorFlow failed: .*Attempting to use uninitialized value"):
        without.run(request(x=np.ones((2, 4), np.float32)))


# What Triton completes: README of triton-inference-server/tensorflow_backend, "Auto-Complete Model Configuration".


def test_savedmodel_is_completed_with_batching(saved: Path) -> None:
    config = Loaded(config_of("tensorflow", "", SAVED_MODEL, max_batch_size=0), saved).config
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (4, True)
    assert [(tensor.name, list(tensor.dims)) for tensor in (*config.input, *config.output)] == [
        ("x", [4]),
        ("text", [2]),
        ("y", [2]),
    ]
    settings = {"default-max-batch-size": "0"}
    config = Loaded(config_of("tensorflow", "", SAVED_MODEL, max_batch_size=0), saved, settings).config
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [-1, 4])


def test_signature_with_fixed_dims_is_completed_without_batching(saved: Path) -> None:
    extra = f"{SAVED_MODEL} {parameters(TF_SIGNATURE_DEF='fixed')}"
    config = Loaded(config_of("tensorflow", "", extra, max_batch_size=0), saved).config
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [2, 4])
    with pytest.raises(InternalError, match="specified max-batch 4 but model signature does not support batching"):
        Loaded(config_of("tensorflow", "", extra, max_batch_size=4), saved)


def test_instances_share_sessions_up_to_the_limit(saved: Path) -> None:
    model = loaded(saved, extra=parameters(MAX_SESSION_SHARE_COUNT="2")).model
    spec = InstanceSpec("m_0_1", 1, "KIND_CPU")
    first, second, third = (model.session(spec)[0] for _ in range(3))  # the instance of `loaded` has one, too
    assert first is not second
    assert second is third


def test_parameters_become_session_options(saved: Path) -> None:
    extra = parameters(TF_NUM_INTRA_THREADS="1", TF_NUM_INTER_THREADS="2", TF_USE_PER_SESSION_THREADS="On")
    model = loaded(saved, extra=extra).model
    options = model.session(InstanceSpec("m_0_1", 1, "KIND_CPU"))[0]._config
    assert (options.intra_op_parallelism_threads, options.inter_op_parallelism_threads) == (1, 2)
    assert options.use_per_session_threads
    assert options.allow_soft_placement


def test_openvino_reads_a_savedmodel(saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="make test-tensorflow installs it")
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 2 }'
    network = Network()
    shutil.rmtree(tmp_path / "1")
    tf.saved_model.save(
        network, str(tmp_path / "1" / "model.saved_model"), signatures={"serving_default": _product(network)}
    )
    config = config_of("openvino", tensors, 'default_model_filename: "model.saved_model"')
    (response,) = Loaded(config, tmp_path).run(request(x=np.ones((3, 4), np.float32)))
    assert response.outputs[0].array.tolist() == [[12, 16]] * 3


def _product(network: Network) -> Any:
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])  # type: ignore[untyped-decorator]
    def product(x: Any) -> dict[str, Any]:
        return {"y": tf.matmul(x, network.weights)}

    return product


@pytest.mark.parametrize(
    ("config", "breakage", "message"),
    [
        pytest.param(
            {},
            lambda path: shutil.rmtree(path.parent),
            "unable to find '.*model.savedmodel' for model 'm'",
            id="no file",
        ),
        *(
            pytest.param({}, breakage, "unable to load '.*model.savedmodel' of model 'm' as a SavedModel", id=name)
            for name, breakage in BAD_FILES.items()
        ),
        pytest.param(
            {},
            lambda path: shutil.rmtree(path.parent / "variables"),
            "unable to load '.*model.savedmodel' of model 'm'",
            id="no variables",
        ),
        pytest.param(
            {"tensors": TENSORS.replace('"x"', '"z"')},
            None,
            "unexpected inference input 'z', allowed inputs are: x",
            id="input",
        ),
        pytest.param(
            {"tensors": TENSORS.replace('"y"', '"z"')},
            None,
            "unexpected inference output 'z', allowed outputs are: text, y",
            id="output",
        ),
        pytest.param(
            {"tensors": TENSORS + 'input { name: "w" data_type: TYPE_FP32 dims: 1 }'},
            None,
            "configuration expects 2 inputs, model provides 1",
            id="too many inputs",
        ),
        pytest.param(
            {"tensors": TENSORS.replace("FP32", "INT32", 1)},
            None,
            "expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
            id="datatype",
        ),
        pytest.param(
            {"tensors": TENSORS.replace("dims: 4", "dims: 5")},
            None,
            r"tensor 'x': the model expects 2 dimensions \(shape \[-1,4\]\)",
            id="dims",
        ),
        pytest.param(
            {"extra": parameters(TF_SIGNATURE_DEF="nope")},
            None,
            "expected a signature 'nope' .TF_SIGNATURE_DEF., got 'complex', 'fixed', 'serving_default', 'upper'",
            id="signature",
        ),
        pytest.param(
            {"extra": parameters(TF_GRAPH_TAG="train")},
            None,
            "expected a graph with the tag 'train' .TF_GRAPH_TAG., got 'serve'",
            id="tag",
        ),
        pytest.param(
            {"tensors": "", "max_batch_size": 0, "extra": parameters(TF_SIGNATURE_DEF="complex")},
            None,
            "tensor 'x': expected a datatype that Triton has, got DT_COMPLEX64",
            id="a datatype that Triton does not have",
        ),
        pytest.param(
            {"extra": parameters(TF_NUM_INTRA_THREADS="-1")},
            None,
            "parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model 'm'",
            id="threads",
        ),
        pytest.param(
            {"extra": parameters(MAX_SESSION_SHARE_COUNT="0")},
            None,
            "parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model 'm'",
            id="shared sessions",
        ),
        pytest.param(
            {"extra": parameters(TF_INIT_OPS_FILE="init.json")},
            None,
            "unable to find 'init.json' .TF_INIT_OPS_FILE. for model 'm'",
            id="init operations",
        ),
        pytest.param({"extra": STATE}, None, "expected sequence_batching without state, got 'S'", id="state"),
        pytest.param(
            {"platform": 'platform: "tensorflow_lite"'},
            None,
            "platform tensorflow_lite not supported for TensorFlow model 'm'",
            id="platform",
        ),
        pytest.param(
            {"extra": 'optimization { execution_accelerators { cpu_execution_accelerator { name: "x" } } }'},
            None,
            "CPU Execution Accelerator is not supported in TensorFlow backend",
            id="accelerator",
        ),
    ],
)
def test_model_that_cannot_run_is_refused(
    saved: Path, tmp_path: Path, config: dict[str, Any], breakage: Breakage, message: str
) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "1" / "model.savedmodel" / "saved_model.pb"
    check_refusal(path, breakage, lambda: loaded(tmp_path, **config), message)


def test_values_of_parameters_are_checked_before_the_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="parameter 'TF_NUM_INTRA_THREADS' must be non-negative number"):
        loaded(tmp_path, GRAPH_TENSORS, parameters(TF_NUM_INTRA_THREADS="-1"), platform=GRAPH_DEF)


def test_invalid_graphdef_is_refused(graph: Path) -> None:
    (graph / "1" / "model.graphdef").write_bytes(b"[1, 2]")
    with pytest.raises(InternalError, match=r"unable to load '.*model\.graphdef' of model 'm'"):
        loaded(graph, GRAPH_TENSORS, platform=GRAPH_DEF)


def test_gpu_instances_need_a_tensorflow_with_gpus(saved: Path) -> None:
    model = loaded(saved).model
    if tf.config.list_physical_devices("GPU"):
        pytest.fail("expected an environment without GPUs for TensorFlow, as make test-tensorflow installs")
    with pytest.raises(UnsupportedError, match="expected a TensorFlow with GPU support for an instance of KIND_GPU"):
        model.create_instance(InstanceSpec("m_0_0", 0, "KIND_GPU")).initialize()


def test_tensorflow_1_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="--backend-config=tensorflow,version expected 2, got 1"):
        BackendRegistry(lambda _: {"version": "1"}).get("tensorflow")
