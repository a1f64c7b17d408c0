"""Autoscaling once for real: replicas are added under load and go afterwards, and live sequences stay where they are.

    python -m tools.ray_autoscaling

Starts a Ray cluster of three nodes on this machine with 1 to 3 replicas. Sequences begin on the first replica and send
a request now and then, while clients without sequences make the load that adds replicas; then the load ends.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import Any

import ray
import tritonclient.http as triton

import tritonnb as tnb
from tools.ray_chaos import MODELS, REPOSITORY, allow_idle_sequences, number, ones, start_cluster

SEQUENCES = 20
CLIENTS = 24


def homes(server: tnb.ScaledServer) -> dict[Any, str]:
    """Return the replica of each live sequence."""
    return {
        sequence["sequence_id"]: str(replica["replica"])
        for replica in server.replicas()
        for sequence in replica["sequences"]
    }


def wait_for(server: tnb.ScaledServer, count: int, seconds: float) -> float:
    """Wait for a number of running replicas; the seconds that it took."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        if sum(replica["state"] == "RUNNING" for replica in server.replicas()) == count:
            return time.monotonic() - begun
        time.sleep(0.5)
    raise SystemExit(f"expected {count} running replicas within {seconds:.0f} s, got {server.replicas()}")


class Load:
    """Clients that send requests without sequences until they are stopped."""

    def __init__(self, url: str) -> None:
        self.answered = 0
        self.errors: list[str] = []
        self._url = url
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the clients."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        tensors = ones()
        with triton.InferenceServerClient(self._url, network_timeout=120, connection_timeout=120) as client:
            while not self._stop.is_set():
                try:
                    client.infer("add_sub", tensors)
                except triton.InferenceServerException as error:
                    with self._lock:
                        self.errors.append(str(error.message()))
                else:
                    with self._lock:
                        self.answered += 1


class Sequences:
    """Live sequences of the accumulator, whose sums are checked."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url, network_timeout=120, connection_timeout=120)
        self.totals = dict.fromkeys(range(1, SEQUENCES + 1), 0)
        self.wrong: list[str] = []

    def add(self, **flags: bool) -> None:
        """Send one request of each."""
        for id in self.totals:
            answer = self._client.infer("accumulator", number(id), sequence_id=id, **flags)
            self.totals[id] += id
            if (total := int(answer.as_numpy("OUTPUT").item())) != self.totals[id]:
                self.wrong.append(f"sequence {id}: expected {self.totals[id]}, got {total}")


def observe(server: tnb.ScaledServer, seconds: float) -> dict[str, Any]:
    """Run the load, and return what happened."""
    address = server.url.removeprefix("http://")
    allow_idle_sequences(server.url, 600)
    sequences = Sequences(address)
    sequences.add(sequence_start=True)
    time.sleep(2)  # replicas report every second
    before = homes(server)
    load = Load(address)
    up_s = wait_for(server, 3, seconds)
    sequences.add()
    time.sleep(2)
    during = homes(server)
    load.stop()
    stopped = time.monotonic()
    while sum(replica["state"] == "RUNNING" for replica in server.replicas()) > 1:
        sequences.add()
        if time.monotonic() - stopped > seconds:
            raise SystemExit("the replicas were not removed")
    down_s = time.monotonic() - stopped
    sequences.add(sequence_end=True)
    return {
        "seconds until 3 replicas ran": round(up_s, 1),
        "seconds until 1 replica ran after the load": round(down_s, 1),
        "requests of the load": load.answered,
        "errors of the load": load.errors,
        "live sequences": len(before),
        "sequences that moved": sum(during.get(id) != replica for id, replica in before.items()),
        "wrong sums": sequences.wrong,
    }


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150, help="that scaling up, and scaling down, may take")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    cluster = start_cluster()
    server = tnb.scale(
        REPOSITORY,
        address=cluster.address,
        port=arguments.port,
        autoscaling={
            "min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 2,
            "upscale_delay_s": 3, "downscale_delay_s": 10, "metrics_interval_s": 1, "look_back_period_s": 3,
        },
        ingress_replicas=2,
        exit_timeout=300.0,
        ray_actor_options={"num_cpus": 0.1},
        load_models=MODELS,
    )  # fmt: skip
    try:
        result = observe(server, arguments.seconds)
        print(json.dumps(result, indent=2))
        return 1 if result["sequences that moved"] or result["wrong sums"] or result["errors of the load"] else 0
    finally:
        server.stop()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    raise SystemExit(main())
