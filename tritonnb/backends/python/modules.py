"""Importing the *model.py* of each instance, so that no two models get into each other's way.

Every instance imports its own copy, as on Triton, where each has a process of its own. Helper
modules beside a *model.py* belong to that model too.
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
    name = f"tritonnb_model_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    directory = str(path.parent)
    with _lock:
        before = set(sys.modules)
        sys.modules[name] = module
        # Always a new list: other threads import too, and walk along the one they began with.
        sys.path = [directory, *sys.path]
        sys.modules[pb_utils.NAME] = utilities
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            raise InternalError(describe(error)) from error
        finally:
            sys.modules[pb_utils.NAME] = pb_utils  # for whoever imports it later
            # Imports inside functions happen later: they find the directory at the end of the path.
            sys.path = [*(each for each in sys.path if each != directory), directory]
            _forget_helpers(directory, set(sys.modules) - before - {name})
    return module


def model_class(module: ModuleType, path: Path) -> Any:
    """The module's ``TritonPythonModel``.

    Raises
    ------
    InternalError
    """
    found = getattr(module, "TritonPythonModel", None)
    if found is None:
        shown = f"{path.parent.name}.{path.stem}"
        raise InternalError(f"AttributeError: module '{shown}' has no attribute 'TritonPythonModel'")
    return found


def describe(error: BaseException) -> str:
    """An exception as Triton's Python backend words it: type, text, and the frames, innermost first."""
    text = f"{type(error).__name__}: {error}"
    frames = _model_frames(error.__traceback__)
    if not frames or isinstance(error, SyntaxError):
        return text
    places = "".join(f"  {each.filename}({each.lineno}): {each.name}\n" for each in reversed(frames))
    return f"{text}\n\nAt:\n{places}"


def _model_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames below this backend's own."""
    ours = str(Path(__file__).parent)
    frames = list(traceback.extract_tb(trace))
    first = next(
        (index for index, each in enumerate(frames) if not each.filename.startswith((ours, "<frozen importlib"))),
        len(frames),
    )
    return frames[first:]


def _forget_helpers(directory: str, added: set[str]) -> None:
    """Drop a model's helper modules from the table, so that another model imports its own."""
    for name in added:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin and str(Path(origin)).startswith(directory):
            del sys.modules[name]
