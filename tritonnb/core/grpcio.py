"""grpcio, which only some features need: TLS and keep-alive of the gRPC endpoint, and clients over gRPC."""

from __future__ import annotations

from tritonnb.core.errors import UnsupportedError


def require_grpcio(what: str) -> None:
    """Check that grpcio can be imported.

    Parameters
    ----------
    what : str
        What needs it, for the message.

    Raises
    ------
    UnsupportedError
        If it cannot.
    """
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        text = f"{what}: expected the package grpcio, got '{error}'"
        raise UnsupportedError(f'{text}: pip install "tritonnb[grpc]"') from error
