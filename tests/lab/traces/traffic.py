"""Requests with ids over gRPC, at the times of a Poisson process or from clients that wait for their responses."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc


def send(
    url: str, model: str, requests: int, *, rate: float = 0, clients: int = 0, rows: int = 1, seed: int = 1
) -> None:
    """Send requests whose ids are their numbers, and wait for all responses.

    Give ``rate`` (requests per second) or ``clients``; each request has 1 to ``rows`` rows.
    """
    with grpc.insecure_channel(url.removeprefix("grpc://")) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        done = threading.Semaphore(0)
        messages = _messages(model, requests, rows, seed)
        if clients:
            lock = threading.Lock()

            def send_next(previous: grpc.Future | None = None) -> None:
                with lock:
                    message = next(messages, None)
                if previous is not None:
                    done.release()
                if message is not None:
                    infer.future(message).add_done_callback(send_next)

            for _ in range(clients):
                send_next()
        else:
            due, generator = time.monotonic(), random.Random(seed)
            for message in messages:
                due += generator.expovariate(rate)
                time.sleep(max(0.0, due - time.monotonic()))
                infer.future(message).add_done_callback(lambda call: done.release())
        for _ in range(requests):
            assert done.acquire(timeout=60)


def _messages(model: str, requests: int, rows: int, seed: int) -> Iterator[service_pb2.ModelInferRequest]:
    generator = random.Random(seed)
    for number in range(requests):
        array = np.full((generator.randint(1, rows), 1), number, np.float32)
        message = service_pb2.ModelInferRequest(model_name=model, id=str(number))
        message.inputs.add(name="X", datatype="FP32", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
        yield message
