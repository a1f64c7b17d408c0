"""Backends by name, found through the entry point group ``tritonnb.backends``.

The built-in backends are registered in the same way as those of other packages. A backend written in Python, as on
Triton, is a directory with a *model.py* in the backend directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from tritonnb.backends.contract import Backend
from tritonnb.backends.python.backend import PythonBackend
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.model_config.backend_selection import BACKEND_GROUP

#: The package that a backend needs, and the extra that installs it.
REQUIREMENTS = {
    "fil": ("treelite", "fil"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "openvino": ("openvino", "openvino"),
    "pytorch": ("torch", "torch"),
    "tensorflow": ("tensorflow", "tensorflow"),
}


#: Backends of Triton that are not implemented, and what can be used instead.
_NOT_IMPLEMENTED = {
    "tensorrt": "serve the model's ONNX file with the onnxruntime backend and gpu_execution_accelerator { name: "
    '"tensorrt" }, or run the plan on Triton',
    "dali": "preprocess in a Python model, or run the pipeline on Triton",
}


class BackendRegistry:
    """The backends of one server; each is created and initialised when the first model needs it.

    Parameters
    ----------
    settings_of : callable
        Returns the ``--backend-config`` settings of a backend, by its name.
    directory : pathlib.Path, optional
        ``--backend-directory``.
    """

    def __init__(self, settings_of: Callable[[str], Mapping[str, str]], directory: Path | None = None) -> None:
        self._settings_of = settings_of
        self._directory = directory
        self._backends: dict[str, Backend] = {}
        self._lock = threading.Lock()  # models are loaded on several threads

    def get(self, name: str) -> Backend:
        """The backend with a name, created by the first call.

        Raises
        ------
        InvalidArgumentError
            If there is no backend with this name.
        UnsupportedError
            If a library that the backend needs is not installed, or the backend exists on Triton only.
        """
        with self._lock:
            if name not in self._backends:
                backend = self._create(name)
                backend.initialize(self._settings_of(name))
                self._backends[name] = backend
            return self._backends[name]

    def finalize(self) -> None:
        """Finalize every backend that was created."""
        for backend in self._backends.values():
            backend.finalize()
        self._backends.clear()

    def _create(self, name: str) -> Backend:
        file = self._directory / name / "model.py" if self._directory is not None else None
        if file is not None and file.is_file() and not entry_points(group=BACKEND_GROUP, name=name):
            return PythonBackend(file)
        return _create(name)


def _create(name: str) -> Backend:
    backends = entry_points(group=BACKEND_GROUP, name=name)
    if not backends and name in _NOT_IMPLEMENTED:
        raise UnsupportedError(f"backend '{name}' is not available: {_NOT_IMPLEMENTED[name]}")
    if not backends:
        raise InvalidArgumentError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
        )
    try:
        backend: Backend = next(iter(backends)).load()()
    except ImportError as error:
        advice = f': pip install "tritonnb[{REQUIREMENTS[name][1]}]"' if name in REQUIREMENTS else ""
        raise UnsupportedError(f"backend '{name}' requires a package that is not installed: {error}{advice}") from error
    return backend
