"""The Python backend: runs ``TritonPythonModel`` objects.

Semantics, limits and error texts follow Triton's Python backend, where each instance is a process; here it is a
thread. Unlike Triton's, this backend supports implicit state.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from pathlib import Path

from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.backends.python import module_import, pb_utils
from tritonnb.backends.python.coroutines import CoroutineRunner
from tritonnb.backends.python.executor import ModelExecutor
from tritonnb.backends.python.instance_binding import InstanceBinding
from tritonnb.backends.python.model_config import ModelConfig
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from tritonnb.core.failures import frames_to_notes
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diff import merge_completed
from tritonnb.model_config.json_config import parse_json
from tritonnb.model_config.to_json import config_to_json, message_to_dict

logger = logging.getLogger(__name__)


class PythonBackend(Backend):
    """``backend: "python"``, or a backend written in Python.

    Parameters
    ----------
    file : path, optional
        The *model.py* of a backend that is written in Python, which runs all models of the backend. If omitted, each
        model has its own file.
    """

    name = "python"
    supports_batch_tensors = True  # Triton's backend accepts them, and passes nothing of them to the model

    def __init__(self, file: Path | str | None = None) -> None:
        self._file = None if file is None else Path(file)

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Call the model's ``auto_complete_config``, if it has one."""
        _check_parameters(context)
        path = self._file or _model_path(context)
        binding = InstanceBinding(context.version_directory)
        binding.enter()
        module = module_import.import_model(path, pb_utils.utilities_for(binding))
        try:
            function = getattr(module_import.model_class(module, path), "auto_complete_config", None)
            if function is None:
                return context.config
            completed = function(ModelConfig(message_to_dict(context.config)))
            if not isinstance(completed, ModelConfig):
                raise InternalError(
                    f"auto_complete_config function in model '{context.name}' must return a valid "
                    "pb.ModelConfig object."
                )
            text = json.dumps(completed.as_dict())
        except InternalError:
            raise
        except BaseException as error:
            raise InternalError(module_import.describe(error)) from error
        finally:
            module_import.forget_model(module)
        return _merge_completed(context.config, text)

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return PythonModel(context, self._file)


class PythonModel(BackendModel):
    """A model that is written in Python."""

    def __init__(self, context: ModelContext, file: Path | None = None) -> None:
        super().__init__(context)
        self._path = file or _model_path(context)

    def initialize(self) -> None:
        """Check the parameters; the file itself is imported by each instance."""
        _check_parameters(self.context)

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance with its own ``TritonPythonModel``."""
        return PythonInstance(self.context, spec, self._path)


class PythonInstance(BackendModelInstance):
    """One ``TritonPythonModel``."""

    error_responses_fail = False

    def __init__(self, context: ModelContext, spec: InstanceSpec, path: Path) -> None:
        self._context = context
        self._spec = spec
        self._path = path
        self._binding = InstanceBinding(context.version_directory, context.server, spec.name)
        self._coroutines = CoroutineRunner()

    def initialize(self) -> None:
        """Import the file, create the object, and call its ``initialize``."""
        self._binding.enter()
        utilities = pb_utils.utilities_for(self._binding)
        self._module = module_import.import_model(self._path, utilities)
        try:
            model = module_import.model_class(self._module, self._path)()
            # `initialize` is optional on Triton; only `execute` is not.
            if hasattr(model, "initialize"):
                model.initialize(self._arguments())
        except InternalError:
            module_import.forget_model(self._module)
            raise
        except BaseException as error:
            module_import.forget_model(self._module)
            raise InternalError(module_import.describe(error), model_error=frames_to_notes(error)) from None
        # Only a warning, because Triton loads such a model and fails its requests.
        if not hasattr(model, "execute"):
            logger.warning(
                "model '%s': %s: expected TritonPythonModel to have a method execute(self, requests), got none: every "
                "request will fail",
                self._context.name,
                self._path,
            )
        self._model = model
        # A coroutine needs the event loop of its instance, which has its own thread.
        self.thread_agnostic = not inspect.iscoroutinefunction(getattr(model, "execute", None))
        self._executor = ModelExecutor(
            self._context.config,
            self._spec.name,
            self._path,
            model,
            utilities.InferenceRequest.received,
            self._coroutines,
        )
        # Only from here on: on Triton, a model that calls others in `initialize` or `finalize` gets an error.
        self._binding.executing = True

    def execute(self, execution: Execution) -> None:
        """Call the model's ``execute``."""
        self._binding.caller = execution.caller()
        self._binding.call(self._executor.execute, execution)

    def readiness_check(self) -> Callable[[], None] | None:
        """Return the model's ``is_ready``, if it has one."""
        return self._check_ready if hasattr(self._model, "is_ready") else None

    def _check_ready(self) -> None:
        try:
            ready = self._model.is_ready()
            if inspect.iscoroutine(ready):
                ready = self._coroutines.run_from_other_thread(ready)
        except BaseException as error:
            raise InternalError(module_import.describe(error)) from None
        # Strict as on Triton: a truthy value is more likely a mistake than a yes.
        if not isinstance(ready, bool):
            raise InternalError("is_ready() must return a boolean value")
        if not ready:
            raise UnavailableError(f"Model '{self._spec.name}' is not ready (user-defined check failed).")

    def finalize(self) -> None:
        """Call the model's ``finalize``; its exceptions are logged and ignored."""
        self._binding.executing = False
        if hasattr(self._model, "finalize"):
            try:
                self._model.finalize()
            except BaseException:
                logger.exception("finalize of model instance '%s' failed", self._spec.name)
        del self._model, self._executor  # also deletes its metrics
        module_import.forget_model(self._module)
        self._coroutines.close()

    def _arguments(self) -> dict[str, str]:
        context, spec = self._context, self._spec
        # All values are strings, as on Triton, even numbers: models parse them.
        return {
            "model_config": config_to_json(context.config),
            "model_instance_kind": spec.kind.removeprefix("KIND_"),
            "model_instance_name": spec.name,
            "model_instance_device_id": str(spec.device_id),
            "model_repository": str(context.directory),
            "model_version": str(context.version),
            "model_name": context.name,
        }


def _model_path(context: ModelContext) -> Path:
    return context.version_directory / (context.config.default_model_filename or "model.py")


def _check_parameters(context: ModelContext) -> None:
    """Check the parameters that configure the stub process on Triton."""
    cpu_only = context.parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
    if cpu_only not in ("yes", "no"):
        # The stray quote is Triton's.
        raise UnsupportedError(f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {cpu_only}'")
    environment = context.parameters.get("EXECUTION_ENV_PATH", "")
    if environment:
        path = environment.replace("$$TRITON_MODEL_DIRECTORY", str(context.directory))
        # Triton's error first, so that a wrong path is reported in the same way on both.
        if not Path(path).exists():
            raise InternalError(f"Failed to get the canonical path for {path}.")
        raise UnsupportedError(
            f"model '{context.name}': EXECUTION_ENV_PATH is not supported, since every model runs in this process's "
            "environment; install its packages there and remove the parameter"
        )


def _merge_completed(config: pb.ModelConfig, text: str) -> pb.ModelConfig | None:
    """`merge_completed` for JSON; also None if it cannot be read."""
    try:
        completed = parse_json(text)
    except InvalidArgumentError as error:
        logger.warning(
            "model '%s': expected a model configuration from auto_complete_config, got: %s", config.name, error.message
        )
        return None
    return merge_completed(config, completed)
