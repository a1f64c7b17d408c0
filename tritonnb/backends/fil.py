"""The FIL backend: ``backend: "fil"``, gradient-boosted trees and random forests.

Runs files of XGBoost, LightGBM and treelite with treelite's own predictor (GTIL), as Triton's FIL backend does on the
CPU. The input has the name ``input__0``, the output ``output__0``; both are FP32. Parameters follow Triton's backend.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import treelite

from tritonnb.backends import model_checks
from tritonnb.backends.batching import gather, scatter
from tritonnb.backends.configured_tensors import ConfiguredTensors
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import FP32
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnavailableError, UnknownError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.schema import TensorSpec

logger = logging.getLogger(__name__)

INPUT, OUTPUT, SHAPLEY_OUTPUT = "input__0", "output__0", "treeshap_output"

#: The number of threads without ``cpu_nthread``, and treelite's number for as many as OpenMP allows.
DEFAULT_THREADS, ALLOWED_THREADS = 1, -1


_load_xgboost = treelite.frontend.load_xgboost_model

#: The default name of a file and the function that loads it, by ``model_type``.
_FORMATS: dict[str, tuple[str, Callable[..., treelite.Model]]] = {
    "xgboost": ("xgboost.model", treelite.frontend.load_xgboost_model_legacy_binary),
    "xgboost_json": ("xgboost.json", functools.partial(_load_xgboost, format_choice="json")),
    "xgboost_ubj": ("xgboost.ubj", functools.partial(_load_xgboost, format_choice="ubjson")),
    "lightgbm": ("model.txt", treelite.frontend.load_lightgbm_model),
    "treelite_checkpoint": ("checkpoint.tl", treelite.Model.deserialize),
}

#: A member of an XGBoost file, in JSON and in UBJSON.
_TEXT_MEMBER = rb'%s(?:"\s*:\s*"|SL.{8})%s'
_BEST_ITERATION = re.compile(_TEXT_MEMBER % (b"best_iteration", rb"(\d+)"), re.DOTALL)
_PARALLEL_TREES = re.compile(_TEXT_MEMBER % (b"num_parallel_tree", rb"(\d+)"), re.DOTALL)

#: What treelite predicts wrongly, or refuses with a text about its parser, by the reason and the remedy.
_UNSUPPORTED = {
    # Bits 2 and 3 of a decision are 1 if zero is missing; bit 0 is a category, where that has no effect.
    "zero_as_missing of LightGBM: train with zero_as_missing=false, and NaN for missing values": re.compile(
        rb"^decision_type=(?:\d+ )*(?:4|6)(?: |\r?$)", re.MULTILINE
    ),
    "linear trees of LightGBM: train with linear_tree=false": re.compile(rb"^is_linear=1", re.MULTILINE),
    "linear models of XGBoost (gblinear), which have no trees: train with gbtree or dart": re.compile(
        _TEXT_MEMBER % (b"name", b"gblinear"), re.DOTALL
    ),
    "categories of pandas in XGBoost: train with their codes (Series.cat.codes), and feature_types 'c'": re.compile(
        rb'"enc"\s*:\s*\[\s*\{|enc\[#L(?!\0{8})'
    ),
}

#: Parameters of earlier releases: what to use instead.
_REMOVED = {
    "algo": "layout",
    "threads_per_tree": "chunk_size",
    "output_class": "is_classifier",
    "storage_type": "",
    "blocks_per_sm": "",
    "use_experimental_optimizations": "",
}


class FilOptions:
    """The parameters of a model.

    Parameters
    ----------
    context : ModelContext

    Attributes
    ----------
    is_classifier : bool
        ``is_classifier``, or ``output_class`` as it was called before.
    predict_proba : bool
        Whether a classifier outputs probabilities instead of the number of the class.
    threshold : float
        The probability above which a binary classifier outputs 1.
    threads : int
        ``cpu_nthread``: the threads of one execution; -1 for one on each core.

    Raises
    ------
    InvalidArgumentError
        If a parameter has an invalid value, or ``is_classifier`` is missing.
    """

    def __init__(self, context: ModelContext) -> None:
        parameters = context.parameters
        name = "is_classifier" if "output_class" not in parameters else "output_class"
        if name not in parameters:
            raise InvalidArgumentError(f"Required parameter {name} not found in config")
        self.is_classifier = model_checks.boolean_parameter(context, name, False)
        self.predict_proba = model_checks.boolean_parameter(context, "predict_proba", False)
        self.threshold = model_checks.read_parameter(context, "threshold", 0.5, float, "a number")
        self.threads = model_checks.integer_parameter(context, "cpu_nthread", DEFAULT_THREADS)

    def output_sizes(self, classes: int) -> tuple[int, ...]:
        """Return the sizes that the output may have for a number of classes; 1 for regression and two classes."""
        if self.is_classifier and not self.predict_proba:
            return (1,)
        if self.is_classifier and classes == 1:
            return (1, 2)
        return (classes,)


def load_trees(context: ModelContext) -> treelite.Model:
    """Load the model file of a model version.

    Raises
    ------
    UnsupportedError
        If ``model_type`` is unknown, or the model has several targets.
    UnavailableError
        If the file does not exist.
    UnknownError
        If treelite cannot read it.
    """
    kind = context.parameters.get("model_type", "xgboost")
    if kind not in _FORMATS:
        raise UnsupportedError(f"{kind} not recognized as a valid serialization format.")
    filename, load = _FORMATS[kind]
    # UNAVAILABLE is the status of Triton's FIL backend; most others have NOT_FOUND.
    path = model_checks.find_model_file(context, filename, error=UnavailableError)
    allow_unknown = model_checks.boolean_parameter(context, "xgboost_allow_unknown_field", False)
    # Searched before treelite reads it, because treelite accepts some of these files and predicts wrong values without
    # a word.
    content = path.read_bytes()
    for what, pattern in _UNSUPPORTED.items():
        if pattern.search(content):
            raise UnsupportedError(f"unable to load '{path}' of model '{context.name}': treelite cannot predict {what}")
    try:
        model = load(path, allow_unknown_field=allow_unknown) if kind.startswith("xgboost_") else load(path)
    except (treelite.TreeliteError, UnicodeDecodeError, RuntimeError) as error:
        text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise UnknownError(f"unable to load '{path}' of model '{context.name}' as {kind}: {text}") from error
    if _field(model, "num_target") != 1:
        raise UnsupportedError(f"model '{context.name}': Multi-target model not supported")
    if kind.startswith("xgboost_"):
        _drop_trees_after_best_iteration(context, model, content)
    return model


def _drop_trees_after_best_iteration(context: ModelContext, model: treelite.Model, content: bytes) -> None:
    """Let the trees that early stopping rejected add nothing, as XGBoost's scikit-learn interface does.

    treelite does not read the attribute, and Triton's backend uses all trees.
    """
    best, parallel = _BEST_ITERATION.search(content), _PARALLEL_TREES.search(content)
    # Trained without early stopping: all trees count.
    if best is None:
        return
    trees = (int(best[1]) + 1) * max(1, int(parallel[1]) if parallel else 1) * _field(model, "num_class")
    if trees >= model.num_tree:
        return
    logger.info(
        "model '%s': predicts with the %d trees up to the best iteration, of %d", context.name, trees, model.num_tree
    )
    for number in range(trees, model.num_tree):
        tree = model.get_tree_accessor(number)
        # A tree with leaves of 0 adds nothing, which is simpler than taking it out of the model.
        tree.set_field("leaf_value", np.zeros_like(tree.get_field("leaf_value")))


def _field(model: treelite.Model, name: str) -> int:
    return int(model.get_header_accessor().get_field(name)[0])


class FilBackend(Backend):
    """The backend for tree models."""

    name = "fil"

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig:
        """Add the tensors, and batching, which every tree model supports."""
        config = context.config
        # Triton's FIL backend completes nothing; the file knows the number of features and classes, so there is nothing
        # to guess.
        if config.input and config.output:
            return config
        model, options = load_trees(context), FilOptions(context)
        size = options.output_sizes(_field(model, "num_class"))[-1]  # two probabilities, as the libraries
        model_checks.complete_config(
            config,
            [model_checks.ModelTensor(INPUT, FP32, (-1, model.num_feature))],
            [model_checks.ModelTensor(OUTPUT, FP32, (-1, size))],
            batching=True,
            default_max_batch_size=context.default_max_batch_size,
        )
        return config

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return FilModel(context)


class FilModel(BackendModel):
    """The trees of one file, which the instances share."""

    def initialize(self) -> None:
        """Load the file and check the configuration against it."""
        context = self.context
        for name, replacement in _REMOVED.items():
            if name in context.parameters:
                # A warning and not an error, since configurations of older releases should still load.
                advice = f"; use '{replacement}' instead" if replacement else ""
                logger.warning("model '%s': parameter '%s' was removed from Triton%s", context.name, name, advice)
        self.tensors = ConfiguredTensors(context.config)
        self.options = FilOptions(context)
        self.trees = load_trees(context)
        self.classes = _field(self.trees, "num_class")
        _check_config(context, self.tensors, self.trees.num_feature, self.options.output_sizes(self.classes))

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance."""
        if spec.kind == "KIND_GPU":
            raise UnsupportedError(
                f"model '{self.context.name}': expected instances of KIND_CPU, got KIND_GPU: the fil backend runs on "
                "the CPU only; set instance_group { kind: KIND_CPU }"
            )
        return FilInstance(self)


