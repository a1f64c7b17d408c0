"""Try to reproduce the drift of waiting instances (server #8870, core #509) on a real Triton.

The sources up to release 26.07 count the instances that wait for a payload. When two of them wait, and two payloads
that are not full are queued, the first one to wake merges both, and the other is still counted. With a queue timeout,
the batcher forms payloads only for instances that wait, so the count decides how many requests are served.

``TRITON_PREFIX=… python -m tools.waiting_consumers --seconds 120`` loads a model with such a configuration, with
clients that wait for each response, and prints the rate over time: with the drift it falls while instances idle,
until the model is loaded again.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import tritonnb as tnb
from tests.client.servers import start, write_model
from tritonnb.client.connection import RemoteModelHandle
from tritonnb.telemetry.statistics_entry import difference

INSTANCES, CLIENTS = 4, 24
#: Seconds of an execution: so long that a busy machine is not the limit.
SLEEP = "0.03"
#: Payloads of two requests that can be merged to eight.
BATCHING = (
    "dynamic_batching {{ preferred_batch_size: 2 max_queue_delay_microseconds: {delay_us} default_queue_policy {{ "
    "default_timeout_microseconds: 10000000 }} }}"
)


def write_drifting(repository: Path, delay_us: int) -> None:
    """Write a model whose configuration meets the conditions of the defect."""
    write_model(repository, "drifting", instances=INSTANCES)
    path = repository / "drifting" / "config.pbtxt"
    before = "dynamic_batching { max_queue_delay_microseconds: 0 }"
    path.write_text(path.read_text().replace(before, BATCHING.format(delay_us=delay_us)))
    model = repository / "drifting" / "1" / "model.py"
    model.write_text(re.sub(r"time\.sleep\(.*\)", f"time.sleep({SLEEP})", model.read_text()))


def over_time(model: RemoteModelHandle, seconds: float, parts: int = 12) -> Iterator[str]:
    """Describe each part of the time: with the drift, fewer instances execute while requests wait."""
    before, begin = model.stats(), time.monotonic()
    for _ in range(parts):
        since = time.monotonic()
        time.sleep(seconds / parts)
        after, now = model.stats(), time.monotonic()
        changed = difference(after, before)
        executed_ns = sum(row["compute_infer"]["ns"] for row in changed["batch_stats"])
        queue = changed["inference_stats"]["queue"]
        yield (
            f"{since - begin:6.1f} s: {changed['inference_count'] / (now - since):7.1f} requests/s, "
            f"{executed_ns / 1e9 / (now - since):5.2f} of {INSTANCES} instances execute, "
            f"queue {queue['ns'] / max(1, queue['count']) / 1e6:7.1f} ms, "
            f"{changed['inference_count'] / max(1, changed['execution_count']):5.2f} requests an execution"
        )
        before = after


def main() -> None:
    """Send the load, and print what was seen before and after the model is loaded again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=CLIENTS, help="more than instances, so that requests wait")
    parser.add_argument("--delay-us", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory) / "models"
        write_drifting(repository, options.delay_us)
        with start(repository, triton=True) as server, tnb.connect(server.http) as remote:
            print(f"Triton {remote.version}; {'; '.join(remote.check())}")
            for seconds in (options.seconds, options.seconds / 6):
                load = tnb.load(remote["drifting"], clients=options.clients)
                for line in over_time(remote["drifting"], seconds):
                    print(line, flush=True)
                load.stop()
                remote["drifting"].address.reload()
                print("loaded again")


if __name__ == "__main__":
    main()
