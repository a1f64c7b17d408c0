"""The FIL backend: formats, outputs, parameters, auto-completion, checks."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.backends.framework_checks import BAD_FILES, Breakage, check_refusal, parameters
from tests.backends.models import Loaded, config_of, request
from tests.backends.serving import check_batches, one_batch, write_config
from tests.lazy_import import LazyModule
from tritonnb.backends.contract import InstanceSpec
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.model_zoo import digits_trees

if TYPE_CHECKING:
    import lightgbm
    import treelite
    import xgboost
    from sklearn import datasets, ensemble
else:
    lightgbm, treelite, xgboost = map(LazyModule, ("lightgbm", "treelite", "xgboost"))
    datasets, ensemble = map(LazyModule, ("sklearn.datasets", "sklearn.ensemble"))

#: Predictions equal the library's own up to this difference.
TOLERANCE = 1e-6
FIL = {"model_type": "xgboost_ubj", "is_classifier": "true"}
CANCER, DIGITS, DIABETES = "breast_cancer", "digits", "diabetes"


@functools.cache
def data(dataset: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the targets of a data set of scikit-learn."""
    rows, targets = getattr(datasets, f"load_{dataset}")(return_X_y=True)
    return rows.astype(np.float32), targets


def rows_of(dataset: str) -> np.ndarray:
    return data(dataset)[0]


def tensors(features: int, outputs: int) -> str:
    return f"""
        input {{ name: "input__0" data_type: TYPE_FP32 dims: {features} }}
        output {{ name: "output__0" data_type: TYPE_FP32 dims: {outputs} }}
    """


def xgboost_model(
    name: str, estimator: str = "XGBClassifier", dataset: str = CANCER, outputs: int = 1
) -> Callable[[Path], Callable[..., Any]]:
    def write(directory: Path) -> Callable[..., Any]:
        rows, targets = data(dataset)
        targets = targets if outputs == 1 else np.stack([targets] * outputs, axis=1)
        model = getattr(xgboost, estimator)(n_estimators=8, max_depth=3, n_jobs=1).fit(rows, targets)
        (directory / "1").mkdir(parents=True)
        model.save_model(directory / "1" / name)
        return model.predict_proba if hasattr(model, "predict_proba") else model.predict

    return write


def lightgbm_model(dataset: str = CANCER, **options: Any) -> Callable[[Path], Callable[..., Any]]:
    def write(directory: Path) -> Callable[..., Any]:
        model = lightgbm.LGBMClassifier(n_estimators=4, verbose=-1, n_jobs=1, **options).fit(*data(dataset))
        (directory / "1").mkdir(parents=True)
        model.booster_.save_model(directory / "1" / "model.txt")
        return lambda rows: model.booster_.predict(rows)

    return write


def forest(directory: Path) -> Callable[..., Any]:
    model = ensemble.RandomForestClassifier(5, max_depth=4, random_state=0).fit(*data(DIGITS))
    (directory / "1").mkdir(parents=True)
    treelite.sklearn.import_model(model).serialize(directory / "1" / "checkpoint.tl")
    return model.predict_proba


FORMATS = [
    pytest.param("xgboost_ubj", xgboost_model("xgboost.ubj"), CANCER, 2, id="XGBoost, two classes, UBJSON"),
    pytest.param("xgboost_json", xgboost_model("xgboost.json"), CANCER, 2, id="XGBoost, two classes, JSON"),
    pytest.param(
        "xgboost_ubj",
        xgboost_model("xgboost.ubj", dataset=DIGITS),
        DIGITS,
        10,
        id="XGBoost, ten classes",
    ),
    pytest.param("lightgbm", lightgbm_model(), CANCER, 1, id="LightGBM, two classes"),
    pytest.param("lightgbm", lightgbm_model(DIGITS), DIGITS, 10, id="LightGBM, ten classes"),
    pytest.param(
        "lightgbm",
        lightgbm_model(DIGITS, objective="multiclassova"),
        DIGITS,
        10,
        id="LightGBM, one class against the others",
    ),
    pytest.param("treelite_checkpoint", forest, DIGITS, 10, id="a random forest of scikit-learn"),
]


@pytest.mark.parametrize(("kind", "write", "dataset", "classes"), FORMATS)
def test_probabilities_equal_the_librarys(
    tmp_path: Path, kind: str, write: Callable[[Path], Any], dataset: str, classes: int
) -> None:
    rows = rows_of(dataset)
    predict = write(tmp_path)
    extra = parameters(model_type=kind, is_classifier="true", predict_proba="true")
    loaded = Loaded(config_of("fil", tensors(rows.shape[1], classes), extra, max_batch_size=64), tmp_path)
    responses = loaded.run(request(input__0=rows[:1]), request(input__0=rows[1:64]))
    output = np.concatenate([response.outputs[0].array for response in responses])
    np.testing.assert_allclose(output, predict(rows[:64]), rtol=0, atol=TOLERANCE)
    assert output.dtype == np.float32


