"""An NVIDIA-Triton-compatible inference server inside the Jupyter kernel.

>>> import tritonnb as tnb
>>> server = tnb.serve("model_repository")  # doctest: +SKIP
>>> server["digits"](image=images)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from tritonnb import accessors, compiled  # noqa: F401 -- before everything that they change
from tritonnb.core.browser import missing_package

# *__init__.pyi* lists the public names. Each is imported when it is first used, so that the simulation works where
# NumPy, Tornado and gRPC are not installed.
_import, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _import(name)
    except ImportError as error:
        raise missing_package(f"tnb.{name}", error) from None


def load_ipython_extension(shell: Any) -> None:
    """Register the magics: ``%load_ext tritonnb``."""
    from tritonnb.notebook.magics import TritonMagics

    shell.register_magics(TritonMagics)
