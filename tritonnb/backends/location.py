"""The location of the class of a backend: any process can create it from there.

Backends are found by name, through the entry point group ``tritonnb.backends``: the built-in backends are registered in
the same way as backends of other packages. A backend written in Python, as on Triton, is a directory with a *model.py*
in the backend directory; a backend in C++ is a shared library.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from tritonnb.backends.contract import Backend
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.model_config.backend_selection import BACKEND_GROUP

#: Triton's default of ``--backend-directory``: its container has its backends there.
BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")

#: The package that a backend needs, and the extra that installs it.
REQUIREMENTS = {
    "fil": ("treelite", "fil"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "openvino": ("openvino", "openvino"),
    "pytorch": ("torch", "torch"),
    "tensorflow": ("tensorflow", "tensorflow"),
    "tensorrt": ("tensorrt", "tensorrt"),
}

#: What can be used instead of a backend whose package is not installed, or that is not implemented.
_ALTERNATIVES = {
    "tensorrt": "serve the model's ONNX file with the onnxruntime backend and gpu_execution_accelerator { name: "
    '"tensorrt" }, or run the plan on Triton',
    "dali": "preprocess in a Python model, or run the pipeline on Triton",
}

#: The classes of backends that are a file: the *model.py* of a backend directory, and a shared library.
_PYTHON, _NATIVE = "tritonnb.backends.python.backend:PythonBackend", "tritonnb.backends.native.backend:NativeBackend"


@dataclass(frozen=True, slots=True)
class BackendLocation:
    """The location of the class of a backend: all that another process needs to create it.

    Attributes
    ----------
    name : str
    entry_point : str
        ``module:class``.
    arguments : tuple of str
        Of the class.
    directory : str
        The working directory of its own processes; empty for the current one.
    """

    name: str
    entry_point: str
    arguments: tuple[str, ...] = ()
    directory: str = ""

    def create(self) -> Backend:
        """Create the backend.

        Raises
        ------
        UnsupportedError
            If a library that it needs is not installed.
        """
        try:
            # An entry point and not a class, because a child process has to import the backend by itself.
            backend: Backend = EntryPoint(self.name, self.entry_point, BACKEND_GROUP).load()(*self.arguments)
        except ImportError as error:
            # The import error alone names a module, which is not always the name of its package.
            advice = f': pip install "tritonnb[{REQUIREMENTS[self.name][1]}]"' if self.name in REQUIREMENTS else ""
            advice += f", or {_ALTERNATIVES[self.name]}" if self.name in _ALTERNATIVES else ""
            raise UnsupportedError(
                f"backend '{self.name}' requires a package that is not installed: {error}{advice}"
            ) from error
        return backend


def find_backend(name: str, directory: Path | None = None, library: Path | None = None) -> BackendLocation:
    """Find the class of a backend.

    Parameters
    ----------
    name : str
    directory : pathlib.Path, optional
        ``--backend-directory``.
    library : pathlib.Path, optional
        The shared library or the *model.py* that implements it.

    Raises
    ------
    InvalidArgumentError
        If a backend with this name does not exist.
    UnsupportedError
        If the backend exists on Triton only.
    """
    # The caller has searched the version, model and backend directories for it, in Triton's order.
    if library is not None and library.suffix == ".py":
        return BackendLocation(name, _PYTHON, (str(library),))
    if library is not None:
        return BackendLocation(name, _NATIVE, (str(library), name))
    registered = list(entry_points(group=BACKEND_GROUP, name=name))
    if registered:
        return BackendLocation(name, registered[0].value)
    if directory is not None and (file := directory / name / "model.py").is_file():
        return BackendLocation(name, _PYTHON, (str(file),))
    if name in _ALTERNATIVES:
        raise UnsupportedError(f"backend '{name}' is not available: {_ALTERNATIVES[name]}")
    raise InvalidArgumentError(
        f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
    )
