"""The endpoints of a server: their addresses, start and stop."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.option_types import check_types
from tritonnb.endpoints.endpoint import Endpoint
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.http.endpoint import HttpEndpoint
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.metrics.endpoint import MetricsEndpoint
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.endpoints.openai.endpoint import openai_endpoint
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.engine.engine import Engine
from tritonnb.engine.options import require_options

#: Triton's HTTP port, and the ports that are tried, beginning with it.
DEFAULT_PORTS = range(8000, 8100)
_LAST_PORT = 65_535


E = TypeVar("E", bound=Endpoint)


#: The options of `Server` for the ports of its services, under Triton's names of the services.
_PORT_OPTIONS = {"HTTP": "port", "GRPC": "grpc_port", "Metrics": "metrics_port", "OpenAI": "openai_port"}


class PortTakenError(UnavailableError):
    """The port of a service is already in use, by another program or another server in this one."""

    def __init__(self, service: str, host: str, port: int) -> None:
        option = _PORT_OPTIONS[service]
        super().__init__(
            f"the {service} service cannot listen on {host}:{port}: the port is already in use; pass another "
            f"{option}=, or {option}=0 for any free port"
        )
        self.service, self.host, self.port = service, host, port


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The addresses of a server's endpoints.

    Attributes
    ----------
    host : str
    port : int or None
        The HTTP port; None for 8000 or the next free port.
    allow_http : bool
        Whether the server has an HTTP endpoint.
    http : HttpOptions
    grpc_port : int or None
        None for no gRPC endpoint, 0 for any free port.
    grpc_host : str
        Empty for the same as ``host``.
    grpc : GrpcOptions
    metrics_port : int or None
        None for no metrics endpoint, 0 for any free port.
    metrics_host : str
        Empty for the same as ``host``.
    metrics : MetricsOptions
    openai_port : int or None
        None for OpenAI's API on the HTTP port, 0 for any free dedicated port.
    openai_host : str
        Empty for the same as ``host``.
    openai : OpenAiOptions
    """

    host: str = "127.0.0.1"
    port: int | None = None
    allow_http: bool = True
    http: HttpOptions = field(default_factory=HttpOptions)
    grpc_port: int | None = None
    grpc_host: str = ""
    grpc: GrpcOptions = field(default_factory=GrpcOptions)
    metrics_port: int | None = None
    metrics_host: str = ""
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    openai_port: int | None = None
    openai_host: str = ""
    openai: OpenAiOptions = field(default_factory=OpenAiOptions)

    def __post_init__(self) -> None:
        kinds = {"http": HttpOptions, "grpc": GrpcOptions, "metrics": MetricsOptions, "openai": OpenAiOptions}
        check_types(self, "")
        for name, kind in kinds.items():
            require_options(name, getattr(self, name), kind)

    def on_free_ports(self, others: Endpoints) -> ListenOptions:
        """Return the same options, with free ports instead of ports that another server uses."""
        used = {endpoint.port for endpoint in others.started}

        def free(port: int | None) -> int | None:
            return 0 if port in used else port

        http = 0 if self.port is None else free(self.port)
        return replace(
            self,
            port=http,
            grpc_port=free(self.grpc_port),
            metrics_port=free(self.metrics_port),
            openai_port=free(self.openai_port),
        )


class Endpoints:
    """The endpoints of one server, on the running event loop.

    Attributes
    ----------
    http : HttpEndpoint or None
    grpc : Endpoint or None
    metrics : MetricsEndpoint or None
    openai : Endpoint or None
        Only if OpenAI's API has a dedicated port.
    """

    def __init__(self) -> None:
        self.http: HttpEndpoint | None = None
        self.grpc: Endpoint | None = None
        self.metrics: MetricsEndpoint | None = None
        self.openai: Endpoint | None = None

    @property
    def started(self) -> list[Endpoint]:
        """The endpoints that were started, even if they were stopped since."""
        return [endpoint for endpoint in (self.http, self.grpc, self.metrics, self.openai) if endpoint is not None]

    async def start(self, engine: Engine, options: ListenOptions) -> None:
        """Listen on every port.

        Raises
        ------
        PortTakenError
            If a requested port is already in use.
        InvalidArgumentError
            If an address is invalid.
        """
        host = options.host
        if options.allow_http:
            on_http = options.openai if options.openai.allow and options.openai_port is None else None
            http = HttpEndpoint(engine, host=host, options=options.http, openai=on_http)
            self.http = await self._listen("HTTP", http, DEFAULT_PORTS if options.port is None else [options.port])
        if options.grpc_port is not None:
            # Imported here: grpcio adds a tenth of a second to `import tritonnb`, and most servers have no gRPC port.
            from tritonnb.endpoints.grpc.endpoint import grpc_endpoint

            grpc = grpc_endpoint(engine, host=options.grpc_host or host, options=options.grpc)
            self.grpc = await self._listen("GRPC", grpc, [options.grpc_port])
        if options.metrics_port is not None:
            metrics_host = options.metrics_host or host
            metrics = MetricsEndpoint(engine, host=metrics_host, options=options.metrics, http=options.http)
            self.metrics = await self._listen("Metrics", metrics, [options.metrics_port])
        if options.openai.allow and options.openai_port is not None:
            openai_host = options.openai_host or host
            openai = openai_endpoint(engine, host=openai_host, options=options.openai, http=options.http)
            self.openai = await self._listen("OpenAI", openai, [options.openai_port])

    async def stop(self, drain: float) -> None:
        """Accept no more requests, and wait up to ``drain`` seconds for requests in progress."""
        # Together, so that all of them share one `drain` and a stop does not take four times as long.
        await asyncio.gather(*(endpoint.stop(drain) for endpoint in self.started))

    async def stop_inference(self, drain: float) -> None:
        """Stop all endpoints except metrics, which describe the server until its end."""
        await asyncio.gather(*(endpoint.stop(drain) for endpoint in self.started if endpoint is not self.metrics))

    async def _listen(self, service: str, endpoint: E, ports: range | list[int]) -> E:
        host = endpoint.host
        for port in ports:
            # An invalid port must not fall through to the search for a free port, which would hide it.
            if not 0 <= port <= _LAST_PORT:  # uvloop would take the remainder
                raise InvalidArgumentError(
                    f"cannot listen on {host}:{port}: expected a port from 0 to {_LAST_PORT}, got {port}"
                )
            try:
                await endpoint.start(port)
            except (OSError, OverflowError, UnicodeError) as error:
                # Only a taken port is worth another attempt; a host that does not exist fails on every port.
                if getattr(error, "errno", None) != errno.EADDRINUSE:
                    raise InvalidArgumentError(f"cannot listen on {host}:{port}: {error}") from None
            else:
                return endpoint
        if len(ports) == 1:
            raise PortTakenError(service, host, ports[0])
        raise UnavailableError(
            f"the {service} service found no free port from {ports[0]} to {ports[-1]}; pass port=0 for any free port"
        )
