"""Random tree models: every response is the library's prediction, or the model is refused with the reason."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backends.framework_checks import parameters
from tests.backends.models import Loaded, config_of, request
from tests.laws import law
from tests.lazy_import import LazyModule
from tritonnb.core.errors import UnsupportedError

if TYPE_CHECKING:
    import lightgbm
    import pandas as pd
    import xgboost
else:
    lightgbm, xgboost, pd = map(LazyModule, ("lightgbm", "xgboost", "pandas"))

FEATURES, CATEGORY = 5, 4


def table(rng: random.Random, missing: bool, rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Rows with zeros, with categories in the last column, and with NaN if asked; and a score that they explain."""
    generator = np.random.default_rng(rng.randrange(2**32))
    x = generator.normal(size=(rows, FEATURES)).astype(np.float32)
    x[generator.random(x.shape) < 0.2] = 0
    x[:, CATEGORY] = generator.integers(0, 9, rows)
    score = 2 * x[:, 0] - x[:, 1] + x[:, CATEGORY] % 3 + 2 * (x[:, 2] == 0) + generator.normal(size=rows)
    if missing:
        x[:, :CATEGORY][generator.random((rows, CATEGORY)) < 0.15] = np.nan
    return x, score


def targets(objective: str, score: np.ndarray) -> np.ndarray:
    if objective.startswith(("multi", "rank", "lambdarank")):
        return np.digitize(score, [-1, 1])
    if objective.startswith("binary") or objective == "reg:logistic":
        return (score > 0).astype(np.int64)
    if objective.startswith("cross_entropy"):
        return np.asarray(1 / (1 + np.exp(-score)))
    if objective in ("poisson", "gamma", "tweedie", "reg:gamma", "reg:tweedie", "reg:squaredlogerror"):
        return np.asarray(np.exp(score / 3))
    return score


def served(directory: Path, kind: str, rows: np.ndarray, **options: str) -> np.ndarray:
    extra = parameters(**{"model_type": kind, "is_classifier": "false", **options})
    loaded = Loaded(config_of("fil", "", extra, max_batch_size=1024), directory)
    (answer,) = loaded.run(request(input__0=rows))
    assert answer is not None
    return np.asarray(answer.outputs[0].array)


LIGHTGBM_OBJECTIVES = [
    "regression", "l1", "huber", "fair", "quantile", "mape", "poisson", "gamma", "tweedie", "binary", "cross_entropy",
    "cross_entropy_lambda", "multiclass", "multiclassova", "lambdarank", "rank_xendcg",
]  # fmt: skip
LIGHTGBM_OPTIONS: list[dict[str, Any]] = [
    {}, {}, {"boost_from_average": False}, {"use_missing": False}, {"boosting": "dart", "drop_rate": 0.5},
    {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}, {"data_sample_strategy": "goss"},
    {"zero_as_missing": True}, {"linear_tree": True}, {"max_cat_to_onehot": 20},
]  # fmt: skip


@given(st.integers(0, 2**32 - 1))
@law(25)
def test_lightgbm_models_predict_as_the_library(tmp_path_factory: Any, seed: int) -> None:
    rng, directory = random.Random(seed), tmp_path_factory.mktemp("m")
    objective, options = rng.choice(LIGHTGBM_OBJECTIVES), rng.choice(LIGHTGBM_OPTIONS)
    rows, score = table(rng, rng.random() < 0.5)
    labels = targets(objective.replace("rank_", "lambdarank"), score)
    setting = {"objective": objective, "verbose": -1, "num_threads": 1, "num_leaves": 7, "min_data_per_group": 1}
    if objective.startswith("multi"):
        setting["num_class"] = 3
    data = lightgbm.Dataset(
        rows,
        labels,
        group=[20] * 10 if "rank" in objective or objective == "rank_xendcg" else None,
        categorical_feature=[CATEGORY] if rng.random() < 0.5 else [],
    )
    try:
        model = lightgbm.train(setting | options, data, 8)
    except lightgbm.basic.LightGBMError:
        return  # options that exclude one another
    (directory / "1").mkdir()
    model.save_model(directory / "1/model.txt")
    others, _ = table(rng, True)
    try:
        result = served(directory, "lightgbm", others)
    except UnsupportedError as error:
        if not {"zero_as_missing", "linear_tree"} & options.keys() or "train with" not in error.message:
            raise
        return
    expected = model.predict(others)
    np.testing.assert_allclose(
        result, expected.reshape(result.shape), rtol=1e-4, atol=1e-5, err_msg=str((setting, options))
    )


