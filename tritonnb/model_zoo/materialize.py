"""`materialize`: create the example model repository in a directory."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tritonnb.backends.location import REQUIREMENTS
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.read import read_config
from tritonnb.model_zoo import dense, digits, magika, ocr, silero_vad, tiny_gpt
from tritonnb.model_zoo.sources import bundled_repository, graph_digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class _GeneratedFile:
    """A file that is generated or copied, and its expected SHA-256, or what ``digest`` returns in its place.

    ``with_config`` is for models that are not part of this package: ``write`` also writes their *config.pbtxt*.
    ``compiled`` files take long to generate.
    """

    path: str
    write: Callable[[Path], None]
    sha256: str
    digest: Callable[[Path], str] = _digest
    install: str = ""
    with_config: bool = False
    compiled: bool = False

    @property
    def model(self) -> str:
        """The name of the model that the file belongs to."""
        return self.path.partition("/")[0]


_FILES = (
    _GeneratedFile("dense/1/model.onnx", dense.write, dense.SHA256, graph_digest),
    _GeneratedFile("magika/1/model.onnx", magika.write_model, magika.MODEL_SHA256),
    _GeneratedFile("magika/labels.txt", magika.write_labels, magika.LABELS_SHA256),
    _GeneratedFile("ocr_detection/1/model.onnx", ocr.write_detection, ocr.DETECTION_SHA256, graph_digest, ocr.INSTALL),
    _GeneratedFile("ocr_recognition/1/model.onnx", ocr.write_recognition, ocr.RECOGNITION_SHA256, install=ocr.INSTALL),
    _GeneratedFile("ocr_text/1/characters.txt", ocr.write_characters, ocr.CHARACTERS_SHA256, install=ocr.INSTALL),
    _GeneratedFile("silero_vad/1/model.onnx", silero_vad.write, silero_vad.SHA256, graph_digest),
    _GeneratedFile("tiny_gpt/1/weights.pt", tiny_gpt.write, tiny_gpt.CURRENT, tiny_gpt.state_of),
    _GeneratedFile(
        "digits_tensorflow/1/model.savedmodel/saved_model.pb",
        digits.write_tensorflow,
        digits.TENSORFLOW_SHA256,
        digits.digest_tensorflow,
        'pip install "tritonnb[tensorflow,torch]"',
        with_config=True,
    ),
    _GeneratedFile(
        "digits_pt2/1/model.pt2",
        digits.write_pt2,
        digits.PT2_SHA256,
        digits.digest_pt2,
        'pip install "tritonnb[pt2]", and a C++ compiler',
        with_config=True,
        compiled=True,
    ),
)
#: Models that use others without being ensembles: they call them, or share their files.
_USES = {"ocr_upright": ["ocr"], "tiny_gpt_static": ["tiny_gpt"]}


@dataclass(frozen=True, slots=True)
class MaterializeReport:
    """The result of `materialize`, one line per file."""

    directory: Path
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"model repository {self.directory}", *(f"  {line}" for line in self.lines)])


def materialize(
    directory: str | os.PathLike[str], models: Sequence[str] | None = None, *, compile: bool = False
) -> MaterializeReport:
    """Create the example models in a model repository; correct files that already exist are kept.

    Parameters
    ----------
    directory : path
        Created if it does not exist.
    models : sequence of str, optional
        The names of the models to create; by default all that the installed packages allow.
    compile : bool, optional
        Whether to create the models that are compiled for this machine, too: ``digits_pt2``, in about half a minute.

    Returns
    -------
    MaterializeReport
        Without ``models`` it also lists the files that were skipped, and what to install for them.

    Raises
    ------
    ImportError
        If one of ``models`` needs packages that are not installed; the message names them all.
    ValueError
        If ``models`` has an unknown name, or a generated file does not have the expected checksum.

    Examples
    --------
    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> materialize(directory, ["add_sub"]).lines  # its files are part of this package, so none is created
    ()
    >>> sorted(path.name for path in Path(directory).rglob("*.*"))
    ['config.pbtxt', 'model.py']
    """
    target = Path(directory)
    chosen = None if models is None else _with_used(models)
    lines: list[str] = []
    missing = [] if chosen is None else _missing_backends(chosen)
    _copy_missing(bundled_repository(), target, chosen)
    for file in _FILES:
        if chosen is not None and file.model not in chosen:
            continue
        if file.compiled and chosen is None and not compile:
            lines.append(f"{file.path}: skipped, compiling takes a while: tritonnb models --compile")
            continue
        path = target / file.path
        try:
            if _is_correct(path, file):
                lines.append(f"{file.path}: already there")
                continue
            _write(path, file)
        except ImportError as error:
            missing.append(f"{error.name} is not installed: {file.install or f'pip install {error.name}'}")
            lines.append(f"{file.path}: skipped, {missing[-1]}")
        else:
            lines.append(f"{file.path}: created, {path.stat().st_size / 1e6:.1f} MB")
    if chosen is not None and missing:
        raise ImportError("\n".join([f"{', '.join(models or ())}: a package is missing", *dict.fromkeys(missing)]))
    return MaterializeReport(target, tuple(lines))


def _with_used(models: Sequence[str]) -> set[str]:
    """Return the models and those that they use, such as the steps of an ensemble."""
    names = {path.name for path in bundled_repository().iterdir()} | {file.model for file in _FILES}
    chosen: set[str] = set()
    waiting = [models] if isinstance(models, str) else list(models)
    while waiting:
        name = waiting.pop()
        if name not in names:
            raise ValueError(f"models: expected names of example models ({', '.join(sorted(names))}), got '{name}'")
        chosen.add(name)
        waiting += [step.model_name for step in _config_of(name).ensemble_scheduling.step] + _USES.get(name, [])
    return chosen


def _config_of(model: str) -> pb.ModelConfig:
    """Return the configuration in this package; an empty one for a model that is not part of it."""
    path = bundled_repository() / model / "config.pbtxt"
    return read_config(path) if path.is_file() else pb.ModelConfig()


def _missing_backends(models: set[str]) -> list[str]:
    """Describe the packages of their backends that are not installed."""
    backends = sorted({_config_of(model).backend for model in models} & REQUIREMENTS.keys())
    packages = [REQUIREMENTS[backend][0] for backend in backends]
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return [f"{name} is not installed: pip install {name}" for name in missing]


def _copy_missing(source: Path, target: Path, models: set[str] | None) -> None:
    generated = {file.path for file in _FILES}
    not_bundled = {file.model for file in _FILES if file.with_config}
    for file in source.rglob("*"):
        relative = file.relative_to(source)
        model = relative.parts[0]
        if model in not_bundled or (models is not None and model not in models):
            continue
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
            raise ValueError(f"{file.path}: expected {file.sha256}, got {digest}; is a package outdated?")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
        with suppress(OSError):  # not if there is a file; an empty model directory would be a model that fails to load
            os.removedirs(path.parent)
