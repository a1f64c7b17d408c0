"""`materialize`: the example model repository in a directory of one's own."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tritonnb.model_zoo import dense, magika, ocr, silero_vad
from tritonnb.model_zoo.sources import graph_digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class _Made:
    """A file that is made on the spot, and the SHA-256 of what has to come out."""

    path: str
    make: Callable[[Path], None]
    sha256: str
    digest: Callable[[Path], str] = _digest
    install: str = 'pip install "tritonnb[examples]"'


_MADE = (
    _Made("dense/1/model.onnx", dense.write, dense.SHA256, dense.digest),
    _Made("magika/1/model.onnx", magika.write_model, magika.MODEL_SHA256),
    _Made("magika/labels.txt", magika.write_labels, magika.LABELS_SHA256),
    _Made("ocr_detection/1/model.onnx", ocr.write_detection, ocr.DETECTION_SHA256, graph_digest, ocr.INSTALL),
    _Made("ocr_recognition/1/model.onnx", ocr.write_recognition, ocr.RECOGNITION_SHA256, install=ocr.INSTALL),
    _Made("ocr_text/1/characters.txt", ocr.write_characters, ocr.CHARACTERS_SHA256, install=ocr.INSTALL),
    _Made("silero_vad/1/model.onnx", silero_vad.write, silero_vad.SHA256, graph_digest),
)


@dataclass(frozen=True, slots=True)
class Report:
    """What `materialize` did, a line for each file or model."""

    directory: Path
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"model repository {self.directory}", *(f"  {line}" for line in self.lines)])


def materialize(directory: str | os.PathLike[str]) -> Report:
    """Put the example models into a model repository; what is there already stays.

    Parameters
    ----------
    directory : path
        Is created if need be.

    Returns
    -------
    Report
        Also says which model is left out, and what to install for it.

    Raises
    ------
    ValueError
        If a file does not come out as it should.
    """
    target = Path(directory)
    lines: list[str] = []
    _copy_missing(_bundled(), target)
    for each in _MADE:
        path = target / each.path
        try:
            if _is_right(path, each):
                lines.append(f"{each.path}: there")
                continue
            _write(path, each)
        except ImportError as error:
            lines.append(f"{each.path}: left out, {error.name} is missing: {each.install}")
        else:
            lines.append(f"{each.path}: made, {path.stat().st_size / 1e6:.1f} MB")
    return Report(target, tuple(lines))


def _bundled() -> Path:
    """The repository that comes with the package, or that of the checkout."""
    installed = Path(__file__).parent / "repository"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "model_repository"


def _copy_missing(source: Path, target: Path) -> None:
    made = {each.path for each in _MADE}
    for file in source.rglob("*"):
        relative = file.relative_to(source)
        wanted = file.is_file() and "__pycache__" not in relative.parts and relative.as_posix() not in made
        if wanted and not (target / relative).exists():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / relative)


def _is_right(path: Path, made: _Made) -> bool:
    try:
        return made.digest(path) == made.sha256
    except (OSError, ValueError):
        return False


def _write(path: Path, made: _Made) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        made.make(partial)
        found = made.digest(partial)
        if found != made.sha256:
            raise ValueError(f"{made.path} has the checksum {found}, expected {made.sha256}")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
