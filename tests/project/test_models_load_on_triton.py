"""Triton imports a Python model once with a module that lacks most of ``triton_python_backend_utils``.

The stub process that completes a configuration has no ``InferenceRequest`` and other classes, so a model must not use
them when it is imported, not even in annotations.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MODELS = [*ROOT.glob("model_repository/*/*/model.py"), ROOT / "tools" / "differential" / "recorder.py"]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_model_uses_the_backends_classes_only_when_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module executes with an empty ``triton_python_backend_utils``."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    package = ModuleType("model_package")  # Triton imports the module as part of a package
    package.__path__ = [str(path.parent)]
    monkeypatch.setitem(sys.modules, "model_package", package)
    name = f"model_package.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert hasattr(module, "TritonPythonModel")
    for imported in [name for name in sys.modules if name.startswith("model_package.")]:
        del sys.modules[imported]
