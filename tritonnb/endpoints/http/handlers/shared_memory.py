"""The routes of the shared memory extensions: regions are registered, looked up, and forgotten."""

from __future__ import annotations

import base64
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.http import json_fields, json_reader
from tritonnb.endpoints.http.handlers.metadata import Handler
from tritonnb.runtime.cuda_memory import HANDLE_SIZE, CudaRegion
from tritonnb.runtime.shared_memory import SystemRegion

_KINDS: dict[str, type[SystemRegion | CudaRegion]] = {"system": SystemRegion, "cuda": CudaRegion}


class SystemStatus(Handler):
    """``/v2/systemsharedmemory[/region/N]/status``."""

    def get(self, region: str = "") -> None:
        """Registered regions."""
        self.answer([each.to_dict() for each in self.engine.shared_memory.status(SystemRegion, region)])


class CudaStatus(Handler):
    """``/v2/cudasharedmemory[/region/N]/status``."""

    def get(self, region: str = "") -> None:
        """Registered regions."""
        self.answer([each.to_dict() for each in self.engine.shared_memory.status(CudaRegion, region)])


class SystemRegister(Handler):
    """``/v2/systemsharedmemory[/region/N]/register``."""

    def post(self, region: str = "") -> None:
        """Register a region."""
        _check_named(region, "system")
        given = json_reader.parse(self.request.body)
        key = json_fields.string(_field(given, "key"))
        offset = json_fields.unsigned(given.get("offset", 0))
        self.engine.shared_memory.register_system(region, key, offset, json_fields.unsigned(_field(given, "byte_size")))


class CudaRegister(Handler):
    """``/v2/cudasharedmemory[/region/N]/register``."""

    def post(self, region: str = "") -> None:
        """Register a region."""
        _check_named(region, "cuda")
        given = json_reader.parse(self.request.body)
        handle = json_fields.string(json_fields.member(_field(given, "raw_handle"), "b64"))
        byte_size = json_fields.unsigned(json_fields.member(given, "byte_size"))
        device_id = json_fields.unsigned(json_fields.member(given, "device_id"))
        try:
            decoded = base64.b64decode(handle)
        except ValueError:
            decoded = b""
        if len(decoded) != HANDLE_SIZE:
            raise InvalidArgumentError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        self.engine.shared_memory.register_cuda(region, decoded, device_id, byte_size)


class Unregister(Handler):
    """``/v2/(system|cuda)sharedmemory[/region/N]/unregister``."""

    def post(self, kind: str, region: str = "") -> None:
        """Forget a region, or all; the body is not looked at."""
        self.engine.shared_memory.unregister(_KINDS[kind], region)


def _check_named(region: str, kind: str) -> None:
    if not region:
        raise InvalidArgumentError(f"'region name' is necessary to register {kind} shared memory region")


def _field(given: Any, name: str) -> Any:
    if not isinstance(given, dict) or name not in given:
        raise InvalidArgumentError(f"Shared memory register request has no '{name}' field")
    return given[name]


def routes() -> list[tuple[str, type[Handler]]]:
    """Path patterns and handlers."""
    region = r"(?:/region/(?P<region>[^/]+))?"
    return [
        (rf"/v2/systemsharedmemory{region}/status", SystemStatus),
        (rf"/v2/cudasharedmemory{region}/status", CudaStatus),
        (rf"/v2/systemsharedmemory{region}/register", SystemRegister),
        (rf"/v2/cudasharedmemory{region}/register", CudaRegister),
        (rf"/v2/(?P<kind>system|cuda)sharedmemory{region}/unregister", Unregister),
    ]
