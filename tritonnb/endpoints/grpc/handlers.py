"""The RPCs of ``GRPCInferenceService`` except inference."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.request_rules import refuse_repository, version_number
from tritonnb.engine.cuda_memory import CudaRegion
from tritonnb.engine.engine import Engine
from tritonnb.engine.shared_memory import SystemRegion
from tritonnb.telemetry.log_settings import FORMATS
from tritonnb.telemetry.trace_settings import TraceValue, levels_of, number_of

#: The field of a log setting for values of a type.
_LOG_FIELDS = {bool: "bool_param", int: "uint32_param", str: "string_param"}


class RpcHandlers:
    """The RPCs with one request and one response, by name.

    Each takes the request message, and returns the response: a message, or its fields, or None if it has no fields.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # --- server and models ----------------------------------------------------------------------

    async def ServerLive(self, request: pb.ServerLiveRequest) -> Json:
        """Return whether the server is live."""
        return {"live": self._engine.is_live}

    async def ServerReady(self, request: pb.ServerReadyRequest) -> Json:
        """Return whether the server and its models are ready."""
        return {"ready": await self._engine.is_ready()}

    async def ModelReady(self, request: pb.ModelReadyRequest) -> Json:
        """Return whether a model is ready; false for an unknown model."""
        # Triton since June 2026 has an error for an unknown model; NVIDIA's own tests still expect false, so it stays.
        return {"ready": await self._engine.model_ready(request.name, version_number(request.version))}

    async def ServerMetadata(self, request: pb.ServerMetadataRequest) -> Json:
        """Return the server metadata."""
        return {**self._engine.metadata()}

    async def ModelMetadata(self, request: pb.ModelMetadataRequest) -> Json:
        """Return the model metadata."""
        return {**self._engine.model_metadata(request.name, version_number(request.version))}

    async def ModelConfig(self, request: pb.ModelConfigRequest) -> Message:
        """Return the model's configuration."""
        served = self._engine.model(request.name, version_number(request.version))
        # The configuration is a message already; only HTTP needs its JSON, with all defaults.
        return pb.ModelConfigResponse(config=served.config)

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest) -> Json:
        """Return the statistics extension."""
        return {**await self._engine.statistics_in_pieces(request.name, version_number(request.version))}

    # --- repository -----------------------------------------------------------------------------

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest) -> Json:
        """Return every model and its state."""
        # Over HTTP, Triton ignores the name of a repository in a request for the index; over gRPC it refuses the name.
        refuse_repository(request.repository_name)
        return {"models": await self._engine.index(request.ready)}

    async def RepositoryModelLoad(self, request: pb.RepositoryModelLoadRequest) -> None:
        """Load or reload a model."""
        refuse_repository(request.repository_name)
        self._engine.check_model_control()
        await self._engine.load(request.model_name, _load_parameters(request.parameters))

    async def RepositoryModelUnload(self, request: pb.RepositoryModelUnloadRequest) -> None:
        """Unload a model; it need not exist."""
        refuse_repository(request.repository_name)
        self._engine.check_model_control()
        dependents = request.parameters.get("unload_dependents")
        # Stricter than over HTTP, where Triton loses this error and unloads the model.
        if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidArgumentError("invalid value type for 'unload_dependents' parameter, expected bool_param.")
        await self._engine.unload(request.model_name, dependents is not None and dependents.bool_param)

    # --- shared memory --------------------------------------------------------------------------

    async def SystemSharedMemoryStatus(self, request: pb.SystemSharedMemoryStatusRequest) -> Json:
        """Return the registered regions."""
        regions = self._engine.shared_memory.status(SystemRegion, request.name)
        return {"regions": {region.name: region.to_dict() for region in regions}}

    async def SystemSharedMemoryRegister(self, request: pb.SystemSharedMemoryRegisterRequest) -> None:
        """Register a region."""
        self._engine.shared_memory.check_clients_allowed()
        self._engine.shared_memory.register_system(request.name, request.key, request.offset, request.byte_size)

    async def SystemSharedMemoryUnregister(self, request: pb.SystemSharedMemoryUnregisterRequest) -> None:
        """Unregister a region, or all."""
        self._engine.shared_memory.check_clients_allowed()
        self._engine.shared_memory.unregister(SystemRegion, request.name)

    async def CudaSharedMemoryStatus(self, request: pb.CudaSharedMemoryStatusRequest) -> Json:
        """Return the registered regions."""
        regions = self._engine.shared_memory.status(CudaRegion, request.name)
        return {"regions": {region.name: region.to_dict() for region in regions}}

    async def CudaSharedMemoryRegister(self, request: pb.CudaSharedMemoryRegisterRequest) -> None:
        """Register a region; Triton does not check the size of the handle here."""
        self._engine.shared_memory.check_clients_allowed()
        self._engine.shared_memory.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)

    async def CudaSharedMemoryUnregister(self, request: pb.CudaSharedMemoryUnregisterRequest) -> None:
        """Unregister a region, or all."""
        self._engine.shared_memory.check_clients_allowed()
        self._engine.shared_memory.unregister(CudaRegion, request.name)

    # --- settings -------------------------------------------------------------------------------

    async def TraceSetting(self, request: pb.TraceSettingRequest) -> Json:
        """Change trace settings, and return the current settings."""
        model, tracer = request.model_name, self._engine.tracer
        if model and not self._engine.is_loaded(model):
            raise InvalidArgumentError(f"Request for unknown model : {model}")
        changes = _trace_changes({name: list(setting.value) for name, setting in request.settings.items()})
        if changes:
            tracer.update(model, changes)
        values = tracer.settings.for_model(model).options.to_dict().items()
        return {"settings": {name: {"value": value if isinstance(value, list) else [value]} for name, value in values}}

    async def LogSettings(self, request: pb.LogSettingsRequest) -> Json:
        """Change log settings, and return the current settings."""
        settings = self._engine.options.log
        # First of all, so that a refused request has changed nothing; later errors leave the settings before them
        # changed, as on Triton.
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
        values = settings.to_dict().items()
        return {"settings": {name: {_LOG_FIELDS[type(value)]: value} for name, value in values}}


def _load_parameters(values: Mapping[str, pb.ModelRepositoryParameter]) -> dict[str, str | bytes]:
    parameters: dict[str, str | bytes] = {}
    for name, value in values.items():
        # HTTP has another text and another status for this error on Triton, so the two readers share nothing.
        if name != "config" and not name.startswith("file:"):
            raise InvalidArgumentError(f"unrecognized load parameter '{name}'.")
        kind = "string_param" if name == "config" else "bytes_param"
        if value.WhichOneof("parameter_choice") != kind:
            raise InvalidArgumentError(f"invalid value type for load parameter '{name}', expected {kind}.")
        parameters[name] = getattr(value, kind)
    return parameters


def _trace_changes(settings: dict[str, list[str]]) -> dict[str, TraceValue]:
    """Return the options that a request changes; None for an option that an empty list clears."""
    if "trace_file" in settings:
        raise UnsupportedError("trace file location can not be updated through network protocol")
    changes: dict[str, TraceValue] = {}
    if "trace_level" in settings:
        # Unknown levels are ignored; if nothing else is named, the setting stays as it is and is not cleared.
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
