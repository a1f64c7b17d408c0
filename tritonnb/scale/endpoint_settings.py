"""The options of servers behind Ray Serve: the options of the endpoints, which the ingress and the replicas apply.

Ray's proxies listen in place of the endpoints, so some options cannot be applied. `APPLIED` names those that are; every
other option is refused unless it has its default, so that none is ignored. The gRPC proxies listen on every interface,
regardless of the address of the HTTP proxies, so the callers are checked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.endpoints.endpoint_set import ListenOptions
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.engine.options import EngineOptions

#: The options of endpoints, among those of `tritonnb.Server`.
LISTEN_OPTIONS = {option.name for option in fields(ListenOptions)}
_EVERY_INTERFACE = ("", "0.0.0.0", "::")

#: The options that are applied: fields of the groups of `ListenOptions`, which are also fields of `EndpointSettings`.
APPLIED = frozenset(
    {
        "http.max_input_size",
        "http.max_body_size",
        "http.allow_foreign",
        "http.allowed_hosts",
        "http.restricted_api",
        "http.header_forward_pattern",
        "grpc.header_forward_pattern",
        "grpc.restricted_protocol",
        *(f"metrics.{option.name}" for option in fields(MetricsOptions)),
        *(f"openai.{option.name}" for option in fields(OpenAiOptions)),
    }
)
#: The flags whose names differ from those of the options; empty for options without a flag.
_FLAGS = {
    "http.reuse_port": "reuse-http-port",
    "grpc.reuse_port": "reuse-grpc-port",
    "metrics_host": "metrics-address",
    "openai_host": "openai-address",
    "http.max_unread_size": "",
    "grpc.max_unread_size": "",
    "grpc.transport": "",
}
_TLS = ("grpc.use_ssl", "grpc.use_ssl_mutual", "grpc.server_cert", "grpc.server_key", "grpc.root_cert")
#: What to do in place of an option that is refused.
_REMEDIES = {
    "allow_http": "restrict its APIs with --http-restricted-api",
    **dict.fromkeys(_TLS, "end TLS in a proxy in front of Ray's"),
    **dict.fromkeys(("port", "grpc_port"), "Ray Serve's own configuration has the ports"),
    **dict.fromkeys(("metrics_port", "metrics_host"), "the metrics are at /metrics of the HTTP port"),
    **dict.fromkeys(("openai_port", "openai_host"), "OpenAI's API is on the HTTP port"),
}


def check_grpc_host(host: str) -> None:
    """Check an address to serve gRPC on: the loopback interface, or every interface.

    Raises
    ------
    InvalidArgumentError
        If it is the address of another interface: the proxies cannot listen on it alone.
    """
    if host not in _EVERY_INTERFACE and not is_loopback(host):
        raise InvalidArgumentError(
            f"grpc_host (--grpc-address): Ray's gRPC proxies listen on every interface, expected 127.0.0.1 (calls from "
            f"other machines are refused) or 0.0.0.0, got '{host}'"
        )


def check_caller(host: str | None, peer: str) -> None:
    """Check who calls: a server on the loopback interface is called from its machine only.

    Parameters
    ----------
    host : str or None
        The address that gRPC is served on; None if it is not known.
    peer : str
        The caller as gRPC names it: ``ipv4:127.0.0.1:5000``, ``ipv6:[::1]:5000``, ``unix:...``.

    Raises
    ------
    UnavailableError
        If the caller is on another machine.

    Examples
    --------
    >>> check_caller("127.0.0.1", "ipv6:%5B::1%5D:5000")
    >>> check_caller("0.0.0.0", "ipv4:192.0.2.7:5000")
    """
    if host is None or not is_loopback(host):
        return
    scheme, _, address = unquote(peer).partition(":")
    caller = address.rpartition(":")[0].strip("[]")
    if scheme != "unix" and not is_loopback(caller):
        raise UnavailableError(
            f"gRPC is served on {host} only, got a call from '{caller or peer}': start the server with "
            "--grpc-address=0.0.0.0, or grpc_host='0.0.0.0', to accept calls from other machines"
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is one of the loopback interface."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The settings that an ingress and its replicas apply.

    Attributes
    ----------
    host : str or None
        The address that Ray's HTTP proxies listen on; None if it is not known.
    grpc_host : str or None
        The address that gRPC calls are accepted from, as a server that listens on it would.
    http : HttpOptions
    grpc : GrpcOptions
    metrics : MetricsOptions or None
        None for no metrics.
    openai : OpenAiOptions
    """

    host: str | None = None
    grpc_host: str | None = None
    http: HttpOptions = field(default_factory=HttpOptions)
    grpc: GrpcOptions = field(default_factory=GrpcOptions)
    metrics: MetricsOptions | None = field(default_factory=MetricsOptions)
    openai: OpenAiOptions = field(default_factory=OpenAiOptions)

    @classmethod
    def from_options(
        cls, options: Mapping[str, Any], *, host: str | None, grpc_host: str | None, allow_metrics: bool
    ) -> EndpointSettings:
        """Return the settings for options of `tritonnb.Server`.

        Parameters
        ----------
        options : mapping of str to object
            Fields of `ListenOptions`.
        host, grpc_host : str or None
        allow_metrics : bool

        Raises
        ------
        InvalidArgumentError
            If an option is not applied behind Ray Serve, or has another type.
        """
        chosen = {name: value for name, value in options.items() if name in LISTEN_OPTIONS and value is not None}
        listen = ListenOptions(**chosen)
        for name, value, default in _options(listen):
            if name not in APPLIED and value != default:
                raise InvalidArgumentError(
                    f"{_shown(name)} is not applied behind Ray Serve: expected {default!r}, got {value!r}; "
                    f"{_REMEDIES.get(name, 'leave it out')}"
                )
        metrics = listen.metrics if allow_metrics else None
        return cls(host, grpc_host, listen.http, listen.grpc, metrics, listen.openai)

    @property
    def checked(self) -> EndpointSettings:
        """The settings for requests after an ingress has checked their callers."""
        return replace(
            self,
            host=None,
            grpc_host=None,
            http=replace(self.http, allow_foreign=True, restricted_api=()),
            grpc=replace(self.grpc, restricted_protocol=()),
            openai=replace(self.openai, api_key=""),
        )

    def listen(self, node: str) -> ListenOptions:
        """Return the same options for endpoints that listen themselves, on free ports.

        Parameters
        ----------
        node : str
            The address of the node. The ports are on its loopback interface if those of the deployment are.
        """

        def on(host: str | None) -> str:
            return host if host is not None and is_loopback(host) else node

        http = replace(self.http, allow_foreign=self.http.allow_foreign or self.host is None)
        return ListenOptions(
            on(self.host), 0, http=http, grpc_port=0, grpc_host=on(self.grpc_host), grpc=self.grpc, openai=self.openai
        )


