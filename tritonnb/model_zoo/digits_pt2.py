"""``digits_pt2``: the network of `tritonnb.model_zoo.digits`, compiled with PyTorch for this machine.

An archive runs on machines with the same kind of processor and the same version of PyTorch, so that it is not part of
this package. Compiling it takes about half a minute, and needs a C++ compiler.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAX_BATCH_SIZE = 64
#: Checksum of the classes that the network finds in `_images`: all ten, with a clear distance to the next best.
SHA256 = "e0d9ad44d645c457f565a4b7f8df802cfc3be63f298be8a9594aef6198cef379"


def write(path: Path) -> None:
    """Compile the network, and write the archive and the *config.pbtxt* of its model.

    Parameters
    ----------
    path : pathlib.Path
        *MODEL/1/FILE*; the configuration is written to *MODEL/config.pbtxt*.

    Raises
    ------
    ImportError
        If ``torch`` or a C++ compiler is not installed.
    """
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ImportError("expected a C++ compiler, got none", name="g++")
    import torch

    from tritonnb.backends.pt2_export import export_pt2
    from tritonnb.model_zoo.digits import load_network

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / path.parents[1].name
        export_pt2(load_network(), (torch.zeros(1, 8, 8),), directory, max_batch_size=MAX_BATCH_SIZE)
        shutil.move(directory / "1" / "model.pt2", path)
        shutil.move(directory / "config.pbtxt", path.parents[1] / "config.pbtxt")


def digest(path: Path) -> str:
    """Return the SHA-256 of the classes that an archive finds in some images; the file differs from machine to machine.

    Raises
    ------
    ImportError
        If ``torch`` is not installed.
    ValueError
        If PyTorch cannot run the archive on this machine.
    """
    import torch

    try:
        with path.open("rb") as file:  # a path would have to end in .pt2
            scores = torch._inductor.aoti_load_package(file)(torch.from_numpy(_images()))
    except OSError:
        raise
    except Exception as error:  # zipfile, JSON and PyTorch errors of all kinds
        raise ValueError(f"{path}: expected an archive for this machine, got an error: {error}") from error
    return hashlib.sha256(scores.argmax(dim=1).numpy().astype(np.uint8).tobytes()).hexdigest()


def _images() -> npt.NDArray[np.float32]:
    return (np.random.default_rng(0).random((64, 8, 8)) < 0.25).astype(np.float32)