def test_regression_equals_the_librarys_prediction(tmp_path: Path) -> None:
    predict = xgboost_model("xgboost.ubj", "XGBRegressor", DIABETES)(tmp_path)
    extra = parameters(model_type="xgboost_ubj", is_classifier="false")
    (response,) = Loaded(config_of("fil", tensors(10, 1), extra), tmp_path).run(request(input__0=rows_of(DIABETES)[:8]))
    # As on Triton, dims of size 1 do not appear in the shape.
    assert response.outputs[0].shape == (8,)
    np.testing.assert_allclose(response.outputs[0].array.astype(float), predict(rows_of(DIABETES)[:8]), rtol=TOLERANCE)


def test_classifier_outputs_the_class(tmp_path: Path) -> None:
    predict = xgboost_model("xgboost.json", dataset=DIGITS)(tmp_path)
    extra = parameters(model_type="xgboost_json", output_class="true")
    (response,) = Loaded(config_of("fil", tensors(64, 1), extra), tmp_path).run(request(input__0=rows_of(DIGITS)[:8]))
    assert response.outputs[0].array.tolist() == predict(rows_of(DIGITS)[:8]).argmax(axis=1).tolist()


def test_class_without_a_score_above_0_is_the_first(tmp_path: Path) -> None:
    """Since 25.09, Triton's backend looks for the highest score above 0; before, for the highest."""
    builder: Any = treelite.model_builder.ModelBuilder(
        threshold_type="float32", leaf_output_type="float32",
        metadata=treelite.model_builder.Metadata(
            num_feature=1, task_type="kMultiClf", average_tree_output=False, num_target=1, num_class=[3],
            leaf_vector_shape=(1, 3),
        ),
        tree_annotation=treelite.model_builder.TreeAnnotation(num_tree=1, target_id=[0], class_id=[-1]),
        postprocessor=treelite.model_builder.PostProcessorFunc(name="identity_multiclass"), base_scores=[0.0] * 3,
    )  # fmt: skip
    builder.start_tree()
    builder.start_node(0)
    builder.numerical_test(
        feature_id=0, threshold=0.0, default_left=True, opname="<", left_child_key=1, right_child_key=2
    )
    builder.end_node()
    for node, scores in (1, [-3.0, -1.0, -2.0]), (2, [-3.0, -1.0, 2.0]):
        builder.start_node(node)
        builder.leaf(scores)
        builder.end_node()
    builder.end_tree()
    (tmp_path / "1").mkdir()
    builder.commit().serialize(tmp_path / "1" / "checkpoint.tl")
    extra = parameters(model_type="treelite_checkpoint", is_classifier="true")
    rows = np.array([[-1.0], [1.0]], np.float32)
    (response,) = Loaded(config_of("fil", tensors(1, 1), extra), tmp_path).run(request(input__0=rows))
    assert response.outputs[0].array.tolist() == [0, 2]


@pytest.mark.parametrize("threshold", [None, 0.2, 0.9])
def test_binary_classes_are_separated_at_the_threshold(tmp_path: Path, threshold: float | None) -> None:
    predict = xgboost_model("xgboost.ubj")(tmp_path)
    extra = parameters(model_type="xgboost_ubj", is_classifier="true")
    extra += "" if threshold is None else parameters(threshold=str(threshold))
    rows = rows_of(CANCER)[:200]
    (response,) = Loaded(config_of("fil", tensors(30, 1), extra, max_batch_size=200), tmp_path).run(
        request(input__0=rows)
    )
    expected = (predict(rows)[:, 1] > (0.5 if threshold is None else threshold)).tolist()
    assert response.outputs[0].array.tolist() == expected
    assert 0 < sum(expected) < len(rows)


def test_requests_over_http_and_grpc_share_batches_with_the_results_of_xgboost(tmp_path: Path) -> None:
    (tmp_path / "digits_trees" / "1").mkdir(parents=True)
    digits_trees.train(tmp_path / "digits_trees" / "1" / "xgboost.ubj")
    booster = xgboost.Booster(model_file=tmp_path / "digits_trees" / "1" / "xgboost.ubj")
    booster.set_param({"nthread": 1})
    extra = parameters(model_type="xgboost_ubj", is_classifier="true", predict_proba="true")
    write_config(tmp_path, "digits_trees", f'backend: "fil" {tensors(64, 10)} {extra} {one_batch(9)}')
    requests = [
        {"input__0": rows_of(DIGITS)[:1]},
        {"input__0": rows_of(DIGITS)[1:4]},
        {"input__0": rows_of(DIGITS)[4:9]},
    ]
    check_batches(
        tmp_path,
        "digits_trees",
        requests,
        lambda inputs: {"output__0": booster.inplace_predict(inputs["input__0"])},
        rtol=0,
        atol=TOLERANCE,
    )


