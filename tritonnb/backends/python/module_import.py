"""Import the *model.py* of each instance in isolation from other models.

Every instance imports its own copy, as on Triton, where each instance is a process. Helper modules in the version
directory or the model's directory belong to that model only. A version directory is a package, so that a model can
import the modules beside it relatively. All are compiled each time: Python selects cached bytecode by the source's size
and the second of its last change, and a model may be changed and reloaded within a second.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import machinery
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from tritonnb.backends.python import pb_utils
from tritonnb.core.errors import InternalError
from tritonnb.core.failures import frames_to_notes
from tritonnb.core.forks import fork_safe
from tritonnb.core.texts import encodable, printable

_lock = fork_safe(threading.RLock())
_numbers = itertools.count()
#: The version directories of the models that are imported, by the packages that stand for them.
_versions: dict[str, Path] = {}
#: Their directories that are in Python's path for them alone: the user has not added them.
_directories: set[str] = set()
#: The module of the user that the module of the models replaces, if the user has any.
_replaced: list[ModuleType] = []


class _Loader(machinery.SourceFileLoader):
    """A loader that compiles a source file each time."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _find_in_model(directory: str) -> machinery.FileFinder:
    """Find the modules in a directory of a model (a path hook of Python)."""
    models = {version.parent for version in list(_versions.values())}
    # Python asks this hook for every directory of the path, also on threads of the user.
    if models.isdisjoint([Path(directory), *Path(directory).parents]):
        raise ImportError(f"not a directory of a model: {directory}")
    return machinery.FileFinder(
        directory,
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (_Loader, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )


def import_model(path: Path, utilities: ModuleType) -> ModuleType:
    """Import a model file again, with this module as its ``triton_python_backend_utils``.

    Until `forget_model`, the model's directories are at the end of Python's path, for imports inside functions, unless
    the user has them in it.

    Raises
    ------
    InternalError
        With the text of Triton's Python backend, if the file is missing or cannot be imported.
    """
    if not path.is_file():
        raise InternalError(f"Python model file not found in '{path}'")
    # A number and not the model's name, since two servers, versions or instances may load the same model.
    package = ModuleType(f"tritonnb_model_{next(_numbers)}")
    package.__path__ = [str(path.parent)]
    name = f"{package.__name__}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    directories = [str(path.parent), str(path.parent.parent)]
    with _lock:
        if not _versions:
            sys.path_hooks = [_find_in_model, *sys.path_hooks]  # a new list: other threads iterate over the old list
            if pb_utils.NAME in sys.modules:
                _replaced.append(sys.modules[pb_utils.NAME])
        _versions[package.__name__] = path.parent
        _directories.update([directory for directory in directories if directory not in sys.path])
        before = set(sys.modules)
        sys.modules[package.__name__] = package
        sys.modules[module.__name__] = module
        # First in the path during the import, so that a helper `utils.py` of the model wins over an installed package
        # of this name.
        sys.path = [*directories, *sys.path]
        sys.modules[pb_utils.NAME] = utilities
        try:
            try:
                spec.loader.exec_module(module)
            finally:
                sys.modules[pb_utils.NAME] = pb_utils  # for later imports
                _move_to_the_end(directories)
                _forget_helpers(directories[1], package.__name__, set(sys.modules) - before)
        except BaseException as error:
            forget_model(module)
            raise InternalError(describe(error), model_error=frames_to_notes(error)) from None
    return module


def forget_model(module: ModuleType) -> None:
    """Remove a model's module, and the modules that it imported relatively, from ``sys.modules``.

    The last model of a directory removes the directory from Python's path; the last model of all removes everything.
    """
    package = module.__name__.partition(".")[0]
    with _lock:
        for name in [name for name in list(sys.modules) if name.partition(".")[0] == package]:
            del sys.modules[name]
        version = _versions.pop(package)
        in_use = {directory for other in _versions.values() for directory in (other, other.parent)}
        unused = {str(directory) for directory in {version, version.parent} - in_use}
        sys.path = [directory for directory in sys.path if directory not in unused & _directories]
        _directories.difference_update(unused)
        for directory in unused:
            sys.path_importer_cache.pop(directory, None)  # a finder of `_find_in_model`
        if not _versions:
            sys.path_hooks = [hook for hook in sys.path_hooks if hook is not _find_in_model]
            sys.modules.pop(pb_utils.NAME, None)
            if _replaced:
                sys.modules[pb_utils.NAME] = _replaced.pop()


def _move_to_the_end(directories: Sequence[str]) -> None:
    """Move directories of a model from the beginning of Python's path to its end, if they are in it for models alone.

    The path is a new list, since other threads iterate over the old list.
    """
    path = list(sys.path)
    for directory in directories:
        with contextlib.suppress(ValueError):  # the model has removed it
            path.remove(directory)
    added = [directory for directory in directories if directory in _directories]
    sys.path = [*(directory for directory in path if directory not in added), *added]


def model_class(module: ModuleType, path: Path) -> Any:
    """Return the module's ``TritonPythonModel``.

    Raises
    ------
    InternalError
        If there is none, with the text of Triton's Python backend; the hint has the file and the names in it.
    """
    class_ = getattr(module, "TritonPythonModel", None)
    if class_ is None:
        module_name = f"{path.parent.name}.{path.stem}"
        defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise InternalError(
            f"AttributeError: module '{module_name}' has no attribute 'TritonPythonModel'",
            hint=f"{path}: expected a class TritonPythonModel, got {', '.join(defined) or 'no class'}",
        )
    return class_


def describe(error: BaseException) -> str:
    """Format an exception as Triton's Python backend does: type, message, and the frames, innermost first."""
    try:
        message = str(error) or "<EMPTY MESSAGE>"
    except BaseException:  # even SystemExit, which must not end the thread that reports the error
        message = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
    message = printable(f"{type(error).__name__}: {message}")
    frames = _model_frames(error.__traceback__)
    if not frames or isinstance(error, SyntaxError):
        return message
    lines = "".join(f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in reversed(frames))
    return f"{message}\n\nAt:\n{encodable(lines)}"


def _model_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """Return the frames outside this backend: on Triton its utilities are written in C++ and have no frames."""
    package = __name__.rpartition(".")[0]
    entries = zip(traceback.walk_tb(trace), traceback.extract_tb(trace), strict=True)
    frames = [summary for (frame, _), summary in entries if frame.f_globals.get("__package__") != package]
    return list(itertools.dropwhile(lambda frame: frame.filename.startswith("<frozen importlib"), frames))


def _forget_helpers(directory: str, package: str, added: set[str]) -> None:
    """Remove a model's helper modules from ``sys.modules``, so that another model imports its own."""
    for name in added:
        if name.partition(".")[0] == package:
            continue
        origin = getattr(sys.modules[name], "__file__", None)
        if origin and str(Path(origin)).startswith(directory):
            del sys.modules[name]
