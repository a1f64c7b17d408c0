"""Which backend runs a model: filling in name, platform, backend and model file.

What the configuration leaves out is concluded from what it gives, or from the files of the first
version directory; then platform and backend must agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.suggestions import similar_name

ENSEMBLE = "ensemble"
#: The group of entry points that backends are found in.
BACKEND_GROUP = "tritonnb.backends"


@dataclass(frozen=True, slots=True)
class _Known:
    """A backend that Triton recognises by its model file."""

    backend: str
    filename: str
    platform: str = ""
    is_directory: bool | None = False  # None: a file or a directory


#: In the order in which Triton tries them. Only the first four backends have platforms.
_KNOWN = (
    _Known("tensorflow", "model.graphdef", "tensorflow_graphdef"),
    _Known("tensorflow", "model.savedmodel", "tensorflow_savedmodel", True),
    _Known("tensorrt", "model.plan", "tensorrt_plan"),
    _Known("onnxruntime", "model.onnx", "onnxruntime_onnx", None),
    _Known("openvino", "model.xml", is_directory=None),
    _Known("pytorch", "model.pt", "pytorch_libtorch"),
    _Known("python", "model.py", is_directory=None),
)
_BACKEND_OF_PLATFORM = {each.platform: each.backend for each in _KNOWN if each.platform}


def fill_in_backend(config: Any, directory: Path, name: str) -> None:
    """Fill in ``name``, ``platform``, ``backend`` and ``default_model_filename`` where they are missing.

    Raises
    ------
    InvalidArgumentError
        If nothing tells which backend to use.
    """
    if not config.name:
        config.name = name
    content = _first_version_content(directory)
    for known in _KNOWN:
        if _is(known, config, content):
            config.backend = config.backend or known.backend
            config.platform = config.platform or known.platform
            if not (known.backend == "pytorch" and config.runtime == "model.py"):
                config.default_model_filename = config.default_model_filename or known.filename
            return
    if not (config.backend or config.platform or config.default_model_filename):
        _, dot, backend = name.partition(".")
        if not dot:
            raise InvalidArgumentError(
                f"Invalid model name: Could not determine backend for model '{name}' with no backend in "
                "model configuration. Expected model name of the form 'model.<backend_name>'."
            )
        config.backend = backend
        config.default_model_filename = f"model.{backend}"


def similar_backend(name: str, installed: Iterable[str]) -> str:
    """The installed backend that a name was perhaps meant to be; empty where there is none.

    Examples
    --------
    >>> similar_backend("torch", ["onnxruntime", "python", "pytorch"])
    'pytorch'
    >>> similar_backend("libtorch", ["onnxruntime", "python", "pytorch"])
    'pytorch'
    """
    backend_of = {backend: backend for backend in installed}
    backend_of |= {platform: backend for platform, backend in _BACKEND_OF_PLATFORM.items() if backend in backend_of}
    return backend_of.get(similar_name(name.lower(), backend_of), "")


def check_backend(config: Any) -> None:
    """Check that platform and backend are given and agree.

    Raises
    ------
    InvalidArgumentError
        If not.
    """
    name, platform, backend = config.name, config.platform, config.backend
    if not backend and platform != ENSEMBLE:
        raise InvalidArgumentError(f"unexpected platform type '{platform}' for {name}")
    if backend and platform == ENSEMBLE:
        raise InvalidArgumentError(f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type")
    # Any platform goes with a backend that has none of its own.
    if backend in _BACKEND_OF_PLATFORM.values() and _BACKEND_OF_PLATFORM.get(platform) != backend:
        raise InvalidArgumentError(f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}")


def check_runtime(config: Any, directory: Path, version: int, backends: Path) -> None:
    """Check that ``runtime``, if given, names the library of the backend.

    Parameters
    ----------
    config : inference.ModelConfig
    directory : pathlib.Path
        The model's directory.
    version : int
    backends : pathlib.Path
        The backend directory.

    Raises
    ------
    InvalidArgumentError
        If it does not.
    """
    name, backend, runtime = config.name, config.backend, config.runtime
    if runtime in ("", f"libtriton_{backend}.so"):
        return
    if runtime == "model.py":
        library = backends / backend / runtime
        if library.is_file():
            return
        raise InvalidArgumentError(
            f"unable to find Python backend based backend library '{runtime}' for model '{name}', searched: '{library}'"
        )
    places = (directory / str(version), directory, backends / backend)
    for place in places:
        if ".." in PurePath(runtime).parts and (place / runtime).is_file():
            raise InvalidArgumentError(
                f"backend library name '{runtime}' escapes backend directory '{place}', for model "
                f"'{name}', check model config runtime field"
            )
    searched = "".join(f"'{place}' " for place in places)
    raise InvalidArgumentError(f"unable to find backend library '{runtime}' for model '{name}', searched: {searched}")


def _is(known: _Known, config: Any, content: dict[str, bool]) -> bool:
    needs_platform = known.backend == "tensorflow"
    if needs_platform and config.platform:
        return bool(config.platform == known.platform)  # whatever the backend
    if config.backend and config.backend != known.backend:
        return False
    if not needs_platform and (config.backend or (known.platform and config.platform == known.platform)):
        return True
    if config.default_model_filename:
        return bool(config.default_model_filename == known.filename)
    if config.platform or known.filename not in content:
        return False
    return known.is_directory is None or content[known.filename] == known.is_directory


def _first_version_content(directory: Path) -> dict[str, bool]:
    """Names in the first subdirectory, in the order of their names, and whether each is a directory."""
    versions = sorted(each for each in directory.iterdir() if each.is_dir())
    return {each.name: each.is_dir() for each in versions[0].iterdir()} if versions else {}
