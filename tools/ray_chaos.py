"""Sequences while replicas are added, removed and killed: no sum is wrong, and no sequence is restarted silently.

    python -m tools.ray_chaos --seconds 180 --sequences 200

Starts a Ray cluster of three nodes on this machine, with the accumulator behind two ingress replicas. Every client
adds numbers in a sequence and compares each sum. A sequence may end early only with a documented error: Triton's for an
unknown sequence, or that of a lost replica. Requests to a stateless model run at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
import tritonclient.http as triton
from ray.cluster_utils import Cluster
from tritonclient.utils import InferenceServerException

import tritonnb as tnb

MODELS = ["accumulator", "add_sub"]
REPOSITORY = Path(__file__).parents[1] / "model_repository"
#: What a sequence may end with: the beginnings of the parts of documented errors.
ENDED = ("must specify the START flag on the first request of the sequence", "has ended: its replica was lost")


@dataclass
class Result:
    """What happened; the lists of errors are empty if the deployment kept its promises."""

    completed: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    wrong_sums: list[str] = field(default_factory=list)
    undocumented: list[str] = field(default_factory=list)
    stateless: Counter[str] = field(default_factory=Counter)
    events: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For printing."""
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}


def start_cluster(attempts: int = 5) -> Cluster:
    """Start a cluster of three nodes on this machine; again if it takes longer than Ray waits, on a busy machine."""
    os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
    cluster = Cluster()
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20)
    except Exception:
        cluster.shutdown()
        if attempts == 1:
            raise
        return start_cluster(attempts - 1)
    return cluster


def start(replicas: int = 2, port: int = 0) -> tuple[Cluster, tnb.ScaledServer]:
    """Start a cluster of three nodes, and the deployment on it."""
    cluster = start_cluster()
    server = tnb.scale(
        REPOSITORY,
        address=cluster.address,
        port=port,
        replicas=replicas,
        ingress_replicas=2,
        drain_timeout=30.0,
        ray_actor_options={"num_cpus": 0.1},
        load_models=MODELS,
    )
    return cluster, server


def allow_idle_sequences(url: str, seconds: int = 120) -> None:
    """Load the accumulator with slots for many sequences, which may be idle as long as a busy machine makes them."""
    with triton.InferenceServerClient(url.removeprefix("http://"), network_timeout=60) as client:
        config = client.get_model_config("accumulator")
        config["sequence_batching"]["max_sequence_idle_microseconds"] = seconds * 1_000_000
        config["max_batch_size"] = 256  # slots of the direct strategy
        client.load_model("accumulator", config=json.dumps(config))


def kill_one(name: str, choose: random.Random) -> str:
    """End the process of a random engine replica; returns its name."""
    prefix = f"SERVE_REPLICA::{name}#engine#"
    actors = [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["name"].startswith(prefix)]
    victim = choose.choice(sorted(actors, key=str))
    ray.kill(ray.get_actor(victim["name"], namespace=victim["namespace"]), no_restart=True)
    return str(victim["name"])


def number(value: int) -> list[triton.InferInput]:
    """The input of the accumulator."""
    tensor = triton.InferInput("INPUT", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


class Clients:
    """Threads that send sequences and stateless requests until a time.

    Parameters
    ----------
    url : str
        ``HOST:PORT``.
    until : float
        On the monotonic clock.
    """

    def __init__(self, url: str, until: float) -> None:
        self._url = url
        self._until = until
        self._lock = threading.Lock()
        self._ids = iter(range(1, 1 << 40))
        self.result = Result()

    def sequences(self, length: int, pause: float) -> None:
        """Run one sequence after another."""
        with triton.InferenceServerClient(self._url, network_timeout=120, connection_timeout=120) as client:
            while time.monotonic() < self._until:
                with self._lock:
                    id = next(self._ids)
                self._count(*self._one(client, id, length, pause))

    def stateless(self) -> None:
        """Send requests without a sequence."""
        left, right = (triton.InferInput(name, [1, 4], "FP32") for name in ("INPUT0", "INPUT1"))
        for tensor in (left, right):
            tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        with triton.InferenceServerClient(self._url, network_timeout=120, connection_timeout=120) as client:
            while time.monotonic() < self._until:
                try:
                    client.infer("add_sub", [left, right])
                    outcome = "answered"
                except InferenceServerException as error:
                    outcome = str(error.message())
                with self._lock:
                    self.result.stateless[outcome] += 1

    def _one(self, client: Any, id: int, length: int, pause: float) -> tuple[str, str]:
        total = 0
        for step in range(length):
            try:
                answer = client.infer(
                    "accumulator",
                    number(step),
                    sequence_id=id,
                    sequence_start=step == 0,
                    sequence_end=step == length - 1,
                )
            except InferenceServerException as error:
                text = str(error.message())
                documented = next((part for part in ENDED if part in text), "") if step or ENDED[1] in text else ""
                return ("ended", documented) if documented else ("undocumented", f"{id}/{step}: {text}")
            except Exception as error:
                return "undocumented", f"{id}/{step}: {type(error).__name__}: {error}"
            total += step
            if (got := int(answer.as_numpy("OUTPUT").item())) != total:
                return "wrong", f"sequence {id}, request {step}: expected {total}, got {got}"
            time.sleep(pause)
        return "completed", ""

    def _count(self, outcome: str, text: str) -> None:
        with self._lock:
            if outcome == "completed":
                self.result.completed += 1
            elif outcome == "ended":
                self.result.ended[text] += 1
            else:
                (self.result.wrong_sums if outcome == "wrong" else self.result.undocumented).append(text)


def chaos(
    server: tnb.ScaledServer, seconds: float, sequences: int, *, length: int = 20, period: float = 8.0, seed: int = 0
) -> Result:
    """Run sequences for a time while replicas come and go.

    Parameters
    ----------
    server : ScaledServer
        Of `start`.
    seconds : float
    sequences : int
        How many are live at the same time.
    length : int, optional
        Requests of each sequence.
    period : float, optional
        Seconds between two disturbances.
    seed : int, optional

    Returns
    -------
    Result
    """
    allow_idle_sequences(server.url)
    begun = time.monotonic()
    clients = Clients(server.url.removeprefix("http://"), begun + seconds)
    pause = sequences / 100  # about 100 requests a second at most
    work: list[Callable[[], None]] = [lambda: clients.sequences(length, pause)] * sequences + [clients.stateless]
    threads = [threading.Thread(target=function, daemon=True) for function in work]
    for thread in threads:
        thread.start()
    choose, replicas = random.Random(seed), 2
    while time.monotonic() + period < begun + seconds:
        time.sleep(period)
        action = choose.choice(["add", "remove", "kill"])
        if action == "kill":
            detail = kill_one(server.name, choose)
        else:
            replicas = min(4, replicas + 1) if action == "add" else max(1, replicas - 1)
            detail = f"to {replicas} replicas"
            threading.Thread(target=server.scale_to, args=[replicas], daemon=True).start()
        clients.result.events.append(f"{time.monotonic() - begun:.0f} s: {action} {detail}")
    for thread in threads:
        thread.join(120)
    return clients.result


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--period", type=float, default=8.0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cluster, server = start(port=arguments.port)
    try:
        result = chaos(server, arguments.seconds, arguments.sequences, period=arguments.period, seed=arguments.seed)
        print(json.dumps(result.to_dict(), indent=2))
        return 1 if result.wrong_sums or result.undocumented else 0
    finally:
        server.stop()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    raise SystemExit(main())
