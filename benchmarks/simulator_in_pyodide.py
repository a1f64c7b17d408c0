"""Requests per second of the simulator in Pyodide, which has no NumPy here: key figures only."""

from __future__ import annotations

import json
import time

from google.protobuf import text_format

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.arrivals import poisson, sequences
from tritonnb.lab.simulation.engine import Columns
from tritonnb.lab.simulation.run import run_models
from tritonnb.lab.simulation.service import linear
from tritonnb.recording.arrivals import Arrival

BATCHER = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 }'
DIRECT = 'name: "m" max_batch_size: 8 sequence_batching { direct { } }'
SERVICE = linear(per_row_ms=0.25, base_ms=1)


def rate(text: str, arrivals: list[Arrival]) -> float:
    """Return simulated requests per second: the best of three runs."""
    config = text_format.Parse(text, pb.ModelConfig())
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        run_models({"m": config}, {"m": arrivals}, {"m": SERVICE}, 0, columns={"m": Columns()})
        seconds.append(time.perf_counter() - begin)
    return len(arrivals) / min(seconds)


if __name__ == "__main__":
    single, streams = poisson(2000, 10, seed=0), sequences([10] * 1000, every_ms=8, stagger_ms=10)
    print(json.dumps({"dynamic": rate(BATCHER, single), "sequence": rate(DIRECT, streams)}))
