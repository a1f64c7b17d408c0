"""``magika``: Google's file type classifier, from the package ``magika`` (Apache-2.0).

The input of the network is 1024 bytes from the beginning and 1024 from the end of a file; `features` extracts them as
the package does.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tritonnb.model_zoo.sources import package_directory

#: The model that ships with magika 1.0.
MODEL = "standard_v3_3"
MODEL_SHA256 = "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"
LABELS_SHA256 = "38af69737498b9b07cd1e84a5bcf6b29fed340edeb717dcc3fa4684eaff0e930"

_PART = 1024
_PADDING = 256
_BLOCK = 4096
_BLANKS = b" \t\n\r\x0b\x0c"


def features(content: bytes) -> npt.NDArray[np.int32]:
    """Return the input of the network for a file.

    Parameters
    ----------
    content : bytes
        The whole file.

    Returns
    -------
    numpy.ndarray
        INT32 of shape [1, 2048]: the model's input ``bytes`` for a batch of one.
    """
    begin = content[:_BLOCK].lstrip(_BLANKS)[:_PART]
    end = content[-_BLOCK:].rstrip(_BLANKS)[-_PART:]
    values = np.full((1, 2 * _PART), _PADDING, np.int32)
    values[0, : len(begin)] = np.frombuffer(begin, np.uint8)
    values[0, 2 * _PART - len(end) :] = np.frombuffer(end, np.uint8)
    return values


def write_model(path: Path) -> None:
    """Copy the ONNX file out of the installed package."""
    shutil.copyfile(_directory() / "model.onnx", path)


def write_labels(path: Path) -> None:
    """Write the names of the classes, one per line."""
    config = json.loads((_directory() / "config.min.json").read_text())
    path.write_text("".join(f"{label}\n" for label in config["target_labels_space"]))


def _directory() -> Path:
    return package_directory("magika") / "models" / MODEL
