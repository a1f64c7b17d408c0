"""The routes of the shared memory extensions: regions are registered, listed, and unregistered."""

from __future__ import annotations

import base64

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.http import json_fields
from tritonnb.endpoints.http.handlers.metadata import Handler
from tritonnb.engine.cuda_memory import HANDLE_SIZE, CudaRegion
from tritonnb.engine.shared_memory import SystemRegion

_KINDS: dict[str, type[SystemRegion | CudaRegion]] = {"system": SystemRegion, "cuda": CudaRegion}


class SystemStatusHandler(Handler):
    """``/v2/systemsharedmemory[/region/N]/status``."""

    def get(self, region: str = "") -> None:
        """Return the registered regions."""
        self.respond_json([entry.to_dict() for entry in self.engine.shared_memory.status(SystemRegion, region)])


class CudaStatusHandler(Handler):
    """``/v2/cudasharedmemory[/region/N]/status``."""

    def get(self, region: str = "") -> None:
        """Return the registered regions."""
        self.respond_json([entry.to_dict() for entry in self.engine.shared_memory.status(CudaRegion, region)])


class SystemRegisterHandler(Handler):
    """``/v2/systemsharedmemory[/region/N]/register``."""

    async def post(self, region: str = "") -> None:
        """Register a region."""
        self.engine.shared_memory.check_clients_allowed()
        _check_named(region, "system")
        body = await self.json_body(lambda document: document)
        key = json_fields.string(_field(body, "key"))
        assert isinstance(body, dict)  # it has a key
        offset = json_fields.unsigned(body.get("offset", 0))
        self.engine.shared_memory.register_system(region, key, offset, json_fields.unsigned(_field(body, "byte_size")))


class CudaRegisterHandler(Handler):
    """``/v2/cudasharedmemory[/region/N]/register``."""

    async def post(self, region: str = "") -> None:
        """Register a region."""
        self.engine.shared_memory.check_clients_allowed()
        _check_named(region, "cuda")
        body = await self.json_body(lambda document: document)
        handle = json_fields.string(json_fields.member(_field(body, "raw_handle"), "b64"))
        byte_size = json_fields.unsigned(json_fields.member(body, "byte_size"))
        device_id = json_fields.unsigned(json_fields.member(body, "device_id"))
        try:
            # Characters outside the alphabet are skipped; only the length of the result is checked.
            decoded = base64.b64decode(handle)
        except ValueError:
            decoded = b""
        if len(decoded) != HANDLE_SIZE:
            raise InvalidArgumentError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        self.engine.shared_memory.register_cuda(region, decoded, device_id, byte_size)


class UnregisterHandler(Handler):
    """``/v2/(system|cuda)sharedmemory[/region/N]/unregister``."""

    def post(self, kind: str, region: str = "") -> None:
        """Unregister a region, or all; the body is ignored."""
        self.engine.shared_memory.check_clients_allowed()
        self.engine.shared_memory.unregister(_KINDS[kind], region)


def _check_named(region: str, kind: str) -> None:
    if not region:
        raise InvalidArgumentError(f"'region name' is necessary to register {kind} shared memory region")


def _field(body: object, name: str) -> object:
    if not isinstance(body, dict) or name not in body:
        raise InvalidArgumentError(f"Shared memory register request has no '{name}' field")
    return body[name]
