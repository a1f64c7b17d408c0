"""Random scenarios, and the batches that CPython and the playground's Python in WebAssembly form of them.

``python -m tests.playground.random_scenarios 200`` compares 200 of them.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from docs.playground.session import Session
from docs.sitegen.playground import ROOT, fetch_runtime, write_archive

PROGRAM = Path(__file__).with_name("answer_in_node.mjs")

Json = dict[str, Any]


def random_scenarios(count: int, seed: int) -> list[Json]:
    """Scenarios with every scheduler, kind of arrivals and kind of service times; a few of them are invalid."""
    rng = random.Random(seed)
    return [_scenario(rng) for _ in range(count)]


def _scenario(rng: random.Random) -> Json:
    kind = rng.choice(["none", "dynamic", "dynamic", "direct", "oldest", "iterative"])
    largest = rng.choice([1, 2, 4, 8, 16])
    config = (
        f"max_batch_size: {largest}\n{_batcher(rng, kind, largest)}instance_group {{ count: {rng.randint(1, 3)} }}\n"
    )
    return {"config": config, "arrivals": _arrivals(rng, kind, largest), "service": _service(rng)}


def _batcher(rng: random.Random, kind: str, largest: int) -> str:
    delay = f"max_queue_delay_microseconds: {rng.choice([0, 500, 3000, 20000])}\n"
    preferred = f"preferred_batch_size: [ {rng.randint(1, largest)} ]\n" if rng.random() < 0.4 else ""
    if kind == "none":
        return ""
    if kind == "dynamic":
        policy = "default_queue_policy { default_timeout_microseconds: 30000 max_queue_size: 12 }\n"
        levels = "priority_levels: 3 default_priority_level: 2\n"
        extra = "".join(text for text in (policy, levels) if rng.random() < 0.4)
        ordering = "preserve_ordering: true\n" if "priority" not in extra and rng.random() < 0.3 else ""
        return f"dynamic_batching {{ {delay}{preferred}{extra}{ordering} }}\n"
    idle = rng.choice([20_000, 1_000_000])
    utilization = f"minimum_slot_utilization: {rng.choice([0, 0.5, 1])}\n"
    strategies = {
        "direct": f"direct {{ {delay}{utilization} }}",
        "oldest": f"oldest {{ max_candidate_sequences: {rng.randint(1, 6)} {delay}{preferred} }}",
    }
    strategy = strategies[kind if kind != "iterative" else "oldest"]
    iterative = "iterative_sequence: true\n" if kind == "iterative" else ""
    return f"sequence_batching {{ max_sequence_idle_microseconds: {idle} {strategy} {iterative} }}\n"


def _arrivals(rng: random.Random, kind: str, largest: int) -> Json:
    rows, rate = rng.randint(1, largest), rng.uniform(50, 900)
    if kind in ("none", "dynamic") and rng.random() < 0.5:
        return rng.choice([
            {"kind": "poisson", "rate": rate, "duration": 0.3, "seed": rng.randrange(1000), "rows": rows},
            {"kind": "constant", "rate": rate, "duration": 0.2, "rows": rows},
            {"kind": "bursts", "requests": rng.randint(1, 20), "every_ms": 17.5, "duration": 0.2, "rows": rows},
            {"kind": "closed", "clients": rng.randint(1, 12), "requests": 80, "think_ms": rate / 300, "rows": rows},
        ])  # fmt: skip
    times = sorted(rng.uniform(0, 120) for _ in range(rng.randint(3, 40)))
    return {"kind": "list", "requests": [_request(rng, kind, largest, ms) for ms in times]}


def _request(rng: random.Random, kind: str, largest: int, ms: float) -> Json:
    request: Json = {"ms": ms, "rows": rng.randint(1, largest)}
    if rng.random() < 0.1:
        request["cancel_ms"] = ms + rng.uniform(0, 20)
    if kind == "dynamic":
        request |= {"priority": rng.randint(0, 3), "timeout_us": rng.choice([0, 0, 5000])}
    if kind == "iterative":
        return {"ms": ms, "rows": 1, "steps": rng.randint(1, 6)}
    if kind in ("direct", "oldest"):
        flags = {"start": rng.random() < 0.5, "end": rng.random() < 0.2}
        request |= {"rows": 1, "sequence": rng.choice(["1", "2", "three", "4", "5"]), **flags}
    return request


def _service(rng: random.Random) -> Json:
    return rng.choice([
        {"kind": "fixed", "ms": rng.uniform(0.5, 30)},
        {"kind": "linear", "per_row_ms": rng.uniform(0, 3), "base_ms": rng.uniform(0, 20)},
        {"kind": "table", "ms": {"1": 4.25, "4": 6.5, "16": 17.125}},
    ])  # fmt: skip


def messages(count: int, seed: int) -> list[str]:
    """The requests of the page: the batches of each scenario, with their reasons."""
    return [json.dumps({"do": "batches", "scenario": scenario}) for scenario in random_scenarios(count, seed)]


def answers_of_cpython(asked: list[str]) -> list[str]:
    """The answers of this interpreter."""
    session = Session()
    return [session.answer(message) for message in asked]


def answers_of_pyodide(asked: list[str], runtime: Path) -> list[str]:
    """The answers of the page's archive in the page's runtime, run by Node.js."""
    node = shutil.which("node")
    assert node is not None
    with tempfile.TemporaryDirectory() as directory:
        archive, file = Path(directory) / "tritonnb.zip", Path(directory) / "messages.json"
        write_archive(archive)
        file.write_text(json.dumps(asked))
        output = subprocess.run([node, PROGRAM, runtime, archive, file], capture_output=True, text=True, check=False)
    if output.returncode:
        raise RuntimeError(output.stderr)
    answers: list[str] = json.loads(output.stdout)
    return answers


if __name__ == "__main__":
    number = int(sys.argv[1])
    questions = messages(number, seed=1)
    pairs = zip(
        answers_of_cpython(questions), answers_of_pyodide(questions, fetch_runtime(ROOT / "build")), strict=True
    )
    equal = sum(here == there for here, there in pairs)
    print(f"{equal} of {number} scenarios have the same answer, byte for byte")
    sys.exit(equal != number)
