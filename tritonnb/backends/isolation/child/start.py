"""The program of a child process.

It is run by its path, so that the package's ``__init__`` (endpoints, figures, widgets) is not imported: a child needs
only its backend, and starts in a fraction of the time. A model can still import ``tritonnb``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parents[3]


class _LazyPackage(ModuleType):
    """The package ``tritonnb``, whose ``__init__`` runs when one of its names is used."""

    def __getattr__(self, name: str) -> object:
        spec = self.__spec__
        if name.startswith("__") or spec is None or spec.loader is None:
            raise AttributeError(name)
        if (_PACKAGE / name).is_dir() or (_PACKAGE / f"{name}.py").is_file():
            return importlib.import_module(f"tritonnb.{name}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # an ordinary package from now on
        spec.loader.exec_module(self)
        return getattr(self, name)


def _install_package() -> None:
    location = _PACKAGE / "__init__.py"
    spec = importlib.util.spec_from_file_location("tritonnb", location, submodule_search_locations=[str(_PACKAGE)])
    assert spec is not None
    package = _LazyPackage("tritonnb")
    package.__spec__, package.__path__, package.__file__ = spec, [str(_PACKAGE)], str(location)
    sys.modules["tritonnb"] = package
    importlib.import_module("tritonnb.compiled")  # before everything that may be compiled


if __name__ == "__main__":
    sys.path.pop(0)  # this directory
    _install_package()
    from tritonnb.backends.isolation.child.main import main

    descriptors = [int(text) for text in sys.argv[1:]]
    del sys.argv[1:]  # as in Triton's stub: a model may parse it
    main(*descriptors)
