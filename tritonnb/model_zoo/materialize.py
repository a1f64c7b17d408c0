"""`materialize`: create the example model repository in a directory."""

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
class _GeneratedFile:
    """A file that is generated or copied, and its expected SHA-256."""

    path: str
    write: Callable[[Path], None]
    sha256: str
    digest: Callable[[Path], str] = _digest
    install: str = 'pip install "tritonnb[examples]"'


_GENERATED_FILES = (
    _GeneratedFile("dense/1/model.onnx", dense.write, dense.SHA256, dense.digest),
    _GeneratedFile("magika/1/model.onnx", magika.write_model, magika.MODEL_SHA256),
    _GeneratedFile("magika/labels.txt", magika.write_labels, magika.LABELS_SHA256),
    _GeneratedFile("ocr_detection/1/model.onnx", ocr.write_detection, ocr.DETECTION_SHA256, graph_digest, ocr.INSTALL),
    _GeneratedFile("ocr_recognition/1/model.onnx", ocr.write_recognition, ocr.RECOGNITION_SHA256, install=ocr.INSTALL),
    _GeneratedFile("ocr_text/1/characters.txt", ocr.write_characters, ocr.CHARACTERS_SHA256, install=ocr.INSTALL),
    _GeneratedFile("silero_vad/1/model.onnx", silero_vad.write, silero_vad.SHA256, graph_digest),
)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `materialize`, one line per file."""

    directory: Path
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"model repository {self.directory}", *(f"  {line}" for line in self.lines)])


def materialize(directory: str | os.PathLike[str]) -> Report:
    """Create the example models in a model repository; correct files that already exist are kept.

    Parameters
    ----------
    directory : path
        Created if it does not exist.

    Returns
    -------
    Report
        Also lists the files that were skipped, and what to install for them.

    Raises
    ------
    ValueError
        If a generated file does not have the expected checksum.
    """
    target = Path(directory)
    lines: list[str] = []
    _copy_missing(_bundled(), target)
    for file in _GENERATED_FILES:
        path = target / file.path
        try:
            if _is_correct(path, file):
                lines.append(f"{file.path}: already there")
                continue
            _write(path, file)
        except ImportError as error:
            lines.append(f"{file.path}: skipped, {error.name} is not installed: {file.install}")
        else:
            lines.append(f"{file.path}: created, {path.stat().st_size / 1e6:.1f} MB")
    return Report(target, tuple(lines))


def _bundled() -> Path:
    """The repository in the installed package, or in the checkout."""
    installed = Path(__file__).parent / "repository"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "model_repository"


def _copy_missing(source: Path, target: Path) -> None:
    generated = {file.path for file in _GENERATED_FILES}
    for file in source.rglob("*"):
        relative = file.relative_to(source)
        is_bundled = file.is_file() and "__pycache__" not in relative.parts and relative.as_posix() not in generated
        if is_bundled and not (target / relative).exists():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / relative)


def _is_correct(path: Path, file: _GeneratedFile) -> bool:
    try:
        return file.digest(path) == file.sha256
    except (OSError, ValueError):
        return False


def _write(path: Path, file: _GeneratedFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        file.write(partial)
        digest = file.digest(partial)
        if digest != file.sha256:
            raise ValueError(f"{file.path}: expected the SHA-256 {file.sha256}, got {digest}; is a package outdated?")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
