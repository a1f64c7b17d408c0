"""NVIDIA's HTTP clients, closed by the thread that uses them.

Their destructor closes them with gevent, which may only be used on the thread of the client, but the garbage collector
runs on any thread. Events of the client's thread are then lost, so that it waits forever.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

_clients: list[Any] = []


def pytest_collection_finish() -> None:
    """From now on, clients of the main thread are recorded, and no destructor closes one on another thread."""
    if "tritonclient.http" not in sys.modules:
        return
    client_class = sys.modules["tritonclient.http"].InferenceServerClient
    initialise = client_class.__init__

    def record(client: Any, *args: Any, **kwargs: Any) -> None:
        client.thread = threading.get_ident()
        initialise(client, *args, **kwargs)
        if threading.current_thread() is threading.main_thread():
            _clients.append(client)

    def close(client: Any) -> None:
        if getattr(client, "thread", None) == threading.get_ident() and hasattr(client, "_closed"):
            client.close()

    client_class.__init__ = record
    client_class.__del__ = close


@pytest.fixture(autouse=True)
def nvidia_clients() -> Iterator[None]:
    """Close the HTTP clients that the test makes."""
    before = len(_clients)
    yield
    for client in _clients[before:]:
        client.close()
    del _clients[before:]
