"""`materialize`: create the example model repository in a directory."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tritonnb.model_zoo import dense, digits_pt2, digits_tensorflow, magika, ocr, silero_vad, tiny_gpt
from tritonnb.model_zoo.sources import bundled_repository, graph_digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class _GeneratedFile:
    """A file that is generated or copied, and its expected SHA-256, or what ``digest`` returns in its place.

    ``with_config`` is for models that are not part of this package: ``write`` also writes their *config.pbtxt*.
    """

    path: str
    write: Callable[[Path], None]
    sha256: str
    digest: Callable[[Path], str] = _digest
    install: str = 'pip install "tritonnb[examples]"'
    with_config: bool = False


_GENERATED_FILES = (
    _GeneratedFile("dense/1/model.onnx", dense.write, dense.SHA256, dense.digest),
    _GeneratedFile("magika/1/model.onnx", magika.write_model, magika.MODEL_SHA256),
    _GeneratedFile("magika/labels.txt", magika.write_labels, magika.LABELS_SHA256),
    _GeneratedFile("ocr_detection/1/model.onnx", ocr.write_detection, ocr.DETECTION_SHA256, graph_digest, ocr.INSTALL),
    _GeneratedFile("ocr_recognition/1/model.onnx", ocr.write_recognition, ocr.RECOGNITION_SHA256, install=ocr.INSTALL),
    _GeneratedFile("ocr_text/1/characters.txt", ocr.write_characters, ocr.CHARACTERS_SHA256, install=ocr.INSTALL),
    _GeneratedFile("silero_vad/1/model.onnx", silero_vad.write, silero_vad.SHA256, graph_digest),
    _GeneratedFile("tiny_gpt/1/weights.pt", tiny_gpt.write, tiny_gpt.CURRENT, tiny_gpt.state_of),
    _GeneratedFile(
        "digits_tensorflow/1/model.savedmodel/saved_model.pb",
        digits_tensorflow.write,
        digits_tensorflow.SHA256,
        digits_tensorflow.digest,
        'pip install "tritonnb[tensorflow,torch]"',
        with_config=True,
    ),
)
#: Files that take long to generate.
_COMPILED_FILES = (
    _GeneratedFile(
        "digits_pt2/1/model.pt2",
        digits_pt2.write,
        digits_pt2.SHA256,
        digits_pt2.digest,
        'pip install "tritonnb[pt2]", and a C++ compiler',
        with_config=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `materialize`, one line per file."""

    directory: Path
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"model repository {self.directory}", *(f"  {line}" for line in self.lines)])


def materialize(directory: str | os.PathLike[str], *, compile: bool = False) -> Report:
    """Create the example models in a model repository; correct files that already exist are kept.

    Parameters
    ----------
    directory : path
        Created if it does not exist.
    compile : bool, optional
        Whether to create the models that are compiled for this machine, too: ``digits_pt2``, in about half a minute.

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
    _copy_missing(bundled_repository(), target)
    for file in _GENERATED_FILES + _COMPILED_FILES * compile:
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
    if not compile:
        lines += [
            f"{file.path}: skipped, compiling takes a while: tritonnb models --compile" for file in _COMPILED_FILES
        ]
    return Report(target, tuple(lines))


def _copy_missing(source: Path, target: Path) -> None:
    every = _GENERATED_FILES + _COMPILED_FILES
    generated = {file.path for file in every}
    not_bundled = {file.path.partition("/")[0] for file in every if file.with_config}
    for file in source.rglob("*"):
        relative = file.relative_to(source)
        is_bundled = file.is_file() and "__pycache__" not in relative.parts and relative.as_posix() not in generated
        if is_bundled and relative.parts[0] not in not_bundled and not (target / relative).exists():
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
            raise ValueError(f"{file.path}: expected {file.sha256}, got {digest}; is a package outdated?")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
        with suppress(OSError):  # not if there is a file; an empty model directory would be a model that fails to load
            os.removedirs(path.parent)
