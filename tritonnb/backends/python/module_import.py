"""Importing the *model.py* of each instance, so that no two models get into each other's way.

Every instance imports its own copy, as on Triton, where each has a process of its own. Helper
modules beside a *model.py*, or in the model's directory, belong to that model too. A version directory is
a package, so a model may import its neighbours relatively.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from tritonnb.backends.python import pb_utils
from tritonnb.core.errors import InternalError
from tritonnb.core.failures import frames_to_notes

_lock = threading.RLock()
_numbers = itertools.count()


def import_model(path: Path, utilities: ModuleType) -> ModuleType:
    """A fresh import of a model file, which finds these ``triton_python_backend_utils``.

    Raises
    ------
    InternalError
        With the text of Triton's Python backend, if the file is missing or cannot be imported.
    """
    if not path.is_file():
        raise InternalError(f"Python model file not found in '{path}'")
    package = ModuleType(f"tritonnb_model_{next(_numbers)}")
    package.__path__ = [str(path.parent)]
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    directories = [str(path.parent), str(path.parent.parent)]
    with _lock:
        before = set(sys.modules)
        sys.modules[package.__name__] = package
        sys.modules[module.__name__] = module
        # Always a new list: other threads import too, and walk along the one they began with.
        sys.path = [*directories, *sys.path]
        sys.modules[pb_utils.NAME] = utilities
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            forget_model(module)
            raise InternalError(describe(error), model_error=frames_to_notes(error)) from None
        finally:
            sys.modules[pb_utils.NAME] = pb_utils  # for whoever imports it later
            # Imports inside functions happen later: they find the directories at the end of the path.
            sys.path = [*(each for each in sys.path if each not in directories), *directories]
            _forget_helpers(directories[1], package.__name__, set(sys.modules) - before)
    return module


def forget_model(module: ModuleType) -> None:
    """Drop a model's module, and what it imported relatively, from the table of modules."""
    package = module.__name__.partition(".")[0]
    for name in [each for each in list(sys.modules) if each.partition(".")[0] == package]:
        del sys.modules[name]


def model_class(module: ModuleType, path: Path) -> Any:
    """The module's ``TritonPythonModel``.

    Raises
    ------
    InternalError
        If it has none.
    """
    found = getattr(module, "TritonPythonModel", None)
    if found is None:
        shown = f"{path.parent.name}.{path.stem}"
        raise InternalError(f"AttributeError: module '{shown}' has no attribute 'TritonPythonModel'")
    return found


def describe(error: BaseException) -> str:
    """An exception as Triton's Python backend words it: type, text, and the frames, innermost first."""
    try:
        text = str(error) or "<EMPTY MESSAGE>"
    except Exception:
        text = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
    text = f"{type(error).__name__}: {text}"
    frames = _model_frames(error.__traceback__)
    if not frames or isinstance(error, SyntaxError):
        return text
    places = "".join(f"  {each.filename}({each.lineno}): {each.name}\n" for each in reversed(frames))
    return f"{text}\n\nAt:\n{places}"


def _model_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames without this backend's own: on Triton its utilities are C++, which has none."""
    ours = str(Path(__file__).parent)
    frames = [each for each in traceback.extract_tb(trace) if not each.filename.startswith(ours)]
    return list(itertools.dropwhile(lambda each: each.filename.startswith("<frozen importlib"), frames))


def _forget_helpers(directory: str, package: str, added: set[str]) -> None:
    """Drop a model's helper modules from the table, so that another model imports its own."""
    for name in added:
        if name.partition(".")[0] == package:
            continue
        origin = getattr(sys.modules[name], "__file__", None)
        if origin and str(Path(origin)).startswith(directory):
            del sys.modules[name]
