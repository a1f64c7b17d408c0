"""Where models are taken from: data files of installed packages, and ONNX graphs rebuilt around them."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any


def package_directory(name: str) -> Path:
    """The directory of an installed package, which is not imported.

    Raises
    ------
    ImportError
        Where it is not installed; ``error.name`` is what to install.
    """
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        distribution = name.replace("_", "-")
        raise ImportError(f"{distribution} is not installed", name=distribution)
    return Path(found.origin).parent


def graph_digest(path: Path) -> str:
    """The SHA-256 of the graph in an ONNX file; what stands around it depends on the version of ``onnx``.

    Raises
    ------
    ImportError
        Where ``onnx`` is not installed.
    ValueError
        If it is no such file.
    """
    return hashlib.sha256(load_graph(path).SerializeToString(deterministic=True)).hexdigest()


def load_graph(path: Path) -> Any:
    """The graph in an ONNX file.

    Raises
    ------
    ImportError
        Where ``onnx`` is not installed.
    ValueError
        If it is no such file.
    """
    from google.protobuf.message import DecodeError
    from onnx import load_model

    try:
        return load_model(path).graph
    except DecodeError as error:
        raise ValueError(f"{path} is no ONNX file") from error
