"""A soak test of the edges: ``python -m benchmarks.edge_soak --seconds 1800``.

A server runs in this process, as in a notebook. Meanwhile its models are loaded, changed, redefined and unloaded, often
at the same time and by callers that give up; this process forks; and the server is stopped and started again on the
same ports. Threads and tasks of this process send requests and cancel some of them. Clients in another process use
HTTP and gRPC, disconnect, cancel, and set deadlines.

Every request has its own number, and its response must contain it. A request is lost if its connection ends or it is
refused although no server was stopped meanwhile; it hangs if nothing has come after a minute. At the end there must be
as many threads, file descriptors, child processes and files in */dev/shm* as at the start, and the resident set may
have grown by ``--growth`` MB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import json
import mmap
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

import tritonnb as tnb
from benchmarks.disturbed_soak import MODELS, GrpcConnection, HttpConnection, write_models
from benchmarks.servers import free_port
from tritonnb.core.errors import CancelledError, InvalidArgumentError, NotFoundError, TritonError, UnavailableError
from tritonnb.server.model_handle import ModelHandle

#: Seconds after which a call, a request, a load, a stop or a child hangs.
HUNG_AFTER = 60.0
#: Seconds that a server runs before it is stopped.
_LIFE_S = (5.0, 15.0)
#: Model of the repository whose reloads a client gives up, and the delays of its initialisation in seconds.
_SLOW = "slow"
_SLOW_MODEL = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        time.sleep(0.3)

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""


class Epoch:
    """A number in a file that both processes see: odd while the server is being stopped or started."""

    def __init__(self, path: Path) -> None:
        path.touch()
        if not path.stat().st_size:
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    @property
    def number(self) -> int:
        """The number."""
        return int.from_bytes(self._memory[:8], "little")

    def advance(self) -> None:
        """Begin or end a stop."""
        self._memory[:8] = (self.number + 1).to_bytes(8, "little")

    def is_calm_since(self, number: int) -> bool:
        """Return whether the server has run without a stop since the epoch had a number."""
        return number % 2 == 0 and self.number == number


class Outcomes:
    """What became of requests and operations; used by all threads.

    Attributes
    ----------
    counts : Counter
    """

    def __init__(self, epoch: Epoch) -> None:
        self.counts: Counter[str] = Counter()
        self._epoch = epoch
        self._lock = threading.Lock()
        self._running: dict[object, tuple[str, float]] = {}

    def add(self, outcome: str) -> None:
        """Count an outcome."""
        with self._lock:
            self.counts[outcome] += 1

    def refused(self, since: int, reason: str) -> None:
        """Count a request or an operation that was refused: as lost, unless the server was stopped since an epoch."""
        self.add("refused by a stop" if not self._epoch.is_calm_since(since) else f"lost: {reason}")

    @contextlib.contextmanager
    def watched(self, what: str) -> Iterator[int]:
        """Context manager of a call that hangs if it takes too long; gives the epoch at its beginning."""
        key = object()
        with self._lock:
            self._running[key] = what, time.monotonic()
        try:
            yield self._epoch.number
        finally:
            with self._lock:
                del self._running[key]

    def hung(self) -> list[str]:
        """Return the calls that have taken too long."""
        limit = time.monotonic() - HUNG_AFTER
        with self._lock:
            return [what for what, began in self._running.values() if began < limit]


# --- the process of the clients -------------------------------------------------------------------


async def run_clients(ports: tuple[int, int], epoch: Epoch, seconds: float, connections: int) -> Counter[str]:
    """Send requests over HTTP and gRPC until the time is over; returns the outcomes."""
    outcomes, numbers, until = Outcomes(epoch), iter(range(1, sys.maxsize)), time.monotonic() + seconds
    made = [GrpcConnection(ports[1]) if number % 2 else HttpConnection(ports[0]) for number in range(connections)]
    loads = asyncio.create_task(_load_and_give_up(ports[1], outcomes, until))
    await asyncio.gather(*(_client(connection, outcomes, numbers, until) for connection in made))
    await loads
    return outcomes.counts


async def _client(
    connection: HttpConnection | GrpcConnection, outcomes: Outcomes, numbers: Iterator[int], until: float
) -> None:
    choice = random.Random()
    while time.monotonic() < until:
        number, model = next(numbers), choice.choice(list(MODELS))
        patience = choice.choice([HUNG_AFTER] * 8 + [choice.uniform(0, 0.02), choice.uniform(0, 0.2)])
        is_deadline = isinstance(connection, GrpcConnection) and choice.random() < 0.5
        with outcomes.watched("request") as since:
            try:
                async with asyncio.timeout(patience + (HUNG_AFTER if is_deadline else 0)):
                    if isinstance(connection, GrpcConnection):
                        outcome = await connection.infer(model, number, patience if is_deadline else None)
                    else:
                        outcome = await connection.infer(model, number)
            except TimeoutError:
                outcomes.add("given up" if patience < HUNG_AFTER else "hung")
                await connection.close()  # the client disconnects
                continue
            except (OSError, EOFError) as error:
                outcomes.refused(since, f"{type(error).__name__}: {error}")
                await connection.close()
                await asyncio.sleep(0.05)
                continue
        if outcome in ("right", "wrong"):
            outcomes.add(outcome)
        elif outcome == "Deadline Exceeded" and patience < HUNG_AFTER:
            outcomes.add("given up")
        else:
            outcomes.refused(since, outcome)
            await connection.close()
            await asyncio.sleep(0.05)
    await connection.close()


async def _load_and_give_up(port: int, outcomes: Outcomes, until: float) -> None:
    """Load a slow model with deadlines that often pass before it is loaded."""
    choice = random.Random()
    while time.monotonic() < until:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            stub = GRPCInferenceServiceStub(channel)
            with outcomes.watched("load"):
                for call, message in (
                    (stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name=_SLOW)),
                    (stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(model_name=_SLOW)),
                    (stub.RepositoryIndex, pb.RepositoryIndexRequest()),
                ):
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await call(message, timeout=choice.uniform(0, 1))
        outcomes.add("loads with deadlines")
        await asyncio.sleep(choice.uniform(0, 0.3))


# --- the process of the server --------------------------------------------------------------------


class Edges:
    """The server, the requests of this process, and the disturbances."""

    def __init__(self, repository: Path, ports: tuple[int, int], epoch: Epoch) -> None:
        self.outcomes = Outcomes(epoch)
        self._epoch = epoch
        self._repository = repository
        self._ports = ports
        self._over = threading.Event()
        self._numbers = iter(range(1, sys.maxsize))
        self.server = self._start()

    def _start(self) -> tnb.Server:
        http, grpc_port = self._ports
        names = [*MODELS]
        server = tnb.Server(
            self._repository, port=http, grpc_port=grpc_port, model_control_mode="explicit", load_models=names
        )
        if server.load_errors:
            self.outcomes.add(f"lost: {server.load_errors}")
        _define(server, 1)
        return server

    def run(self, seconds: float, clients: subprocess.Popen[bytes] | None = None) -> None:
        """Send requests, disturb the server, and stop and start it again, until the time is over; then stop it."""
        until = time.monotonic() + seconds
        workers: list[Callable[[], None]] = [self._call] * 4 + [self._call_async] * 2 + [self._disturb] * 2
        threads = [threading.Thread(target=self._guard, args=(work,), daemon=True) for work in workers]
        for thread in threads:
            thread.start()
        choice = random.Random()
        while time.monotonic() < until:
            self._sleep(min(choice.uniform(*_LIFE_S), max(0.0, until - time.monotonic())))
            if time.monotonic() < until:
                self._restart()
        if clients is not None:
            clients.wait(HUNG_AFTER)
        self._over.set()
        for thread in threads:
            thread.join(HUNG_AFTER)
            if thread.is_alive():
                self._give_up()
        self.server.stop()

    def _restart(self) -> None:
        with self.outcomes.watched("stop"):
            self._epoch.advance()
            stops = [threading.Thread(target=self._guard, args=(self.server.stop,)) for _ in range(2)]
            for stop in stops:
                stop.start()
            for stop in stops:
                stop.join()
            self.server = self._start()
            self._epoch.advance()
        self.outcomes.add("stops")

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))
            if self.outcomes.hung():
                self._give_up()

    def _give_up(self) -> None:
        print("hung:", self.outcomes.hung() or "a thread", flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.outcomes.add(f"lost: a thread ended with {type(error).__name__}: {error}")
            raise

    # --- requests -----------------------------------------------------------------------------

    def _call(self) -> None:
        choice = random.Random()
        while not self._over.is_set():
            number, model = next(self._numbers), choice.choice([*MODELS, "double"])
            with self.outcomes.watched("call") as since:
                try:
                    answer = self.server[model](X=[[number]])
                except TritonError as error:
                    self._refused(since, model, error)
                    time.sleep(0.05)
                    continue
            self._check(model, number, answer)

    def _call_async(self) -> None:
        asyncio.run(self._call_in_tasks())

    async def _call_in_tasks(self) -> None:
        choice = random.Random()

        async def call() -> None:
            number, model = next(self._numbers), choice.choice([*MODELS, "double"])
            with self.outcomes.watched("call") as since:
                try:
                    # Not `server[model]`, which waits for the server's event loop.
                    answer = await ModelHandle(self.server, model).infer_async(X=[[number]])
                except TritonError as error:
                    self._refused(since, model, error)
                    await asyncio.sleep(0.05)
                    return
            self._check(model, number, answer)

        while not self._over.is_set():
            tasks = [asyncio.create_task(call()) for _ in range(choice.randint(1, 8))]
            await asyncio.sleep(choice.uniform(0, 0.01))
            for task in choice.sample(tasks, len(tasks) // 2):
                if task.cancel():
                    self.outcomes.add("cancelled calls")
            await asyncio.gather(*tasks, return_exceptions=True)

    def _refused(self, since: int, model: str, error: TritonError) -> None:
        self.outcomes.refused(since, f"{model}: {type(error).__name__}: {error}")

    def _check(self, model: str, number: int, answer: Any) -> None:
        output, expected = ("OUTPUT", 2 * number) if model == "double" else ("Y", number)
        right = np.array_equal(answer[output], [[expected]])
        self.outcomes.add("right" if right else "wrong")

    # --- disturbances -------------------------------------------------------------------------

    def _disturb(self) -> None:
        choice = random.Random()
        kinds = (self._reload, self._apply, self._apply_twice, self._give_up_a_load, self._redefine, self._record)
        while not self._over.is_set():
            time.sleep(choice.uniform(0, 0.3))
            kind = choice.choice([*kinds, self._fork])
            with self.outcomes.watched(kind.__name__) as since:
                try:
                    kind(choice)
                    self.outcomes.add(kind.__name__.strip("_"))
                except NotFoundError as error:  # the slow model may be unloaded
                    if _SLOW not in str(error):
                        self.outcomes.refused(since, f"{kind.__name__}: {error}")
                except (UnavailableError, CancelledError) as error:
                    self.outcomes.refused(since, f"{kind.__name__}: {error}")

    def _reload(self, choice: random.Random) -> None:
        self.server.load(choice.choice([*MODELS, _SLOW]), force=True)

    def _apply(self, choice: random.Random) -> None:
        config = self.server["edited"].config
        config.max_batch_size = choice.choice([8, 16])
        config.dynamic_batching.max_queue_delay_microseconds = choice.choice([0, 200, 1000])
        config.instance_group[0].count = choice.randint(1, 4)
        try:
            config.apply()
        except InvalidArgumentError:  # what another thread has applied meanwhile contradicts this draft
            self.outcomes.add("refused drafts")

    def _apply_twice(self, choice: random.Random) -> None:
        other = threading.Thread(target=self._guard, args=(lambda: self._apply_alone(choice),))
        other.start()
        try:
            self._apply(choice)
        finally:
            other.join()

    def _apply_alone(self, choice: random.Random) -> None:
        with self.outcomes.watched("apply") as since:
            try:
                self._apply(choice)
            except (UnavailableError, NotFoundError) as error:
                self.outcomes.refused(since, f"apply: {error}")

    def _give_up_a_load(self, choice: random.Random) -> None:
        server = self.server
        operation = server.engine.load(_SLOW, force=True)
        try:
            load = asyncio.run_coroutine_threadsafe(operation, server._background.loop)
        except RuntimeError as error:  # the loop is closed
            operation.close()
            raise UnavailableError(str(error)) from None
        time.sleep(choice.uniform(0, 0.4))
        load.cancel()

    def _redefine(self, choice: random.Random) -> None:
        _define(self.server, choice.choice([1, 2]))

    def _record(self, choice: random.Random) -> None:
        with self.server.record() as recording:
            time.sleep(choice.uniform(0, 0.1))
        assert recording.batches is not None

    def _fork(self, choice: random.Random) -> None:
        """Fork a child that calls the server, which must fail there at once."""
        server, (reader, writer) = self.server, os.pipe()
        child = os.fork()
        if child == 0:
            outcome = b"answered"
            try:
                server["double"](X=[[1]])
            except UnavailableError:
                outcome = b"refused"
            except BaseException as error:
                outcome = repr(error).encode()[:1000]
            finally:
                os.write(writer, outcome)
                os._exit(0)
        os.close(writer)
        ready, _, _ = select.select([reader], [], [], HUNG_AFTER / 2)
        outcome = os.read(reader, 1000) if ready else b"hung"
        os.close(reader)
        if not ready:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if outcome != b"refused":
            kind = "hung" if outcome == b"hung" else "wrong"
            self.outcomes.add(f"{kind}: a child was not refused: {outcome!r}, status {status}")


def _define(server: tnb.Server, count: int) -> None:
    def double(X: tnb.INT64[1]) -> tnb.INT64[1]:  # type: ignore[valid-type]  # noqa: N803
        return X * 2

    server.model(double, max_batch_size=8, dynamic_batching={}, count=count)


def resources() -> dict[str, int]:
    """Return the numbers that must be the same at the end as at the start, and the resident set in MB."""
    gc.collect()
    process = psutil.Process()
    shared = Path("/dev/shm")
    return {
        "threads": threading.active_count(),
        "descriptors": process.num_fds(),
        "children": len(process.children(recursive=True)),
        "shared memory": len(list(shared.iterdir())) if shared.is_dir() else 0,
        "resident MB": process.memory_info().rss >> 20,
    }


def settled(before: dict[str, int], growth: int) -> dict[str, int]:
    """Return the resources once they are as before, or after ten seconds."""
    deadline = time.monotonic() + 10
    while differences(before, after := resources(), growth) and time.monotonic() < deadline:
        time.sleep(0.1)
    return after


def differences(before: dict[str, int], after: dict[str, int], growth: int) -> list[str]:
    """Return the resources of which more are in use than before, the resident set by more than ``growth`` MB."""
    allowed = {"resident MB": growth}
    return [name for name, count in after.items() if count > before[name] + allowed.get(name, 0)]


def main() -> None:
    """Run it, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--growth", type=int, default=64, help="by how many MB the resident set may grow")
    parser.add_argument("--clients", nargs=4, help=argparse.SUPPRESS)  # the process of the clients
    options = parser.parse_args()
    faulthandler.enable()
    if options.clients:
        http, grpc_port, file, seconds = options.clients
        ports = int(http), int(grpc_port)
        outcomes = asyncio.run(run_clients(ports, Epoch(Path(file)), float(seconds), options.connections))
        print(json.dumps(outcomes))
        return
    with tempfile.TemporaryDirectory() as scratch:
        repository, path = Path(scratch) / "models", Path(scratch) / "epoch"
        write_models(repository)
        (repository / _SLOW / "1").mkdir(parents=True)
        (repository / _SLOW / "1" / "model.py").write_text(_SLOW_MODEL)
        (repository / _SLOW / "config.pbtxt").write_text(MODELS["plain"])
        ports, epoch = (free_port(), free_port()), Epoch(path)
        warm_up = Edges(repository, ports, epoch)
        warm_up.run(min(10.0, options.seconds))  # so that every module is imported, and every pool of memory is used
        before, began = resources(), time.monotonic()
        print("before:", before, flush=True)
        edges = Edges(repository, ports, epoch)
        arguments = [*map(str, ports), str(path), str(options.seconds - 1)]
        command = [sys.executable, "-m", "benchmarks.edge_soak", "--connections", str(options.connections)]
        with subprocess.Popen([*command, "--clients", *arguments], stdout=subprocess.PIPE) as process:
            edges.run(options.seconds, process)
            assert process.stdout is not None
            clients = Counter(json.loads(process.stdout.read() or "{}"))
        after = settled(before, options.growth)
    report(edges.outcomes.counts, clients, before, after, time.monotonic() - began, options.growth)


def report(
    own: Counter[str],
    clients: Counter[str],
    before: dict[str, int],
    after: dict[str, int],
    seconds: float,
    growth: int,
) -> None:
    """Print the result; exit with an error if anything was hung, lost or wrong, or is left."""
    counts = own + clients
    print(f"{seconds:.0f} s; in this process: {dict(sorted(own.items()))}")
    print(f"clients: {dict(sorted(clients.items()))}")
    print(f"after: {after}")
    bad = {kind: sum(n for name, n in counts.items() if name.startswith(kind)) for kind in ("hung", "lost", "wrong")}
    print(", ".join(f"{count} {kind}" for kind, count in bad.items()))
    left = differences(before, after, growth)
    if any(bad.values()) or left or not clients["right"] or not own["right"]:
        raise SystemExit(f"expected nothing hung, lost, wrong or left, got {bad} and more {left}")


if __name__ == "__main__":
    main()
