"""The options of the HTTP endpoint: tritonserver's ``--http-`` flags, and a few of our own."""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.option_types import check_types

#: What a client can do about a body that is too large: by the limit.
RAISE_BODY_SIZE = "send less, or raise HttpOptions.max_body_size"
RAISE_INPUT_SIZE = "send less, or raise --http-max-input-size (HttpOptions.max_input_size)"


def too_large(limit: int, size: int, remedy: str) -> str:
    """Return the error for a request body of more than ``limit`` bytes; its size is 0 if it is not known.

    Examples
    --------
    >>> too_large(20, 0, RAISE_BODY_SIZE)
    'request body: expected at most 20 bytes, got more: send less, or raise HttpOptions.max_body_size'
    """
    return f"request body: expected at most {limit} bytes, got {size or 'more'}: {remedy}"


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Options of the HTTP endpoint.

    Attributes
    ----------
    max_input_size : int
        ``--http-max-input-size``, in bytes: the limit for the JSON part of a request, for a tensor in JSON, for a
        raw binary request, and for decompressed data. 64 MiB by default, as on Triton.
    max_body_size : int
        The limit for a whole request body, as sent and after it is decompressed, in bytes. 2 GiB by default.
    max_unread_size : int
        Bytes of responses that clients have not read, in all: beyond it, connections that read nothing for 5 s are
        closed. 1 GiB by default.
    allow_foreign : bool
        Accept any ``Host`` and ``Origin`` header.
    allowed_hosts : tuple of str
        Host names to accept in addition to the names of this machine.
    restricted_api : tuple of (api, header, value)
        ``--http-restricted-api``: requests to this API must have this header with this value.
    header_forward_pattern : str
        ``--http-header-forward-pattern``: a header whose name matches becomes a parameter of the inference request,
        with its name in lower case.
    reuse_port : bool
        ``--reuse-http-port``: share the port with other servers that set this option.

    Examples
    --------
    >>> HttpOptions(max_input_size=1 << 20).allow_foreign
    False
    """

    max_input_size: int = 67_108_864
    # Triton has no limit for binary tensors; here a kernel shares its memory with the server.
    max_body_size: int = (1 << 31) - 1
    max_unread_size: int = 1 << 30
    # Triton accepts every host. A notebook's server runs beside a browser, where any page can send requests to
    # 127.0.0.1.
    allow_foreign: bool = False
    allowed_hosts: tuple[str, ...] = ()
    restricted_api: tuple[tuple[str, str, str], ...] = ()
    header_forward_pattern: str = ""
    reuse_port: bool = False

    def __post_init__(self) -> None:
        check_types(self, "HttpOptions.")
        for name in ("max_input_size", "max_body_size"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"HttpOptions.{name}: expected at least 1, got {getattr(self, name)}")
