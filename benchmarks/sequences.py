"""Stateful models: the accumulator against a real Triton's Python backend, and live audio streams."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
from tritonclient import http
from tritonclient.utils import InferenceServerException

from benchmarks import servers
from benchmarks.http import INLINE, inline
from benchmarks.load import Measured, wrk_sequences
from tritonnb.model_zoo import silero_vad

REPOSITORY = servers.ROOT / "model_repository"
SEQUENCES = 8
LENGTH = 100
RECORDINGS = Path("/usr/share/sounds/alsa")
FRAME_SECONDS = silero_vad.FRAME / silero_vad.SAMPLE_RATE


def accumulator(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Running totals in Python, direct strategy, 8 sequences of 100 at a time: target 1.5x Triton."""
    repository = scratch / "accumulator-only"
    shutil.copytree(REPOSITORY / "accumulator", repository / "accumulator")
    config = repository / "accumulator" / "config.pbtxt"
    config.write_text(config.read_text().replace("idle_microseconds: 5000000", "idle_microseconds: 1000000"))
    started = {
        "triton": servers.triton(repository, scratch, "accumulator"),
        "tritonnb": servers.tritonnb(repository, "accumulator"),
        INLINE: servers.tritonnb(inline(repository), "accumulator"),
    }
    runs: dict[str, list[Measured]] = {name: [] for name in started}
    with ExitStack() as stack:
        urls = {name: stack.enter_context(start) for name, start in started.items()}
        for name, url in urls.items():
            assert _totals(url) == [1, 3, 6], f"{name}: expected running totals"
            wrk_sequences(url, "accumulator", SEQUENCES, LENGTH, 2, scratch)  # warm up
        for _ in range(rounds):
            for name, url in urls.items():
                _wait_for_slots(url)  # which the interrupted sequences hold until their idle timeout
                runs[name].append(wrk_sequences(url, "accumulator", SEQUENCES, LENGTH, seconds, scratch))
    rates = {name: statistics.median(run.rate for run in measured_runs) for name, measured_runs in runs.items()}
    latencies = {name: statistics.median(run.p99 for run in measured_runs) for name, measured_runs in runs.items()}
    for name in started:
        ratio = rates["tritonnb"] / rates[name]
        print(f"{name:>31} {rates[name]:>8.0f} requests/s, p99 {latencies[name]:.2f} ms, {ratio:.2f}x")
    return {"rate": rates, "p99_ms": latencies}


def streams(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Eight clients that send an audio frame to silero_vad every 32 ms; target: each response before the next frame."""
    with servers.tritonnb(REPOSITORY, "silero_vad") as url:
        sounds = _sounds()
        delays: list[list[float]] = [[] for _ in range(SEQUENCES)]
        begin = time.perf_counter() + 0.5
        clients = [
            threading.Thread(
                target=_speak,
                # The frames of the clients are spread over 32 ms.
                args=(url, number, sounds[number], begin + number * FRAME_SECONDS / SEQUENCES, seconds, delays[number]),
            )
            for number in range(SEQUENCES)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    all_delays = np.sort(np.concatenate(delays)) * 1e3
    p50, p99 = np.percentile(all_delays, (50, 99))
    late = int((all_delays > FRAME_SECONDS * 1e3).sum())
    print(
        f"{len(all_delays)} frames of {SEQUENCES} clients, from the moment each was due: p50 {p50:.2f} ms, "
        f"p99 {p99:.2f} ms, worst {all_delays[-1]:.2f} ms; {late} took longer than 32 ms"
    )
    return {"frames": len(all_delays), "p50_ms": p50, "p99_ms": p99, "worst_ms": all_delays[-1], "late": late}


def _totals(url: str) -> list[int]:
    client = http.InferenceServerClient(url.removeprefix("http://"))
    totals = []
    for value in (1, 2, 3):
        audio = http.InferInput("INPUT", [1, 1], "INT32").set_data_from_numpy(np.array([[value]], np.int32))
        flags = {"sequence_start": value == 1, "sequence_end": value == 3}
        totals.append(client.infer("accumulator", [audio], sequence_id=10**6, **flags).as_numpy("OUTPUT").item())
    return totals


def _wait_for_slots(url: str) -> None:
    """Wait until as many sequences as the load has can be active at the same time, by starting and ending them."""
    client = http.InferenceServerClient(url.removeprefix("http://"), concurrency=SEQUENCES)
    value = http.InferInput("INPUT", [1, 1], "INT32").set_data_from_numpy(np.ones((1, 1), np.int32))

    def send(**flags: bool) -> list[http.InferAsyncRequest]:
        ids = range(2 * 10**6, 2 * 10**6 + SEQUENCES)
        return [client.async_infer("accumulator", [value], sequence_id=number, **flags) for number in ids]

    for request in send(sequence_start=True):
        request.get_result()
    for request in send(sequence_end=True):
        with suppress(InferenceServerException):  # it was idle for too long while others waited for a slot
            request.get_result()


def _sounds() -> list[np.ndarray]:
    """Return the frames of a recording for each client, or of noise if there are too few recordings."""
    recordings = [silero_vad.frames(path) for path in sorted(RECORDINGS.glob("*.wav"))]
    if len(recordings) >= SEQUENCES:
        return recordings[:SEQUENCES]
    random = np.random.default_rng(0)
    return [random.normal(0, 0.1, (40, silero_vad.FRAME)).astype(np.float32) for _ in range(SEQUENCES)]


def _speak(url: str, number: int, frames: np.ndarray, begin: float, seconds: int, delays: list[float]) -> None:
    client = http.InferenceServerClient(url.removeprefix("http://"))
    count = round(seconds / FRAME_SECONDS)
    for step in range(count):
        due = begin + step * FRAME_SECONDS
        time.sleep(max(0.0, due - time.perf_counter()))
        audio = http.InferInput("AUDIO", [1, silero_vad.FRAME], "FP32")
        audio.set_data_from_numpy(frames[step % len(frames)][np.newaxis])
        flags = {"sequence_start": step == 0, "sequence_end": step == count - 1}
        client.infer("silero_vad", [audio], sequence_id=number + 1, **flags)
        delays.append(time.perf_counter() - due)
