"""Recordings of a busy real Triton, replayed: the share of its batches that this project's scheduler forms, too.

Each recording has a configuration and a load at random: two or three instances, and requests that arrive at random
times and use half to nine tenths of what the instances can execute.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from pathlib import Path

import tritonnb as tnb
from benchmarks import servers

#: Number of recordings.
COUNT = 10
_MODEL = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        time.sleep({base_s} + {row_s} * sum(map(len, inputs)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in inputs]
"""
_CONFIG = """
backend: "python"
max_batch_size: {max_rows}
input {{ name: "X" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "Y" data_type: TYPE_FP32 dims: 1 }}
instance_group {{ count: {instances} kind: KIND_CPU }}
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """A model that sleeps, and the load on it: times in ms and µs, the rate in requests per second."""

    instances: int
    max_rows: int
    delay_us: int
    base_ms: float
    row_ms: float
    rate: float

    def __str__(self) -> str:
        model = f"{self.instances}×{self.max_rows} rows, {self.base_ms:.1f} ms + {self.row_ms:.2f} ms per row"
        return f"{model}, {self.delay_us} µs delay, {self.rate:.0f}/s"

    @classmethod
    def at_random(cls, choose: random.Random) -> Setup:
        """A setup in which the instances are busy for half to nine tenths of the time, with full batches."""
        instances, max_rows = choose.choice((2, 3)), choose.choice((4, 8, 16))
        base_ms, row_ms = choose.uniform(3, 15), choose.uniform(0.2, 2)
        capacity = instances * max_rows / (base_ms + row_ms * max_rows) * 1000
        delay_us = choose.choice((0, 500, 1000, 2000, 5000))
        return cls(instances, max_rows, delay_us, base_ms, row_ms, choose.uniform(0.5, 0.9) * capacity)

    def write(self, directory: Path) -> None:
        """Write the model and its configuration."""
        (directory / "1").mkdir(parents=True)
        program = _MODEL.format(base_s=self.base_ms / 1000, row_s=self.row_ms / 1000)
        (directory / "1" / "model.py").write_text(program)
        config = _CONFIG.format(instances=self.instances, max_rows=self.max_rows, delay_us=self.delay_us)
        (directory / "config.pbtxt").write_text(config)


def recordings(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Ten recordings of a busy real Triton: the share of batches that the scheduler forms equally; target 95 % each."""
    choose = random.Random(0)
    setups = {f"model_{number}": Setup.at_random(choose) for number in range(COUNT)}
    repository, trace = scratch / "recorded", scratch / "trace.json"
    for name, setup in setups.items():
        setup.write(repository / name)
    shares: dict[str, float] = {}
    grpc = servers.free_port()  # Triton may crash while it traces every request of many HTTP connections
    with servers.triton(repository, scratch, "model_0", grpc, [f"--trace-config=triton,file={trace}"]):
        remote = tnb.connect(f"grpc://127.0.0.1:{grpc}")
        for name, setup in setups.items():
            with remote.record(name) as recording:
                tnb.load(remote[name], rate=setup.rate, arrivals="poisson", duration=seconds * 2).wait()
            agreement = recording.agreement
            assert agreement is not None
            shares[f"{setup}"] = agreement.share
            print(f"{setup}: {agreement}", flush=True)
    print(f"lowest {min(shares.values()):.1%}, median {statistics.median(shares.values()):.1%}")
    return dict(shares)