class FilInstance(BackendModelInstance):
    """An instance that predicts with the model's trees."""

    def __init__(self, model: FilModel) -> None:
        self._model = model
        self._output = model.tensors.spec.outputs[OUTPUT]

    def execute(self, execution: Execution) -> None:
        """Gather, predict, scatter."""
        model = self._model
        rows = gather(execution, INPUT)
        if rows is None or rows.ndim != 2 or rows.shape[1] != model.trees.num_feature:
            # GTIL would read outside of the array.
            raise InvalidArgumentError(
                f"model '{model.context.name}': input '{INPUT}' expected shape [-1,{model.trees.num_feature}], got "
                f"{'no tensor' if rows is None else list(rows.shape)}"
            )
        execution.compute_started()
        try:
            scores = self._predict(np.ascontiguousarray(rows))
        except treelite.TreeliteError as error:
            raise InternalError(f"model '{model.context.name}': treelite failed: {error}") from error
        values = self._postprocess(scores.reshape(len(rows), -1))
        execution.compute_ended()
        scatter(execution, {OUTPUT: (self._output, values)}, model.tensors.batching)

    def _predict(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Predict with the configured number of threads, or with as many as OpenMP allows if it does not allow these.

        The limit depends on the machine, and other libraries of this process, such as PyTorch, change it while models
        run. An error that has another cause occurs again.
        """
        model = self._model
        try:
            # One thread by default: with a thread on each core, a batch of 16 rows took 100 times as long on a busy
            # machine with two cores.
            return np.asarray(treelite.gtil.predict(model.trees, rows, nthread=model.options.threads))
        except treelite.TreeliteError:
            return np.asarray(treelite.gtil.predict(model.trees, rows, nthread=ALLOWED_THREADS))

    def _postprocess(self, scores: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the output for the scores of shape [rows, classes], as Triton's backend computes it from them.

        As there, dims of size 1 do not appear in the shape of the output.
        """
        options = self._model.options
        if options.is_classifier and not options.predict_proba:
            if self._model.classes > 1:
                # Triton looks for scores above 0.
                return np.asarray(np.argmax(np.maximum(scores, 0), axis=1), np.float32)
            return (scores[:, 0] > options.threshold).astype(np.float32)
        if self._model.classes == 1:
            # A binary classifier may be configured with one probability or with two; the libraries return two.
            if options.is_classifier and self._output.backend_dims[-1] == 2:
                return np.concatenate([1 - scores, scores], axis=1).astype(np.float32)
            return scores[:, 0].astype(np.float32)
        return scores.astype(np.float32)


def _check_config(context: ModelContext, tensors: ConfiguredTensors, features: int, sizes: tuple[int, ...]) -> None:
    """Check names, datatypes and dims of the configured tensors."""
    outputs, batching = tensors.spec.outputs, tensors.batching
    if SHAPLEY_OUTPUT in outputs:
        raise UnsupportedError(
            f"model '{context.name}': expected the output {OUTPUT} only, got '{SHAPLEY_OUTPUT}': treelite does not "
            "compute Shapley values; remove the output"
        )

    def check(tensor: TensorSpec, allowed: tuple[int, ...], kind: str) -> None:
        model_checks.check_datatype(context.name, tensor, FP32, kind)
        dims = tensor.backend_dims[not batching :]
        # Triton's backend removes dims of size 1 from the output.
        fits = [(size,) for size in allowed] + [(-1,)] * (kind == "input") + [()] * (1 in allowed and not batching)
        if dims not in fits:
            shape = (-1, allowed[0])
            expected = (-1, *dims) if batching else tensor.backend_dims
            raise model_checks.shape_error(context.name, tensor.name, shape, expected, batching)

    tensors.check({INPUT: (features,)}, {OUTPUT: sizes}, check, has_other_inputs=True)
    model_checks.check_input_count(context.name, len(tensors.inputs), 1)
    if not outputs:
        raise InvalidArgumentError(f"model '{context.name}': expected the output '{OUTPUT}', got none")
