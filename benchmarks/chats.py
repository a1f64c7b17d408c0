"""Chats of random length on the slots of ``tiny_gpt``: complete streams, idle slots, gain over static batches."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import servers
from tritonnb.lab.load.examples import Prompt, prompts
from tritonnb.model_zoo import materialize
from tritonnb.recording.recording import Recording
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

REPOSITORY = servers.ROOT / "model_repository"
CONTINUOUS, STATIC = "tiny_gpt", "tiny_gpt_static"
CLIENTS = 32
#: Different chats; each is repeated until the time is over.
CHATS = 64


@dataclass(frozen=True)
class Chats:
    """The number and the text of each chat, and a recording of the model."""

    texts: list[tuple[int, str]]
    recording: Recording
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens of all chats."""
        return sum(len(generation.steps) for generation in self.recording.generations)

    def idle_steps(self, slots: int) -> int:
        """Return the number of steps with an unused slot although a prompt waited."""
        return sum(1 for batch in self.recording.batches if batch.size < slots and batch.queue_depth)


def workload(chats: int = CHATS, tokens: int = 48) -> list[Prompt]:
    """Chats whose lengths vary as much as those of people: the longest of eight is often three times the mean."""
    return prompts(count=chats, tokens=tokens, spread=1.2, most=400, seed=7, temperature=0.8)


def chat(model: ModelHandle, requests: list[Prompt], seconds: float, clients: int = CLIENTS) -> Chats:
    """Run chats on as many threads as clients, each sending the next one when the last one is complete."""
    numbers, texts = count(), []
    with model.server.record() as recording:
        begin = time.monotonic()

        def run() -> None:
            while time.monotonic() < begin + seconds:
                number = next(numbers) % len(requests)
                texts.append((number, text_of(model, requests[number])))

        threads = [threading.Thread(target=run) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.monotonic() - begin
    return Chats(texts, recording.for_model(model.name), elapsed)


def text_of(model: ModelHandle, request: dict[str, list[Any]]) -> str:
    """Return the whole text of a generation."""
    responses = model.infer_all(request)
    return b"".join(response["text_output"].item() for response in responses if "text_output" in response).decode()


def chats(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """32 chats of random length on 8 slots, for 12 times ``--seconds``: target 2x the tokens/s of static batches."""
    materialize(REPOSITORY)
    requests = workload()
    runs: dict[str, list[Chats]] = {CONTINUOUS: [], STATIC: []}
    with Server(REPOSITORY, port=0, model_control_mode="explicit", load_models=[*runs]) as server:
        slots = server[CONTINUOUS].served.spec.max_batch_size
        alone = [text_of(server[CONTINUOUS], request) for request in requests]
        for _ in range(rounds):
            for name, own in runs.items():
                own.append(chat(server[name], requests, 12 * seconds / rounds))
    results: dict[str, object] = {}
    rates = {}
    for name, own in runs.items():
        rates[name] = sum(run.tokens for run in own) / sum(run.seconds for run in own)
        texts = [pair for run in own for pair in run.texts]
        different = sum(text != alone[number] for number, text in texts)
        summary = own[-1].recording.summary()
        print(
            f"{name:>16} {rates[name]:>6.0f} tokens/s, {len(texts)} chats, {different} differ from the chat alone; to "
            f"first token p50 {summary['time_to_first_token_p50_ms']:.0f} ms, per output token p50 "
            f"{summary['time_per_output_token_p50_ms']:.2f} ms, {summary['idle_slots']:.0%} of the slots idle"
        )
        results[name] = {"tokens_per_second": rates[name], "chats": len(texts), "different": different}
    idle = sum(run.idle_steps(slots) for run in runs[CONTINUOUS])
    ratio = rates[CONTINUOUS] / rates[STATIC]
    print(f"steps with an unused slot while a prompt waited: {idle}; ratio {ratio:.2f}x")
    return {**results, "idle_steps": idle, "ratio": ratio}