def _options(listen: ListenOptions) -> Iterator[tuple[str, Any, Any]]:
    """Yield every option with its value and its default; the options of a group as ``group.name``."""
    defaults = ListenOptions()
    for option in fields(listen):
        value, default = getattr(listen, option.name), getattr(defaults, option.name)
        if is_dataclass(default):
            for member in fields(default):
                yield f"{option.name}.{member.name}", getattr(value, member.name), getattr(default, member.name)
        else:
            yield option.name, value, default


def _shown(name: str) -> str:
    flag = _FLAGS.get(name, name.replace(".", "-").replace("_", "-"))
    return f"{name} (--{flag})" if flag else name


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The options of the engine of each replica of a group, and of its endpoints.

    Attributes
    ----------
    repositories : tuple of str
        Absolute paths, on every node.
    options : mapping
        Fields of `EngineOptions`.
    endpoints : EndpointSettings
    direct : bool
        Whether a replica also listens on its own ports.
    """

    repositories: tuple[str, ...]
    options: Mapping[str, Any]
    endpoints: EndpointSettings
    direct: bool

    def engine_options(self) -> EngineOptions:
        """Return the options of the engine.

        Raises
        ------
        InvalidArgumentError
            If one is invalid.
        """
        return EngineOptions(tuple(map(Path, self.repositories)), **self.options)
