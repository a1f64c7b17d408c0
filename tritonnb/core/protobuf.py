"""Triton's protobuf schemas, of ``tritonclient``: `model_config_pb2`, and `service_pb2` when it is asked for.

Importing ``tritonclient.grpc`` imports grpcio and the clients. The generated modules themselves need protobuf only, so
they are loaded from their files, under their own names: a later import of ``tritonclient.grpc`` finds the same modules.
"""

from __future__ import annotations

import copyreg
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from google.protobuf.runtime_version import VersionError

_PACKAGE = "tritonclient.grpc"


def _load(name: str) -> ModuleType:
    """Import a generated module without its package."""
    full_name = f"{_PACKAGE}.{name}"
    if full_name in sys.modules:
        return sys.modules[full_name]
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("tritonnb needs the package tritonclient: pip install tritonclient", name=full_name)
    path = Path(package.submodule_search_locations[0], "grpc", f"{name}.py")
    spec = importlib.util.spec_from_file_location(full_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _package():
        try:
            spec.loader.exec_module(module)
        except VersionError as error:
            text = f"tritonclient does not fit the installed protobuf: {error}"
            raise ImportError(f"{text}: pip install --upgrade 'tritonclient[grpc]'", name=full_name) from error
    return sys.modules.setdefault(full_name, module)


@contextmanager
def _package() -> Iterator[None]:
    """Have a package with the schema of configurations, which that of the service imports from it."""
    if _PACKAGE in sys.modules:
        yield
        return
    package = sys.modules[_PACKAGE] = ModuleType(_PACKAGE)
    if "model_config_pb2" in globals():
        package.model_config_pb2 = model_config_pb2  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del sys.modules[_PACKAGE]


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
    from tritonclient.grpc import service_pb2 as service_pb2
else:
    model_config_pb2 = _load("model_config_pb2")
    for message_name in model_config_pb2.DESCRIPTOR.message_types_by_name:
        _copyable(getattr(model_config_pb2, message_name), message_name)

    def __getattr__(name: str) -> ModuleType:
        if name != "service_pb2":
            raise AttributeError(name)
        # Its fifty classes are not needed by a server without gRPC.
        module = globals()[name] = _load(name)
        return module
