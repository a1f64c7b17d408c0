"""``tiny_gpt``: the text of a prompt and a seed is the same alone, among others, and with static batches."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.chats import CONTINUOUS, STATIC, chat, text_of, workload
from tests.endpoints.tiny_gpt import EXAMPLES, write_repository
from tritonnb.core.errors import TritonError
from tritonnb.lab.load.examples import prompts
from tritonnb.lab.load.load import load
from tritonnb.lab.simulation.service import linear
from tritonnb.model_zoo import materialize, tiny_gpt
from tritonnb.server.server import Server

pytestmark = pytest.mark.slow

#: Seconds of each load: the benchmark ``chats`` runs a minute.
SECONDS = 1.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(write_repository(tmp_path_factory.mktemp("models")), port=0) as server:
        yield server


def test_concurrent_chats_equal_single_ones_and_no_slot_is_idle_while_one_waits(server: Server) -> None:
    requests = workload(chats=24, tokens=24)
    alone = [text_of(server[CONTINUOUS], request) for request in requests]
    runs = {name: chat(server[name], requests, SECONDS) for name in (CONTINUOUS, STATIC)}
    for run in runs.values():
        assert len(run.texts) >= 32
        assert [text for _, text in run.texts] == [alone[number] for number, _ in run.texts]
    assert runs[CONTINUOUS].idle_steps(8) == 0
    # Where nothing else runs it is more than twice as fast; the steps tell what does not depend on that.
    assert runs[CONTINUOUS].recording.summary()["idle_slots"] == 0
    assert runs[STATIC].recording.summary()["idle_slots"] > 0.3
    comparison = runs[CONTINUOUS].recording.what_if(continuous=False, service=linear(per_row_ms=1, base_ms=20))
    assert comparison.before.summary()["tokens_per_second"] > 1.5 * comparison.after.summary()["tokens_per_second"]


def test_load_of_prompts_measures_token_times(server: Server) -> None:
    inputs = prompts(["a", "b"], count=6, tokens=12, seed=1)
    lengths = [json.loads(request["sampling_parameters"][0][0])["max_tokens"] for request in inputs]
    result = load(server[CONTINUOUS], clients=3, requests=6, inputs=inputs).wait()
    summary = result.summary()
    assert summary["tokens"] == sum(length for length in lengths if length > 1)
    assert 0 < summary["time_per_output_token_p50_ms"] < summary["time_to_first_token_p50_ms"] * 1000
    assert "tokens/s" in result.verdict()
    figure: Any = result.plot_tokens()
    assert "time to first token" in figure.alt


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ("[]", "expected a JSON object"),
        ('{"beams": 2}', "expected max_tokens, temperature"),
        ('{"top_k": "many"}', "unexpected value of 'top_k': 'many'"),
        ('{"max_tokens": 0}', "expected max_tokens of at least 1, got 0"),
    ],
)
def test_wrong_sampling_parameters_are_refused(server: Server, sampling: str, words: str) -> None:
    for name in (CONTINUOUS, STATIC):
        with pytest.raises(TritonError, match=words):
            server[name](text_input=[["a"]], sampling_parameters=[[sampling]])


def test_generations_beyond_the_cache_slots_are_recomputed_from_their_tokens(tmp_path: Path) -> None:
    repository = write_repository(tmp_path)
    config = repository / CONTINUOUS / "config.pbtxt"
    model = repository / CONTINUOUS / "1" / "model.py"
    few = model.read_text().replace('["max_candidate_sequences"])', '["max_candidate_sequences"] // 4)')
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 2"))
    model.write_text(few)
    requests = workload(chats=8, tokens=6)
    with Server(repository, port=0, model_control_mode="explicit", load_models=[CONTINUOUS]) as server:
        alone = [text_of(server[CONTINUOUS], request) for request in requests]
        texts: dict[int, str] = {}
        threads = [
            threading.Thread(target=lambda n=n: texts.update({n: text_of(server[CONTINUOUS], requests[n])}))
            for n in range(len(requests))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [texts[number] for number in range(len(requests))] == alone


# --- weights -----------------------------------------------------------------------------------------


def test_training_is_the_same_for_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_gpt, "documents", lambda: ["a small text, again and again " * 20])
    monkeypatch.setattr(tiny_gpt, "BATCH", 2)
    monkeypatch.setattr(tiny_gpt, "PROGRESS_INTERVAL_S", 0)  # every step is reported, however long it takes
    losses: list[float] = []
    one, other = (tiny_gpt.train(3, 2, lambda step, steps, loss, remaining_s: losses.append(loss)) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert losses[:2] == losses[2:]


@pytest.mark.parametrize("models", [[CONTINUOUS], [CONTINUOUS, STATIC]], ids=["one model", "two that share them"])
def test_first_load_trains_missing_weights_once_and_reports_it(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_repository(tmp_path)
    weights = tmp_path / "tiny_gpt" / "1" / "weights.pt"
    weights.unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tiny_gpt, "STEPS", 1)
    monkeypatch.setattr(tiny_gpt, "documents", lambda: ["a small text, again and again " * 20])
    caplog.set_level("INFO", "tritonnb.model")
    with Server(tmp_path, port=0, model_control_mode="explicit", load_models=models) as server:
        assert not server.load_errors
    assert tiny_gpt.state_of(weights) == tiny_gpt.CURRENT
    assert [record.getMessage() for record in caplog.records if record.name == "tritonnb.model"] == [
        "tiny_gpt has no weights yet and is trained, once: step 1 of 1, 0 s left"
    ]


def test_progress_is_a_bar_with_the_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    bar = tiny_gpt.ProgressBar()
    bar(1, 3, 2.0, 20.0)  # only the end is printed at once if the output is a file
    bar(3, 3, 2.0, 0.0)
    assert capsys.readouterr().out == f"training tiny_gpt [{'#' * 30}] 100%,   0 s left\n"


def test_example_has_learned_to_spell() -> None:
    materialize(EXAMPLES, [CONTINUOUS])
    assert tiny_gpt.recipe_in(EXAMPLES / "tiny_gpt/1/weights.pt") == tiny_gpt.recipe()
    with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=[CONTINUOUS]) as server:
        options = json.dumps({"max_tokens": 200, "seed": 1, "temperature": 0.5, "ignore_eos": True})
        answer: Any = server[CONTINUOUS](
            text_input=[["Question: what is json?\nAnswer:"]], sampling_parameters=[[options]]
        )
    written = answer["text_output"].item().decode().split()
    words = set(" ".join(islice(tiny_gpt.documents(), 1000)).split())
    assert sum(word in words for word in written) > 0.7 * len(written), written


# --- a real Triton -------------------------------------------------------------------------------------


@pytest.mark.skipif("TRITON_WITH_TORCH" not in os.environ, reason="needs a tritonserver whose Python has torch")
def test_real_triton_answers_the_same(server: Server) -> None:
    import urllib.request

    url = os.environ["TRITON_WITH_TORCH"]  # it serves the repository of the examples
    body = json.dumps({"text_input": "a", "max_tokens": 40, "seed": 1}).encode()
    answers = []
    with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=[CONTINUOUS, STATIC]) as own:
        for name in (CONTINUOUS, STATIC):
            for base in (own.url, url):
                with urllib.request.urlopen(f"{base}/v2/models/{name}/generate", body) as response:
                    answers.append(json.loads(response.read())["text_output"])
    assert len(set(answers)) == 1
    shutil.rmtree(EXAMPLES / CONTINUOUS / "1" / "__pycache__", ignore_errors=True)
