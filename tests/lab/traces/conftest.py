"""The servers of the tests of connections."""

from __future__ import annotations

from tests.client.conftest import remote, remote_server

__all__ = ["remote", "remote_server"]