# Triton's FIL backend completes nothing: "you must specify some maximum batch size".


@pytest.mark.parametrize(
    ("options", "outputs"),
    [({"is_classifier": "true"}, 1), ({"is_classifier": "true", "predict_proba": "true"}, 10)],
)
def test_tensors_and_batching_are_completed_from_the_file(
    tmp_path: Path, options: dict[str, Any], outputs: int
) -> None:
    xgboost_model("xgboost.ubj", dataset=DIGITS)(tmp_path)
    extra = parameters(model_type="xgboost_ubj", **options)
    config = Loaded(config_of("fil", "", extra, max_batch_size=0), tmp_path).config
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (4, True)
    assert [(t.name, list(t.dims)) for t in (*config.input, *config.output)] == [
        ("input__0", [64]),
        ("output__0", [outputs]),
    ]


def test_model_without_batching_receives_rows_as_a_dimension(tmp_path: Path) -> None:
    predict = xgboost_model("xgboost.ubj")(tmp_path)
    shapes = tensors(30, 1).replace("dims: 30", "dims: [ -1, 30 ]").replace("dims: 1 ", "dims: -1 ")
    extra = parameters(model_type="xgboost_ubj", is_classifier="true", predict_proba="true")
    (response,) = Loaded(config_of("fil", shapes, extra, max_batch_size=0), tmp_path).run(
        request(input__0=rows_of(CANCER)[:3])
    )
    np.testing.assert_allclose(
        response.outputs[0].array.astype(float), predict(rows_of(CANCER)[:3])[:, 1], rtol=0, atol=TOLERANCE
    )


def test_request_with_another_number_of_features_is_refused(tmp_path: Path) -> None:
    xgboost_model("xgboost.ubj")(tmp_path)
    extra = parameters(model_type="xgboost_ubj", is_classifier="true")
    loaded = Loaded(config_of("fil", tensors(-1, 1), extra), tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"input 'input__0' expected shape \[-1,30\], got \[2, 29\]"):
        loaded.run(request(input__0=rows_of(CANCER)[:2, 1:]))


@pytest.mark.parametrize(("extra", "threads"), [("", 1), (parameters(cpu_nthread="2"), 2)])
def test_prediction_uses_one_thread_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, threads: int
) -> None:
    xgboost_model("xgboost.ubj")(tmp_path)
    loaded = Loaded(config_of("fil", tensors(30, 1), parameters(**FIL) + extra), tmp_path)
    counts = []
    predict = treelite.gtil.predict

    def counting(*args: Any, nthread: int) -> np.ndarray:
        counts.append(nthread)
        return predict(*args, nthread=1)

    monkeypatch.setattr(treelite.gtil, "predict", counting)
    loaded.run(request(input__0=rows_of(CANCER)[:2]))
    assert counts == [threads]


def test_prediction_respects_the_thread_limit_of_openmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xgboost_model("xgboost.ubj")(tmp_path)
    loaded = Loaded(config_of("fil", tensors(30, 1), parameters(**FIL) + parameters(cpu_nthread="2")), tmp_path)
    predict = treelite.gtil.predict

    def limited(*args: Any, nthread: int) -> np.ndarray:
        if nthread == 2:
            raise treelite.TreeliteError("too many threads")
        return predict(*args, nthread=nthread)

    (expected,) = loaded.run(request(input__0=rows_of(CANCER)[:2]))
    monkeypatch.setattr(treelite.gtil, "predict", limited)
    (response,) = loaded.run(request(input__0=rows_of(CANCER)[:2]))
    np.testing.assert_array_equal(response.outputs[0].array, expected.outputs[0].array)


def test_prediction_error_fails_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xgboost_model("xgboost.ubj")(tmp_path)
    loaded = Loaded(config_of("fil", tensors(30, 1), parameters(**FIL)), tmp_path)

    def failing(*args: Any, nthread: int) -> np.ndarray:
        raise treelite.TreeliteError("no memory")

    monkeypatch.setattr(treelite.gtil, "predict", failing)
    with pytest.raises(InternalError, match="model 'm': treelite failed: no memory"):
        loaded.run(request(input__0=rows_of(CANCER)[:2]))


