"""Triton's protobuf schema of model configurations: `model_config_pb2` of ``tritonclient``.

Importing ``tritonclient.grpc`` imports grpcio and the clients. The generated module itself needs protobuf only, so it
is loaded from its file, under its own name: a later import of ``tritonclient.grpc`` finds the same module.
"""

from __future__ import annotations

import copyreg
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

_NAME = "tritonclient.grpc.model_config_pb2"


def _load() -> ModuleType:
    """Import the generated module without its package."""
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("tritonnb needs the package tritonclient: pip install tritonclient", name=_NAME)
    path = Path(package.submodule_search_locations[0], "grpc", "model_config_pb2.py")
    spec = importlib.util.spec_from_file_location(_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return sys.modules.setdefault(_NAME, module)


def _message(name: str, content: bytes) -> Any:
    """Return a message from its bytes, in this process or another."""
    kind: Any = model_config_pb2
    for part in name.split("."):
        kind = getattr(kind, part)
    return kind.FromString(content)


def _copyable(kind: Any, name: str) -> None:
    """Let messages of a class be pickled: the name of their module is not one that can be imported."""
    copyreg.pickle(kind, lambda message: (_message, (name, message.SerializeToString())))
    for nested in kind.DESCRIPTOR.nested_types:
        _copyable(getattr(kind, nested.name), f"{name}.{nested.name}")


if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as model_config_pb2
else:
    model_config_pb2 = _load()
    for message_name in model_config_pb2.DESCRIPTOR.message_types_by_name:
        _copyable(getattr(model_config_pb2, message_name), message_name)
