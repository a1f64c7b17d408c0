"""Models of the Python backend, from the text of their *model.py*."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from tests.backends.models import TENSORS, Loaded, config_of

HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n"


class Load(Protocol):
    """Loads a model from the text of its *model.py*."""

    def __call__(self, directory: Path, body: str, tensors: str = TENSORS, **config: Any) -> Loaded: ...


def load_in_process(
    directory: Path, body: str, tensors: str = TENSORS, isolated: bool = False, **config: Any
) -> Loaded:
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "1" / "model.py").write_text(body)
    return Loaded(config_of("python", tensors, **config), directory, isolated=isolated)