def test_parameters_of_earlier_releases_are_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    xgboost_model("xgboost.ubj")(tmp_path)
    extra = parameters(model_type="xgboost_ubj", output_class="true", algo="NAIVE", storage_type="AUTO")
    with caplog.at_level(logging.WARNING):
        Loaded(config_of("fil", tensors(30, 1), extra), tmp_path)
    assert "model 'm': parameter 'algo' was removed from Triton; use 'layout' instead" in caplog.messages
    assert "model 'm': parameter 'storage_type' was removed from Triton" in caplog.messages


@pytest.mark.parametrize(
    ("options", "configured", "breakage", "message"),
    [
        pytest.param(FIL, tensors(30, 1), Path.unlink, "unable to find '.*xgboost.ubj' for model 'm'", id="no file"),
        *(
            pytest.param(
                FIL, tensors(30, 1), breakage, "unable to load '.*xgboost.ubj' of model 'm' as xgboost_ubj", id=name
            )
            for name, breakage in BAD_FILES.items()
        ),
        pytest.param(
            {**FIL, "model_type": "catboost"},
            tensors(30, 1),
            None,
            "catboost not recognized as a valid serialization format",
            id="unknown type",
        ),
        pytest.param(
            {"model_type": "xgboost_ubj"},
            tensors(30, 1),
            None,
            "Required parameter is_classifier not found in config",
            id="no is_classifier",
        ),
        pytest.param(
            {**FIL, "threshold": "half"},
            tensors(30, 1),
            None,
            "parameter 'threshold' expected a number, got 'half'",
            id="threshold",
        ),
        pytest.param(
            {**FIL, "predict_proba": "maybe"},
            tensors(30, 1),
            None,
            "parameter 'predict_proba' expected 'true' or 'false', got 'maybe'",
            id="predict_proba",
        ),
        pytest.param(
            FIL,
            tensors(30, 1).replace("input__0", "X"),
            None,
            "unexpected inference input 'X', allowed inputs are: input__0",
            id="input",
        ),
        pytest.param(
            FIL,
            tensors(30, 1).replace("output__0", "Y"),
            None,
            "unexpected inference output 'Y', allowed outputs are: output__0",
            id="output",
        ),
        pytest.param(
            FIL,
            tensors(30, 1).replace("FP32", "FP64", 1),
            None,
            "configuration expects datatype TYPE_FP64 for input 'input__0', model provides TYPE_FP32",
            id="datatype",
        ),
        pytest.param(
            FIL,
            tensors(29, 1),
            None,
            r"tensor 'input__0': the model expects 2 dimensions \(shape \[-1,30\]\).*complete shape \[-1,29\]",
            id="features",
        ),
        pytest.param(
            {**FIL, "predict_proba": "true"},
            tensors(30, 3),
            None,
            r"tensor 'output__0': the model expects 2 dimensions \(shape \[-1,1\]\).*complete shape \[-1,3\]",
            id="classes",
        ),
        pytest.param(
            FIL,
            tensors(30, 1) + 'output { name: "treeshap_output" data_type: TYPE_FP32 dims: 31 }',
            None,
            "got 'treeshap_output': treelite does not compute Shapley values; remove the output",
            id="Shapley values",
        ),
    ],
)
def test_model_that_cannot_run_is_refused(
    tmp_path: Path, options: dict[str, Any], configured: str, breakage: Breakage, message: str
) -> None:
    xgboost_model("xgboost.ubj")(tmp_path)
    config = config_of("fil", configured, parameters(**options))
    check_refusal(tmp_path / "1" / "xgboost.ubj", breakage, lambda: Loaded(config, tmp_path), message)


def test_torchscript_model_with_several_targets_is_refused(tmp_path: Path) -> None:
    xgboost_model("xgboost.ubj", "XGBRegressor", DIABETES, outputs=2)(tmp_path)
    extra = parameters(model_type="xgboost_ubj", is_classifier="false")
    with pytest.raises(UnsupportedError, match="model 'm': Multi-target model not supported"):
        Loaded(config_of("fil", tensors(10, 2), extra), tmp_path)


def test_gpu_instances_are_refused(tmp_path: Path) -> None:
    xgboost_model("xgboost.ubj")(tmp_path)
    loaded = Loaded(config_of("fil", tensors(30, 1), parameters(**FIL)), tmp_path)
    with pytest.raises(UnsupportedError, match="expected instances of KIND_CPU, got KIND_GPU"):
        loaded.model.create_instance(InstanceSpec("m_0_0", 0, "KIND_GPU"))
