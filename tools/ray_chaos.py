"""Sequences while replicas are added, removed and killed: no sum is wrong, and no sequence is restarted silently.

    python -m tools.ray_chaos --seconds 180 --sequences 200

Starts a Ray cluster of three nodes on this machine, with the accumulator behind two ingress replicas. Every client
adds numbers in a sequence and compares each sum. A sequence may end early only with a documented error (Triton's for an
unknown sequence, or that of a lost replica), and only if its replica was killed, or was to go and waited as long as it
may. A sequence may be refused if no replica is running for a minute. Requests to a stateless model run at the same
time; they may fail only when the replica that had them is killed, a second time after they were sent again.
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
from tritonnb.core.errors import TritonError

MODELS = ["accumulator", "add_sub"]
REPOSITORY = Path(__file__).parents[1] / "model_repository"
#: What a sequence may end with: the beginnings of the parts of documented errors.
ENDED = ("must specify the START flag on the first request of the sequence", "has ended: its replica was lost")
#: What a START request, or a request without a sequence, may be refused with.
REFUSED = "no replica of 'engine' is running"
LOST = "the replica of 'engine' that had the request was lost"
DRAIN_TIMEOUT_S = 30.0
#: How inexactly the times are known at which replicas changed.
_SLACK_S = 5.0


@dataclass
class Result:
    """Observations of a run; the lists of errors are empty if the deployment kept its promises."""

    completed: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    wrong_sums: list[str] = field(default_factory=list)
    undocumented: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    stateless: Counter[str] = field(default_factory=Counter)
    events: list[str] = field(default_factory=list)
    replicas: dict[str, int] = field(default_factory=dict)

    @property
    def promises_kept(self) -> bool:
        """True if nothing happened that the documentation excludes."""
        return not (self.wrong_sums or self.undocumented or self.unexplained)

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
        exit_timeout=DRAIN_TIMEOUT_S,
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
    """End the process of a random engine replica; returns its ID."""
    prefix = f"SERVE_REPLICA::{name}#engine#"
    actors = [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["name"].startswith(prefix)]
    victim = choose.choice(sorted(actors, key=str))
    ray.kill(ray.get_actor(victim["name"], namespace=victim["namespace"]), no_restart=True)
    return str(victim["name"]).removeprefix(prefix)


class Placements:
    """The replicas of sequences, and states of replicas, read from the deployment twice a second."""

    def __init__(self, server: tnb.ScaledServer) -> None:
        self._server = server
        self._replica_of: dict[int | str, str] = {}
        self._draining_s: dict[str, float] = {}
        self._seen_s: dict[str, float] = {}
        self.killed_s: dict[str, float] = {}
        self.per_replica: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()

    def unexplained(self, id: int, ended_s: float) -> str:
        """Explain an unexpected error of a sequence; empty if its replica was lost, or never reported it."""
        replica = self._replica_of.get(id, "")
        if not replica:
            return ""
        if (killed_s := self.killed_s.get(replica)) is not None:
            return "" if ended_s > killed_s - _SLACK_S else f"{id}: ended before its replica {replica} was killed"
        waited_s = self._seen_s[replica] - self._draining_s.get(replica, self._seen_s[replica])
        if ended_s > self._seen_s[replica] - _SLACK_S and waited_s > DRAIN_TIMEOUT_S - _SLACK_S:
            return ""
        return f"{id}: ended on replica {replica}, which was not lost (it waited {waited_s:.0f} s to be stopped)"

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            try:
                replicas = self._server.replicas()
            except TritonError:
                continue
            now = time.monotonic()
            for replica in replicas:
                name = str(replica["replica"])
                self._seen_s[name] = now
                if replica["state"] == "DRAINING":
                    self._draining_s.setdefault(name, now)
                for sequence in replica["sequences"]:
                    self.per_replica[name] += sequence["sequence_id"] not in self._replica_of
                    self._replica_of[sequence["sequence_id"]] = name


def number(value: int) -> list[triton.InferInput]:
    """Return the input of the accumulator."""
    tensor = triton.InferInput("INPUT", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


def ones() -> list[triton.InferInput]:
    """Return the inputs of the model ``add_sub``."""
    tensors = [triton.InferInput(name, [1, 4], "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
    return tensors


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
        self.ended_s: dict[int, float] = {}

    def sequences(self, length: int, pause: float) -> None:
        """Run one sequence after another."""
        with triton.InferenceServerClient(self._url, network_timeout=120, connection_timeout=120) as client:
            while time.monotonic() < self._until:
                with self._lock:
                    id = next(self._ids)
                outcome, text = self._one(client, id, length, pause)
                if outcome == "ended":
                    self.ended_s[id] = time.monotonic()
                self._count(outcome, text)

    def stateless(self) -> None:
        """Send requests without a sequence."""
        tensors = ones()
        with triton.InferenceServerClient(self._url, network_timeout=120, connection_timeout=120) as client:
            while time.monotonic() < self._until:
                try:
                    client.infer("add_sub", tensors)
                    outcome = "answered"
                except InferenceServerException as error:
                    outcome = str(error.message())
                with self._lock:
                    self.result.stateless[outcome] += 1
                    if outcome != "answered" and REFUSED not in outcome and LOST not in outcome:
                        self.result.undocumented.append(f"add_sub: {outcome}")

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
                if not step and REFUSED in text:
                    return "refused", text
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
            elif outcome == "refused":
                self.result.refused += 1
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
    placements = Placements(server)
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
            placements.killed_s[detail] = time.monotonic()
        else:
            action = "add" if replicas == 1 or (action == "add" and replicas < 4) else "remove"
            replicas += 1 if action == "add" else -1
            detail = f"to {replicas} replicas"
            threading.Thread(target=server.scale_to, args=[replicas], daemon=True).start()
        clients.result.events.append(f"{time.monotonic() - begun:.0f} s: {action} {detail}")
    for thread in threads:
        thread.join(120)
    placements.close()
    result = clients.result
    result.unexplained = [text for id, at_s in clients.ended_s.items() if (text := placements.unexplained(id, at_s))]
    result.replicas = dict(placements.per_replica)
    return result


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
        return 0 if result.promises_kept else 1
    finally:
        server.stop()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    raise SystemExit(main())
