"""Shared memory as NVIDIA's own client uses it, over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm

from tests.server.conftest import EXAMPLES
from tritonnb.server.server import Server

pytest.importorskip("_posixshmem")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(
        EXAMPLES, port=0, model_control_mode="explicit", load_models=["string_upper"], allow_client_shm=True
    ) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpclient.InferenceServerClient]:
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


def test_strings_are_sent_in_shared_memory(client: httpclient.InferenceServerClient) -> None:
    wire = np.frombuffer(b"\x06\0\0\0shared\x06\0\0\0memory", np.uint8)
    key = f"/tritonnb_test_strings_{os.getpid()}"
    handle = shm.create_shared_memory_region("strings", key, 1024)
    try:
        shm.set_shared_memory_region(handle, [wire])
        client.register_system_shared_memory("strings", key, 1024)
        tensor = httpclient.InferInput("TEXT", [2, 1], "BYTES")
        tensor.set_shared_memory("strings", wire.nbytes)
        wanted = httpclient.InferRequestedOutput("UPPER")
        wanted.set_shared_memory("strings", 512, offset=512)
        for _ in range(2):  # a head that was seen before must find its region again
            answer = client.infer("string_upper", [tensor], outputs=[wanted])
            assert answer.get_output("UPPER") == {"name": "UPPER", "datatype": "BYTES", "shape": [2, 1]}
        contents = shm.get_contents_as_numpy(handle, np.object_, [2, 1], offset=512)
        assert contents.tolist() == [[b"SHARED"], [b"MEMORY"]]
        client.unregister_system_shared_memory("strings")
        with pytest.raises(Exception, match="Unable to find shared memory region: 'strings'"):
            client.infer("string_upper", [tensor], outputs=[wanted])
    finally:
        shm.destroy_shared_memory_region(handle)
