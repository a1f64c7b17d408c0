"""Sources of models: data files of installed packages, and the graphs in ONNX files."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path


def bundled_repository() -> Path:
    """Return the repository with the files of this package: in the installed package, or in the checkout."""
    installed = Path(__file__).parent / "repository"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "model_repository"


def package_directory(name: str) -> Path:
    """Return the directory of an installed package, without importing it.

    Raises
    ------
    ImportError
        If it is not installed; ``error.name`` is the distribution to install.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        distribution = name.replace("_", "-")
        raise ImportError(f"{distribution} is not installed", name=distribution)
    return Path(spec.origin).parent


def graph_digest(path: Path) -> str:
    """Return the SHA-256 of the graph in an ONNX file; the rest of the file depends on the version of ``onnx``.

    Raises
    ------
    ImportError
        If ``onnx`` is not installed.
    ValueError
        If it is not an ONNX file.
    """
    from google.protobuf.message import DecodeError
    from onnx import load_model

    try:
        graph = load_model(path).graph
    except DecodeError as error:
        raise ValueError(f"{path}: expected an ONNX file") from error
    return hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()
