"""The RPCs of ``GRPCInferenceService`` except inference."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.endpoints.request_rules import version_number
from tritonnb.runtime.cuda_memory import CudaRegion
from tritonnb.runtime.engine import Engine
from tritonnb.runtime.shared_memory import SystemRegion
from tritonnb.telemetry.log_settings import FORMATS
from tritonnb.telemetry.trace_settings import TraceValue, levels_of, number_of


class Handlers:
    """The RPCs with one request and one response, by name: each takes the request message and returns the response."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # --- server and models ----------------------------------------------------------------------

    async def ServerLive(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        """Whether the server is live."""
        return pb.ServerLiveResponse(live=self._engine.is_live())

    async def ServerReady(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        """Whether the server and its models are ready."""
        return pb.ServerReadyResponse(ready=await self._engine.is_ready())

    async def ModelReady(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """Whether a model is ready; false for an unknown model."""
        ready = await self._engine.model_ready(request.name, version_number(request.version))
        return pb.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        """Server metadata."""
        return pb.ServerMetadataResponse(**self._engine.metadata())

    async def ModelMetadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """Model metadata."""
        metadata = self._engine.model_metadata(request.name, version_number(request.version))
        return json_format.ParseDict(metadata, pb.ModelMetadataResponse())

    async def ModelConfig(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        """The model's configuration."""
        served = self._engine.model(request.name, version_number(request.version))
        return pb.ModelConfigResponse(config=served.config)

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """The statistics extension."""
        statistics = self._engine.statistics(request.name, version_number(request.version))
        return json_format.ParseDict(statistics, pb.ModelStatisticsResponse())

    # --- repository -----------------------------------------------------------------------------

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """Every model and its state."""
        _refuse_repository(request.repository_name)
        return json_format.ParseDict({"models": self._engine.index(request.ready)}, pb.RepositoryIndexResponse())

    async def RepositoryModelLoad(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Load or reload a model."""
        _refuse_repository(request.repository_name)
        self._engine.check_model_control()
        await self._engine.load(request.model_name, _load_parameters(request.parameters))
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        """Unload a model; it need not exist."""
        _refuse_repository(request.repository_name)
        self._engine.check_model_control()
        dependents = request.parameters.get("unload_dependents")
        if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidArgumentError("invalid value type for 'unload_dependents' parameter, expected bool_param.")
        await self._engine.unload(request.model_name, dependents is not None and dependents.bool_param)
        return pb.RepositoryModelUnloadResponse()

    # --- shared memory --------------------------------------------------------------------------

    async def SystemSharedMemoryStatus(
        self, request: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        """Registered regions."""
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self._engine.shared_memory.status(SystemRegion, request.name):
            entry = response.regions[region.name]
            entry.name, entry.key = region.name, region.key
            entry.offset, entry.byte_size = region.offset, region.byte_size
        return response

    async def SystemSharedMemoryRegister(
        self, request: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Register a region."""
        self._engine.shared_memory.check_clients_allowed()
        self._engine.shared_memory.register_system(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Unregister a region, or all."""
        self._engine.shared_memory.check_clients_allowed()
        self._engine.shared_memory.unregister(SystemRegion, request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(
        self, request: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        """Registered regions."""
        response = pb.CudaSharedMemoryStatusResponse()
        for region in self._engine.shared_memory.status(CudaRegion, request.name):
            entry = response.regions[region.name]
            entry.name, entry.device_id, entry.byte_size = region.name, region.device_id, region.byte_size
        return response

    async def CudaSharedMemoryRegister(
        self, request: pb.CudaSharedMemoryRegisterRequest
    ) -> pb.CudaSharedMemoryRegisterResponse:
        """Register a region; Triton does not check the size of the handle here."""
        self._engine.shared_memory.check_clients_allowed()
        self._engine.shared_memory.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
        return pb.CudaSharedMemoryRegisterResponse()

    async def CudaSharedMemoryUnregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """Unregister a region, or all."""
        self._engine.shared_memory.check_clients_allowed()
        self._engine.shared_memory.unregister(CudaRegion, request.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    # --- settings -------------------------------------------------------------------------------

    async def TraceSetting(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        """Change trace settings, and return the current ones."""
        model, tracer = request.model_name, self._engine.tracer
        if model and not self._engine.is_loaded(model):
            raise InvalidArgumentError(f"Request for unknown model : {model}")
        changes = _trace_changes({name: list(setting.value) for name, setting in request.settings.items()})
        if changes:
            tracer.update(model, changes)
        response = pb.TraceSettingResponse()
        for name, value in tracer.settings.of(model).options.to_dict().items():
            response.settings[name].value.extend(value if isinstance(value, list) else [value])
        return response

    async def LogSettings(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        """Change log settings, and return the current ones."""
        settings = self._engine.options.log
        if "log_file" in request.settings:
            raise UnsupportedError("log file location can not be updated through network protocol")
        for name in ("log_info", "log_warning", "log_error"):
            if name in request.settings:
                setattr(settings, name, _log_setting(request.settings, name, "bool_param", "boolean"))
        if "log_verbose_level" in request.settings:
            settings.set_verbose_level(
                int(_log_setting(request.settings, "log_verbose_level", "uint32_param", "int32"))
            )
        if "log_format" in request.settings:
            log_format = str(_log_setting(request.settings, "log_format", "string_param", "string"))
            if log_format not in FORMATS:
                raise InvalidArgumentError(f"invalid argument for log_format, got: {log_format}")
            settings.log_format = log_format
        return _log_response(settings.to_dict())


def _refuse_repository(name: str) -> None:
    if name:
        raise UnsupportedError("'repository_name' specification is not supported")


def _load_parameters(values: Mapping[str, pb.ModelRepositoryParameter]) -> dict[str, str | bytes]:
    parameters: dict[str, str | bytes] = {}
    for name, value in values.items():
        if name != "config" and not name.startswith("file:"):
            raise InvalidArgumentError(f"unrecognized load parameter '{name}'.")
        kind = "string_param" if name == "config" else "bytes_param"
        if value.WhichOneof("parameter_choice") != kind:
            raise InvalidArgumentError(f"invalid value type for load parameter '{name}', expected {kind}.")
        parameters[name] = getattr(value, kind)
    return parameters


def _trace_changes(settings: dict[str, list[str]]) -> dict[str, TraceValue]:
    """The options that a request changes; None for one that an empty list clears."""
    if "trace_file" in settings:
        raise UnsupportedError("trace file location can not be updated through network protocol")
    changes: dict[str, TraceValue] = {}
    if "trace_level" in settings:
        levels = levels_of(settings["trace_level"])
        if levels is not None or not settings["trace_level"]:
            changes["levels"] = levels
    for name, field in (("trace_rate", "rate"), ("trace_count", "count"), ("log_frequency", "log_frequency")):
        values = settings.get(name)
        if values is None:
            continue
        if len(values) > 1:
            raise InvalidArgumentError(f"expect only 1 value for '{name}'")
        changes[field] = number_of(name, values[0]) if values else None
    return changes


def _log_setting(
    settings: Mapping[str, pb.LogSettingsRequest.SettingValue], name: str, kind: str, shown: str
) -> bool | int | str:
    if settings[name].WhichOneof("parameter_choice") != kind:
        raise InvalidArgumentError(f"expect {shown} for '{name}'")
    value: bool | int | str = getattr(settings[name], kind)
    return value


def _log_response(settings: Mapping[str, object]) -> pb.LogSettingsResponse:
    response = pb.LogSettingsResponse()
    for name, value in settings.items():
        kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
        setattr(response.settings[name], kind, value)
    return response
