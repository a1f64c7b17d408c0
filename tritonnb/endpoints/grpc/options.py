"""The options of the gRPC endpoint: tritonserver's ``--grpc-`` flags."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.option_types import check_types

if TYPE_CHECKING:
    import grpc

# Triton chooses among the client's algorithms by level. Here three levels have one effect: gzip, which every client
# supports.
COMPRESSION_LEVELS = ("none", "low", "medium", "high")
LARGEST_MESSAGE = 2**31 - 1
#: The limit of a message that was compressed: a thousandth of it is enough to make one.
LARGEST_DECOMPRESSED = 67_108_864
#: Prefixes of the options that only grpcio supports.
_NEEDS_GRPCIO = ("use_ssl", "keepalive", "http2", "max_connection")


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """Options of the gRPC endpoint; each is the flag ``--grpc-<name>`` of tritonserver.

    Attributes
    ----------
    use_ssl, use_ssl_mutual : bool
        TLS, and TLS with client certificates.
    server_cert, server_key, root_cert : str
        Paths of PEM files.
    infer_response_compression_level : str
        ``none``, ``low``, ``medium`` or ``high``.
    keepalive_time, keepalive_timeout : int
        Milliseconds.
    keepalive_permit_without_calls : bool
    http2_max_pings_without_data, http2_max_ping_strikes : int
    http2_min_recv_ping_interval_without_data : int
        Milliseconds.
    max_connection_age, max_connection_age_grace : int
        Milliseconds; 0 for no limit.
    header_forward_pattern : str
        Metadata with a matching key become request parameters.
    restricted_protocol : tuple of (protocol, key, value)
        Calls to the RPCs of this protocol must have this metadata.
    reuse_port : bool
        ``--reuse-grpc-port``: share the port with other servers that set this option.
    max_unread_size : int
        Bytes of responses that clients have not read, in all: beyond it, connections that read nothing for 5 s are
        closed. 1 GiB by default; not a flag of tritonserver. grpcio's transport ignores it.
    transport : str
        ``"fast"``, ``"grpcio"``, or ``"auto"``: fast, unless an option needs grpcio (TLS, keep-alive, age of
        connections), with which ``"fast"`` is an error. Not a flag of tritonserver.

    Examples
    --------
    >>> GrpcOptions(restricted_protocol=(("inference", "key", "secret"),)).infer_response_compression_level
    'none'
    >>> options = GrpcOptions(keepalive_time=60_000)
    >>> dict(options.channel_arguments())["grpc.keepalive_time_ms"], options.credentials()
    (60000, None)
    """

    use_ssl: bool = False
    use_ssl_mutual: bool = False
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""
    infer_response_compression_level: str = "none"
    # Triton's defaults, from here to `http2_max_ping_strikes`; they are gRPC's as well, so leaving them alone changes
    # nothing.
    keepalive_time: int = 7_200_000
    keepalive_timeout: int = 20_000
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = 2
    http2_min_recv_ping_interval_without_data: int = 300_000
    http2_max_ping_strikes: int = 2
    max_connection_age: int = 0
    max_connection_age_grace: int = 0
    header_forward_pattern: str = ""
    restricted_protocol: tuple[tuple[str, str, str], ...] = ()
    reuse_port: bool = False
    max_unread_size: int = 1 << 30
    transport: str = "auto"

    def __post_init__(self) -> None:
        check_types(self, "GrpcOptions.")

    def channel_arguments(self) -> list[tuple[str, int]]:
        """Return the options under gRPC's names."""
        arguments: list[tuple[str, int]] = [
            ("grpc.so_reuseport", int(self.reuse_port)),
            ("grpc.max_send_message_length", LARGEST_MESSAGE),
            ("grpc.max_receive_message_length", LARGEST_MESSAGE),
            ("grpc.keepalive_time_ms", self.keepalive_time),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout),
            ("grpc.keepalive_permit_without_calls", int(self.keepalive_permit_without_calls)),
            ("grpc.http2.max_pings_without_data", self.http2_max_pings_without_data),
            ("grpc.http2.min_ping_interval_without_data_ms", self.http2_min_recv_ping_interval_without_data),
            ("grpc.http2.max_ping_strikes", self.http2_max_ping_strikes),
        ]
        # 0 is our word for "no limit"; to gRPC, an age of 0 ms would close each connection at once.
        if self.max_connection_age:
            arguments.append(("grpc.max_connection_age_ms", self.max_connection_age))
        if self.max_connection_age_grace:
            arguments.append(("grpc.max_connection_age_grace_ms", self.max_connection_age_grace))
        return arguments

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return the credentials for TLS; None without TLS.

        Raises
        ------
        InvalidArgumentError
            If a file cannot be read.
        """
        # Mutual TLS implies TLS: on Triton, `--grpc-use-ssl-mutual` preempts the other flag.
        if not (self.use_ssl or self.use_ssl_mutual):
            return None
        import grpc  # only a server with TLS needs it here

        missing = [name for name in ("server_key", "server_cert") if not getattr(self, name)]
        if self.use_ssl_mutual and not self.root_cert:
            missing.append("root_cert")
        if missing:
            flags = ", ".join(f"--grpc-{name.replace('_', '-')}" for name in missing)
            names = ", ".join(f"GrpcOptions.{name}" for name in missing)
            raise InvalidArgumentError(
                f"gRPC endpoint: cannot read the files for TLS: expected {flags} ({names}), got none"
            )
        try:
            pair = Path(self.server_key).read_bytes(), Path(self.server_cert).read_bytes()
            roots = Path(self.root_cert).read_bytes() if self.use_ssl_mutual else None
        except OSError as error:
            raise InvalidArgumentError(f"gRPC endpoint: cannot read the files for TLS: {error}") from error
        return grpc.ssl_server_credentials([pair], roots, self.use_ssl_mutual)

    @property
    def grpcio_options(self) -> list[str]:
        """The options that are set and that only grpcio's transport supports."""
        options = [option for option in fields(self) if option.name.startswith(_NEEDS_GRPCIO)]
        # An option that is set to its default needs nothing, so scripts that spell out Triton's defaults keep the fast
        # transport.
        return [option.name for option in options if getattr(self, option.name) != option.default]
