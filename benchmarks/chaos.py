"""Crashes at random moments under load: ``python -m benchmarks.chaos --crashes 1000``.

Sixteen clients send requests to isolated models, with and without sequences. Some requests make the model end its
process; others end because a process is killed from outside, whatever it does. Every response must be right, or an
error that is documented for a batch or a sequence whose process ended; every crash may cost one batch and the
sequences of one instance; nothing may be left behind.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchExecuted, InstanceStateChanged
from tritonnb.core.packed_events import Packed, failures_of, positions
from tritonnb.server.server import Server

CLIENTS = 16
SEQUENCE_CLIENTS = 4
SEQUENCE_LENGTH = 5
FAULTS = ("segfault", "exit", "kill", "loop")

_MODEL = """
import ctypes
import json
import os
import signal

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        fault = json.loads(request.parameters()).get("fault")
        if fault:
            getattr(self, fault)()
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        start = pb_utils.get_input_tensor_by_name(request, "START")
        id = request.correlation_id()
        if start is None or start.as_numpy().any() or not id:
            self.sums[id] = np.zeros_like(x)
        self.sums[id] = self.sums[id] + x
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.sums[id])])

    def segfault(self):
        ctypes.string_at(0)

    def exit(self):
        os._exit(3)

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def loop(self):
        while True:
            signal.pause()
"""
_TENSORS = """
    backend: "python" max_batch_size: 4 instance_group { count: 2 kind: KIND_CPU }
    input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
    parameters { key: "EXECUTION_PROCESS" value { string_value: "isolated" } }
    parameters { key: "EXECUTION_TIMEOUT" value { string_value: "2" } }
"""
_SEQUENCES = """
    sequence_batching { max_sequence_idle_microseconds: 600000000 STRATEGY
      control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } }
"""
MODELS = {
    "echo": _TENSORS + "dynamic_batching { }",
    "direct": _TENSORS + _SEQUENCES.replace("STRATEGY", "direct { }"),
    "oldest": _TENSORS + _SEQUENCES.replace("STRATEGY", "oldest { max_candidate_sequences: 4 }"),
}


@dataclass
class Outcome:
    """Observations of the clients and the event stream.

    Attributes
    ----------
    right, wrong : int
        Responses with the expected value, and with another one.
    errors : Counter
        Error responses by text, without the name of the instance.
    lost : Counter
        How often each instance was lost.
    unexplained : list of str
        The instances of failed batches that no crash explains, in order.
    """

    right: int = 0
    wrong: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    _failed: set[str] = field(default_factory=set)
    _down: set[str] = field(default_factory=set)

    def fold(self, packed: Packed) -> None:
        """Count an event.

        A batch may fail if its instance is lost right afterwards, or was lost and does not run again yet.
        """
        if packed[0] == "InstanceStateChanged":
            at = positions(InstanceStateChanged)
            instance, state = packed[at.instance], packed[at.state]
            if state == "LOST":
                self.lost[instance] += 1
                self._failed.discard(instance)
                self._down.add(instance)
            elif state == "READY":
                self._down.discard(instance)
        elif packed[0] == "BatchExecuted":
            instance = packed[positions(BatchExecuted).instance]
            if instance in self._failed:
                self.unexplained.append(instance)
                self._failed.discard(instance)
            if failures_of(packed) and instance not in self._down:
                self._failed.add(instance)


def write_models(repository: Path) -> Path:
    """Write the models; returns the repository."""
    for name, config in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(_MODEL)
        (repository / name / "config.pbtxt").write_text(config)
    return repository


def chaos(server: Server, crashes: int, seed: int = 0, report: Callable[[Outcome], None] = lambda _: None) -> Outcome:
    """Load the models until as many instances were lost.

    Parameters
    ----------
    server : Server
        With the models of `write_models`.
    crashes : int
    seed : int, optional
        Of the random numbers.
    report : callable, optional
        Called about ten times a second, on this thread.
    """
    outcome, done, lock = Outcome(), threading.Event(), threading.Lock()

    def send(choice: random.Random, model: str, x: float, expected: float, **options: Any) -> bool:
        """Send one request; whether it was answered."""
        fault = choice.choice(FAULTS) if choice.random() < 0.02 else ""
        parameters = {"fault": fault} if fault and not done.is_set() else {}
        text, value = "", 0.0
        try:
            inputs = {"X": np.full((1, 1), x, np.float32)}
            value = float(server[model].infer(inputs, parameters=parameters, **options)["Y"].item())
        except TritonError as error:
            text = _without_names(error.message)
        with lock:
            if text:
                outcome.errors[text] += 1
            else:
                outcome.right += value == expected
                outcome.wrong += value != expected
        return not text

    def client(number: int) -> None:
        choice = random.Random(f"{seed} {number}")
        count = 0
        while not done.is_set():
            count += 1
            if number >= SEQUENCE_CLIENTS:
                x = float(number * 10_000 + count % 10_000)
                send(choice, "echo", x, x)
                continue
            model = ("direct", "oldest")[number % 2]
            for step in range(1, SEQUENCE_LENGTH + 1):
                id, last = number * 1_000_000 + count, step == SEQUENCE_LENGTH
                options = {"sequence_id": id, "sequence_start": step == 1, "sequence_end": last}
                if not send(choice, model, float(number + 1), float(step * (number + 1)), **options):
                    break

    def kill_processes() -> None:
        choice = random.Random(f"{seed} killer")
        while not done.wait(choice.uniform(0.0, 2.0)):
            processes = psutil.Process().children()
            if processes:
                choice.choice(processes).kill()

    server.call(server.engine.stream.attach, outcome.fold)
    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    threads.append(threading.Thread(target=kill_processes))
    for thread in threads:
        thread.start()
    try:
        while outcome.lost.total() < crashes:
            done.wait(0.1)
            report(outcome)
    finally:
        done.set()
        for thread in threads:
            thread.join()
        server.call(server.engine.stream.detach, outcome.fold)
    return outcome


#: The only errors that a request may get; the first one if its sequence has ended, since its instance was lost.
EXPECTED_ERRORS = {
    "must specify the START flag",
    "Stub process is not healthy.",
    "Stub process is not healthy. The execution took longer than EXECUTION_TIMEOUT, 2 s.",
}


def _without_names(message: str) -> str:
    """The text of an error without the name of the instance, or the ID of the sequence."""
    words = message.split(" ")
    if message.startswith("Stub process '"):
        del words[2]
    if message.startswith("inference request for sequence"):
        words = ["must specify the START flag"]
    return " ".join(words)


def resources() -> dict[str, int]:
    """Resident memory in MB, descriptors, threads, processes, and regions of shared memory of this process."""
    process = psutil.Process()
    files = [os.readlink(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd") if _is_open(file)]
    return {
        "MB": process.memory_info().rss >> 20,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "processes": len(process.children()),
        "regions": sum("memfd:tritonnb" in name for name in files),
    }


def _is_open(file: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{file}")


def main() -> None:
    """Run it, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crashes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    printed = time.monotonic()

    def report(outcome: Outcome) -> None:
        nonlocal printed
        if time.monotonic() - printed >= 10:
            printed = time.monotonic()
            print(
                f"{outcome.lost.total()} crashes, {outcome.right} right, {outcome.wrong} wrong: {resources()}",
                flush=True,
            )

    with tempfile.TemporaryDirectory() as directory:
        with Server(write_models(Path(directory)), port=None, allow_http=False) as server:
            outcome = chaos(server, options.crashes, options.seed, report)
        print(outcome)
        print(f"failed batches without a crash: {outcome.unexplained or 'none'}")
        print(f"unexpected errors: {outcome.errors.keys() - EXPECTED_ERRORS or 'none'}")
        print(f"after the server has stopped: {resources()}")


if __name__ == "__main__":
    main()
