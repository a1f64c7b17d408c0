"""Selecting the backend that runs a model: completing name, platform, backend and model file.

Missing fields follow from the others, or from the files in the first version directory; afterwards platform and backend
must agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from tritonnb.core.errors import InvalidArgumentError, NotFoundError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import similar_name

ENSEMBLE = "ensemble"
#: The entry point group of backends.
BACKEND_GROUP = "tritonnb.backends"


@dataclass(frozen=True, slots=True)
class _KnownBackend:
    """A backend that Triton recognises by its model file."""

    backend: str
    filename: str
    platform: str = ""
    is_directory: bool | None = False  # None for either


#: In Triton's order of trial. Of those, openvino and python have no platform.
_KNOWN = (
    _KnownBackend("tensorflow", "model.graphdef", "tensorflow_graphdef"),
    _KnownBackend("tensorflow", "model.savedmodel", "tensorflow_savedmodel", True),
    _KnownBackend("tensorrt", "model.plan", "tensorrt_plan"),
    _KnownBackend("onnxruntime", "model.onnx", "onnxruntime_onnx", None),
    _KnownBackend("openvino", "model.xml", is_directory=None),
    _KnownBackend("pytorch", "model.pt", "pytorch_libtorch"),
    _KnownBackend("pytorch", "model.pt2", "torch_aoti"),
    _KnownBackend("python", "model.py", is_directory=None),
)
_BACKEND_OF_PLATFORM = {known.platform: known.backend for known in _KNOWN if known.platform}


def fill_in_backend(config: pb.ModelConfig, directory: Path, name: str) -> None:
    """Set ``name``, ``platform``, ``backend`` and ``default_model_filename`` if they are missing.

    Raises
    ------
    InvalidArgumentError
        If neither the configuration nor the files determine the backend.
    """
    if not config.name:
        config.name = name
    content = _first_version_content(directory)
    for known in _KNOWN:
        if _matches(known, config, content):
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
    """Return the installed backend with a similar name; empty if there is none.

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


def check_backend(config: pb.ModelConfig) -> None:
    """Check that platform and backend are set and agree.

    Raises
    ------
    InvalidArgumentError
        If they do not.
    """
    name, platform, backend = config.name, config.platform, config.backend
    if not backend and platform != ENSEMBLE:
        raise InvalidArgumentError(f"unexpected platform type '{platform}' for {name}")
    if backend and platform == ENSEMBLE:
        raise InvalidArgumentError(f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type")
    # Backends without their own platforms accept any platform.
    if backend in _BACKEND_OF_PLATFORM.values() and _BACKEND_OF_PLATFORM.get(platform) != backend:
        raise InvalidArgumentError(f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}")


def find_library(config: pb.ModelConfig, directory: Path, version: int, backends: Path) -> Path | None:
    """Return the file of a backend: a library, in Triton's search order (version, model, backend directory), or Python.

    Parameters
    ----------
    config : inference.ModelConfig
        Its ``runtime`` names the library; without one it is ``libtriton_<backend>.so``, or none.
    directory : pathlib.Path
        The model's directory.
    version : int
    backends : pathlib.Path
        The backend directory.

    Returns
    -------
    pathlib.Path or None
        None if neither ``runtime`` nor a library determines it; *model.py* for a backend that is written in Python.

    Raises
    ------
    InvalidArgumentError
        If ``runtime`` names a library that does not exist, or one in another directory.
    """
    name, backend, runtime = config.name, config.backend, config.runtime
    default = f"libtriton_{backend}.so"
    if runtime == "model.py":
        library = Path(backends, backend, runtime)
        if library.is_file():
            return library
        raise InvalidArgumentError(
            f"unable to find Python backend based backend library '{runtime}' for model '{name}', searched: '{library}'"
        )
    places = (directory / str(version), directory, backends / backend)
    file = runtime or default
    place = next((place for place in places if os.path.isfile(f"{place}/{file}")), None)
    if place is None:
        if runtime in ("", default):
            return None
        searched = "".join(f"'{place}' " for place in places)
        raise InvalidArgumentError(
            f"unable to find backend library '{runtime}' for model '{name}', searched: {searched}"
        )
    if ".." in PurePath(runtime).parts:
        raise InvalidArgumentError(
            f"backend library name '{runtime}' escapes backend directory '{place}', for model "
            f"'{name}', check model config runtime field"
        )
    # Triton's Python backend starts dedicated processes; the one here runs its models.
    return None if backend == "python" else Path(f"{place}/{file}")


def _matches(known: _KnownBackend, config: pb.ModelConfig, content: dict[str, bool]) -> bool:
    needs_platform = known.backend == "tensorflow"
    if needs_platform and config.platform:
        return bool(config.platform == known.platform)  # regardless of the backend
    if config.backend and config.backend != known.backend:
        return False
    if config.platform != known.platform and _BACKEND_OF_PLATFORM.get(config.platform) == known.backend:
        return False  # another platform of the backend
    if not needs_platform and (config.backend or (known.platform and config.platform == known.platform)):
        return True
    if config.default_model_filename:
        return bool(config.default_model_filename == known.filename)
    if config.platform or known.filename not in content:
        return False
    return known.is_directory is None or content[known.filename] == known.is_directory


def _first_version_content(directory: Path) -> dict[str, bool]:
    """Return the entries of the first version directory: for each name whether it is a directory."""
    versions = sorted(entry for entry in directory.iterdir() if entry.is_dir())
    return {entry.name: entry.is_dir() for entry in versions[0].iterdir()} if versions else {}


_PARAMETER = "TRITON_BATCH_STRATEGY_PATH"
_FILE = "batchstrategy.so"


def check_batch_strategy(config: pb.ModelConfig, directory: Path) -> None:
    """Check the parameter of custom batching.

    Raises
    ------
    InvalidArgumentError, NotFoundError
        If the model has a sequence batcher, or the file does not exist or is not in the model's directory.
    """
    if _PARAMETER not in config.parameters:
        return
    if config.HasField("sequence_batching"):
        raise InvalidArgumentError(
            "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy"
        )
    text = config.parameters[_PARAMETER].string_value
    if not (text and os.path.exists(text)):
        raise NotFoundError(f"Batching library path not found: {text}")
    if not Path(text).resolve().is_relative_to(directory.resolve()):
        raise InvalidArgumentError("Batching library path escapes model repository.")


def find_batch_strategy(config: pb.ModelConfig, directory: Path, version: int, backends: Path) -> Path | None:
    """Return the library for custom batching, in Triton's search order; None if there is none.

    Parameters
    ----------
    config : inference.ModelConfig
        It passes `check_batch_strategy`.
    directory : pathlib.Path
        The model's directory.
    version : int
    backends : pathlib.Path
        The backend directory.
    """
    if config.HasField("sequence_batching"):
        return None
    if _PARAMETER in config.parameters:
        return Path(config.parameters[_PARAMETER].string_value)
    places = (directory / str(version), directory, backends / config.backend)
    return next((place / _FILE for place in places if (place / _FILE).is_file()), None)