XGBOOST_OBJECTIVES = [
    "reg:squarederror", "reg:squaredlogerror", "reg:logistic", "reg:pseudohubererror", "reg:absoluteerror",
    "binary:logistic", "binary:logitraw", "binary:hinge", "reg:gamma", "reg:tweedie", "multi:softprob", "rank:ndcg",
    "rank:pairwise",
]  # fmt: skip
XGBOOST_OPTIONS: list[dict[str, Any]] = [
    {}, {}, {"booster": "dart", "rate_drop": 0.5}, {"booster": "gblinear"}, {"num_parallel_tree": 3, "subsample": 0.6},
    {"base_score": 0.3}, {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0}, {"max_cat_to_onehot": 1},
]  # fmt: skip


@given(st.integers(0, 2**32 - 1))
@law(40)
def test_xgboost_models_predict_as_the_library(tmp_path_factory: Any, seed: int) -> None:
    rng, directory = random.Random(seed), tmp_path_factory.mktemp("m")
    objective, options = rng.choice(XGBOOST_OBJECTIVES), rng.choice(XGBOOST_OPTIONS)
    rows, score = table(rng, rng.random() < 0.5)
    setting = {"objective": objective, "nthread": 1, "max_depth": 3}
    if objective == "multi:softprob":
        setting["num_class"] = 3
    features: dict[str, Any] = {}
    if rng.random() < 0.5 and options.get("booster") != "gblinear":
        features = {"feature_types": ["float"] * CATEGORY + ["c"], "enable_categorical": True}
    groups = {"group": [20] * 10} if objective.startswith("rank") else {}
    data = xgboost.DMatrix(rows, targets(objective, score), **features, **groups)
    early: dict[str, Any] = {}
    if rng.random() < 0.4 and options.get("booster") != "gblinear":
        shuffled = np.random.default_rng(1).permutation(targets(objective, score))
        early = {"evals": [(xgboost.DMatrix(rows, shuffled, **features, **groups), "v")], "early_stopping_rounds": 2}
    model = xgboost.train(setting | options, data, 8, **early, verbose_eval=False)
    (directory / "1").mkdir()
    kind = rng.choice(["json", "ubj"])
    model.save_model(directory / f"1/xgboost.{kind}")
    others, _ = table(rng, True)
    try:
        result = served(directory, f"xgboost_{kind}", others)
    except UnsupportedError as error:
        if options.get("booster") != "gblinear" or "train with" not in error.message:
            raise
        return
    kept = (0, model.best_iteration + 1) if early else (0, 0)
    expected = model.predict(xgboost.DMatrix(others, **features), iteration_range=kept)
    message = str((setting, options, early and model.best_iteration))
    np.testing.assert_allclose(result, expected.reshape(result.shape), rtol=1e-4, atol=1e-5, err_msg=message)


@pytest.mark.parametrize("kind", ["json", "ubj"])
def test_xgboost_with_pandas_categories_is_refused_and_with_codes_it_is_right(tmp_path: Path, kind: str) -> None:
    rows, score = table(random.Random(1), missing=False)
    frame = pd.DataFrame(rows)
    frame[CATEGORY] = frame[CATEGORY].astype(int).astype("category")
    codes = {"feature_types": ["float"] * CATEGORY + ["c"]}
    for name, data in (
        ("frame", xgboost.DMatrix(frame, score, enable_categorical=True)),
        ("codes", xgboost.DMatrix(rows, score, enable_categorical=True, **codes)),
    ):
        (tmp_path / name / "1").mkdir(parents=True)
        xgboost.train({"max_depth": 3}, data, 4).save_model(tmp_path / name / f"1/xgboost.{kind}")
    with pytest.raises(UnsupportedError, match=r"treelite cannot predict categories of pandas .*Series\.cat\.codes"):
        served(tmp_path / "frame", f"xgboost_{kind}", rows)
    model = xgboost.Booster(model_file=tmp_path / "codes" / f"1/xgboost.{kind}")
    expected = model.predict(xgboost.DMatrix(rows, enable_categorical=True, **codes))
    np.testing.assert_allclose(served(tmp_path / "codes", f"xgboost_{kind}", rows), expected, atol=1e-5)


def test_two_classes_without_configured_outputs_have_two_probabilities(tmp_path: Path) -> None:
    rows, score = table(random.Random(1), missing=True)
    classifier = xgboost.XGBClassifier(n_estimators=4, max_depth=3, n_jobs=1).fit(rows, score > 0)
    (tmp_path / "1").mkdir()
    classifier.save_model(tmp_path / "1/xgboost.json")
    options = {"is_classifier": "true", "predict_proba": "true"}
    result = served(tmp_path, "xgboost_json", rows, **options)
    np.testing.assert_allclose(result, classifier.predict_proba(rows), atol=1e-6)
