"""The ends of texts and their usage, for models that ignore stop strings and limits, and count no tokens."""

from __future__ import annotations

import codecs
import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.endpoints.openai.conftest import CHAT, TEXT_OUTPUT, post
from tests.laws import law
from tritonnb.core.datatypes import BYTES, FP32, UINT32
from tritonnb.endpoints.openai.generation import Choice, _ChoiceReader
from tritonnb.endpoints.openai.stop_strings import StopString, TextEnd
from tritonnb.server.server import Server

CONFIG = """
backend: "python" max_batch_size: 0
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } %s ]
model_transaction_policy { decoupled: true }
"""
COUNTS = """,
{ name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] },
{ name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] },
{ name: "finish_reason" data_type: TYPE_STRING dims: [ 1 ] }"""
LOGPROBS = ', { name: "logprobs" data_type: TYPE_STRING dims: [ 1 ] }'
MODEL = """
import json
import threading
import numpy as np
import triton_python_backend_utils as pb
def text(name, value): return pb.Tensor(name, np.array([value], np.object_))
def number(name, value): return pb.Tensor(name, np.array([value], np.uint32))
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(), request)).start()
    def answer(self, sender, request):
        prompt = pb.get_input_tensor_by_name(request, "text_input").as_numpy().item()
%s
        sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
VECTOR_AND_TOKENS = {"VECTOR": FP32[1], "num_input_tokens": UINT32[1]}
#: By name: further outputs, and the body. They ignore `stop` and `max_tokens`.
MODELS = {
    "pieces": ("", """
        for piece in json.loads(prompt):
            sender.send(pb.InferenceResponse([text("text_output", bytes(piece, "latin-1"))]))
"""),
    "endless": ("", """
        while not sender.is_cancelled():
            sender.send(pb.InferenceResponse([text("text_output", b"more ")]))
"""),
    # Two tokens in each response, as the vLLM backend counts and says that it goes on.
    "counting": (COUNTS, """
        for word in prompt.split():
            sender.send(pb.InferenceResponse([
                text("text_output", word + b" "), text("finish_reason", b"None"),
                number("num_output_tokens", 2), number("num_input_tokens", 70)]))
"""),
    # Counts and reason at the end.
    "summing": (COUNTS, """
        for word in prompt.split():
            sender.send(pb.InferenceResponse([text("text_output", word + b" ")]))
        sender.send(pb.InferenceResponse([text("finish_reason", b"length"), number("num_output_tokens", 50),
            number("num_input_tokens", 70)]))
"""),
    # The prompt is what it writes about its second text, and it does not end.
    "careless": (LOGPROBS, """
        sender.send(pb.InferenceResponse([text("text_output", b"first ")]))
        sender.send(pb.InferenceResponse([text("text_output", b"second "), text("logprobs", prompt)]))
        while not sender.is_cancelled():
            sender.send(pb.InferenceResponse([text("text_output", b"more ")]))
"""),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    for name, (outputs, body) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG % outputs)
        (repository / name / "1" / "model.py").write_text(MODEL % body)
    with Server(repository, port=0) as server:

        @server.model
        def whole(text_input: BYTES[1]) -> TEXT_OUTPUT:
            return {"text_output": text_input}

        @server.model
        def lengths(TEXT: BYTES[1]) -> VECTOR_AND_TOKENS:
            texts: Any = TEXT
            return {"VECTOR": [1.5], "num_input_tokens": [len(texts[0])]}

        @server.model
        def vectors(TEXT: BYTES[1]) -> FP32[1]:
            return np.array([0.5], np.float32)

        yield server


def complete(server: Server, body: dict[str, Any], route: str = "completions") -> tuple[list[str], list[str], Any]:
    """The texts, finish reasons and usage of a response; the same, streamed, has to be equal."""
    status, raw = post(f"{server.url}/v1/{route}", body)
    assert status == 200, raw
    answer = json.loads(raw)
    choices = answer["choices"]
    texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]
    reasons = [choice["finish_reason"] for choice in choices]
    streamed = stream(server, body, route)
    assert streamed == (texts, reasons, answer["usage"])
    return texts, reasons, answer["usage"]


def stream(server: Server, body: dict[str, Any], route: str) -> tuple[list[str], list[str], Any]:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    status, raw = post(f"{server.url}/v1/{route}", asked)
    assert status == 200, raw
    *events, done, _ = raw.decode().split("\n\n")
    assert done == "data: [DONE]"
    *parts, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert (last["choices"], {part["usage"] for part in parts}) == ([], {None})
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for choice in (choice for part in parts for choice in part["choices"]):
        index = choice["index"]
        assert index not in reasons, "a chunk after the last one of its choice"
        texts[index] = texts.get(index, "") + (
            choice["text"] if "text" in choice else choice["delta"].get("content", "")
        )
        if choice["finish_reason"] is not None:
            reasons[index] = choice["finish_reason"]
    return [texts[index] for index in sorted(texts)], [reasons[index] for index in sorted(texts)], last["usage"]


def until_idle(server: Server, *names: str) -> None:
    deadline = time.monotonic() + 60
    while any(server[name].served.in_flight for name in names):
        assert time.monotonic() < deadline
        post(f"{server.url}/v1/models/none", {})  # a round trip


UNREADABLE = [
    "none", "null", "1", "[1]", "[{}]", '{"a": 1}', '[{"1": {"logprob": -1}}]', '[{"1": {"decoded_token": "a"}}]',
    '[{"1": {"decoded_token": null, "logprob": -1}}]', '[{"1": {"decoded_token": "a", "logprob": "x"}}]',
]  # fmt: skip


@pytest.mark.parametrize("written", UNREADABLE)
def test_outputs_that_nobody_can_read_fail_their_generation_with_the_reason(server: Server, written: str) -> None:
    body = {"model": "careless", "prompt": written, "logprobs": 1}
    status, raw = post(f"{server.url}/v1/completions", body)
    assert (status, b"unable to read the outputs of the model; expected the outputs of" in raw) == (500, True), raw
    status, raw = post(f"{server.url}/v1/completions", {**body, "stream": True})
    first, second, done, _ = raw.decode().split("\n\n")
    assert (status, done) == (200, "data: [DONE]")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "first "
    assert "unable to read the outputs" in json.loads(second.removeprefix("data: "))["error"]["message"]
    until_idle(server, "careless")


@pytest.mark.parametrize("logprob", ["-Infinity", "NaN", "-1e400"])
def test_log_probabilities_that_json_cannot_express_are_the_least(server: Server, logprob: str) -> None:
    written = f'[{{"1": {{"decoded_token": "caf\\udce9", "logprob": {logprob}}}}}]'
    status, raw = post(f"{server.url}/v1/completions", {"model": "careless", "prompt": written, "logprobs": 1})
    assert (status, b"Infinity" in raw or b"NaN" in raw) == (200, False)
    logprobs = json.loads(raw)["choices"][0]["logprobs"]
    assert (logprobs["tokens"], logprobs["token_logprobs"]) == (["caf\\udce9"], [-9999.0])


# --- laws ----------------------------------------------------------------------------------------------

TWO_LETTERS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)
LETTERS = st.text("abcé \U0001f600", max_size=12)
STOPS = st.lists(st.text("abcé\U0001f600", min_size=1, max_size=5), max_size=4)


@given(text=st.text("ab", max_size=40) | LETTERS, stops=STOPS | TWO_LETTERS,
       borders=st.lists(st.integers(0, 40)), ignored=st.integers(0, 5))  # fmt: skip
def test_text_ends_where_the_whole_text_would(text: str, stops: list[str], borders: list[int], ignored: int) -> None:
    end = TextEnd([StopString(stop) for stop in stops], ignored)
    released = ""
    for piece in pieces_of(text, borders):
        released += end.add(piece)
    released += end.finish()
    starts = [start for stop in stops if (start := text.find(stop, ignored)) >= 0]
    assert (released, end.reached) == (text[: min(starts, default=len(text))], bool(starts))


@given(text=st.text("ab", max_size=30), stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4))
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    end = TextEnd([StopString(stop) for stop in stops])
    released = "".join(end.add(letter) for letter in text)
    if not any(stop in text for stop in stops):
        held = text[len(released) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def pieces_of(text: Any, borders: list[int]) -> list[Any]:
    places = sorted({0, len(text), *(border % (len(text) + 1) for border in borders)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


@pytest.mark.slow
@law(60)
@given(texts=st.lists(LETTERS, min_size=1, max_size=2), borders=st.lists(st.integers(0, 60), max_size=20), stops=STOPS,
       most=st.integers(1, 12), n=st.integers(1, 2))  # fmt: skip
def test_server_cuts_the_pieces_of_a_model_as_it_would_cut_the_whole_text(
    server: Server, texts: list[str], borders: list[int], stops: list[str], most: int, n: int
) -> None:
    divided = [pieces_of(text.encode(), borders) for text in texts]  # inside of characters, too
    prompts = [json.dumps([piece.decode("latin-1") for piece in pieces]) for pieces in divided]
    body = {"model": "pieces", "prompt": prompts, "max_tokens": most, "n": n, "stop": stops}
    expected = [end_of(pieces, stops, most) for pieces in divided for _ in range(n)]
    found, reasons, usage = complete(server, body)
    assert list(zip(found, reasons, strict=True)) == [(text, reason) for text, reason, _ in expected]
    prompt_tokens, completion_tokens = (
        n * sum(len(prompt.split()) for prompt in prompts),
        sum(used for *_, used in expected),
    )
    assert usage == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    until_idle(server, "pieces")


def end_of(pieces: list[bytes], stops: list[str], most: int) -> tuple[str, str, int]:
    """The text, the finish reason and the number of tokens that a text needs, from its definition."""
    decoder, texts = codecs.getincrementaldecoder("utf-8")("replace"), list[str]()
    counts: list[int] = []
    for piece in pieces:
        left = most - sum(counts)
        text = decoder.decode(piece)
        counts.append(max(1, len(text.split())))
        if counts[-1] > left:
            text, counts[-1] = text[: [word.end() for word in re.finditer(r"\S+", text)][left - 1]], left
            decoder.reset()
        texts.append(text)
        if sum(counts) == most:
            break
    kept = "".join(texts) + decoder.decode(b"", True)
    starts = [kept.find(stop) for stop in stops if stop in kept]
    if not starts:
        return kept, "length" if sum(counts) >= most else "stop", sum(counts)
    text = kept[: min(starts)]
    # The end is certain when no stop string can begin earlier: this is found by trying each number of pieces.
    for used in range(1, len(texts) + 1):
        read = "".join(texts[:used])
        certain = any(stop in read and read.find(stop) == len(text) for stop in stops)
        earlier = any(
            stop.startswith(read[at:]) and stop not in read for at in range(len(text)) for stop in stops if read[at:]
        )
        if certain and not earlier:
            return text, "stop", sum(counts[:used])
    return text, "stop", sum(counts)


# --- cases ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pieces", "stop", "most", "text", "reason"),
    [
        (["A ", "B ", "C ", "D "], "B", 16, "A ", "stop"),
        (["A ", "B ", "C ", "D "], ["B"], 16, "A ", "stop"),
        (["A ", "B ", "C ", "D "], None, 2, "A B ", "length"),
        (["A ", "B ", "C ", "D "], ["D"], 2, "A B ", "length"),
        (["A ", "B ", "C ", "D "], ["D"], 4, "A B C ", "stop"),
        (["A ", "B "], [], 16, "A B ", "stop"),
        (["A E", "N", "D B"], "END", 16, "A ", "stop"),
        (["A E", "N", "T B"], "END", 16, "A ENT B", "stop"),
        (["A EN"], "END", 16, "A EN", "stop"),
        (["xbc", "d"], ["bcd", "c"], 16, "x", "stop"),
        (["xbc", "e"], ["bcd", "c"], 16, "xb", "stop"),
        (["END"], "END", 16, "", "stop"),
    ],
)
@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_stop_strings_and_token_limit_end_a_text(
    server: Server, route: str, pieces: list[str], stop: Any, most: int, text: str, reason: str
) -> None:
    asked = json.dumps(pieces)
    (server["pieces"].served.context.directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    prompt = {"prompt": asked} if route == "completions" else {"messages": [{"role": "user", "content": asked}]}
    assert complete(server, {"model": "pieces", "max_tokens": most, "stop": stop, **prompt}, route)[:2] == (
        [text],
        [reason],
    )


@pytest.mark.slow
def test_cut_generation_is_cancelled(server: Server) -> None:
    body = {"model": "endless", "prompt": ["a", "b"], "n": 2, "max_tokens": 3}
    texts, reasons, usage = complete(server, body)
    assert (texts, reasons) == (4 * ["more more more "], 4 * ["length"])
    assert usage == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}
    assert complete(server, {**body, "stop": ["e m"]})[:2] == (4 * ["mor"], 4 * ["stop"])
    until_idle(server, "endless")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "most", "text", "reason", "usage"),
    [
        ("counting", 4, "a b ", "length", (70, 4)),
        ("counting", 100, "a b c ", "stop", (70, 6)),
        ("summing", 2, "a b c ", "length", (70, 50)),
        ("whole", 1, "a", "length", (3, 1)),
        ("whole", 2, "a b", "length", (3, 2)),
        ("whole", 4, "a b c", "stop", (3, 3)),
    ],
)
def test_tokens_are_counted_by_the_model_or_are_words(
    server: Server, model: str, most: int, text: str, reason: str, usage: tuple[int, int]
) -> None:
    texts, reasons, used = complete(server, {"model": model, "prompt": "a b c", "max_tokens": most})
    assert (texts, reasons, used["prompt_tokens"], used["completion_tokens"]) == ([text], [reason], *usage)


@pytest.mark.slow
def test_text_that_comes_whole_is_cut_only_by_a_limit_that_was_asked_for(server: Server) -> None:
    text = 20 * "word "
    for route, prompt in (("completions", {"prompt": text}), ("chat/completions", {"messages": CHAT})):
        body = {"model": "whole", **prompt}
        [whole], reasons, usage = complete(server, body, route)
        assert (reasons, usage["completion_tokens"]) == (["stop"], len(whole.split()))
        [cut], reasons, usage = complete(server, {**body, "max_tokens": 2}, route)
        assert (cut, reasons, usage["completion_tokens"]) == (" ".join(whole.split()[:2]), ["length"], 2)
    assert complete(server, {"model": "whole", "prompt": text, "max_tokens": 16, "stop": "rd word"})[:2] == (
        ["wo"],
        ["stop"],
    )


@pytest.mark.slow
def test_embeddings_count_tokens_or_words(server: Server) -> None:
    for model, tokens in (("vectors", 3), ("lengths", 8)):
        status, raw = post(f"{server.url}/v1/embeddings", {"model": model, "input": ["one two", "b"]})
        assert (status, json.loads(raw)["usage"]) == (200, {"prompt_tokens": tokens, "total_tokens": tokens})


@pytest.mark.slow
@pytest.mark.parametrize("escape", [rb"\ud83d", rb"\udc80", rb"\udc80\ud83d", b"\xed\xa0\xbd", b"\xff"])
@pytest.mark.parametrize("member", ["prompt", "model", "stop", "user", "extra"])
def test_text_with_half_a_character_is_refused(server: Server, member: str, escape: bytes) -> None:
    body = {"model": "whole", "prompt": "a", member: "half %"}
    status, raw = post(f"{server.url}/v1/completions", json.dumps(body).encode().replace(b"%", escape))
    assert (status, "could not parse the JSON body" in json.loads(raw)["error"]["message"]) == (400, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/embeddings", "/v1/embeddings"),
        ("/models", "/v1/models"),
        ("/models/whole", "/v1/models/whole"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/models/", "/v1/models"),
    ],
)
def test_error_of_a_wrong_base_url_names_the_right_path(server: Server, path: str, expected: str) -> None:
    status, raw = post(f"{server.url}{path}", {})
    assert status == 404
    assert json.loads(raw)["error"]["message"] == (
        f"Invalid URL or method (POST {path}): expected {expected}, with a base URL of the client that ends with /v1"
    )


def test_paths_without_v1_are_unknown_if_the_api_is_off(tmp_path: Path) -> None:
    from tritonnb.endpoints.openai.options import OpenAiOptions

    with Server(tmp_path, port=0, openai=OpenAiOptions(allow=False)) as server:
        assert post(f"{server.url}/chat/completions", {}) == (404, b'{"error":"Not Found"}')


@pytest.mark.parametrize("is_limit_asked", [False, True])
@pytest.mark.parametrize("after", [b"c d", b" ", b"c", "é".encode()[:1]])
def test_model_that_goes_on_after_its_finish_reason_is_cut_at_the_limit(after: bytes, is_limit_asked: bool) -> None:
    asked: Any = SimpleNamespace(sampling={"max_tokens": 2}, is_limit_asked=is_limit_asked, logprobs=None)
    reader = _ChoiceReader(Choice(0), asked, TextEnd([]), counts_tokens=False)
    texts = {"text_output": [b"a b", after], "finish_reason": [b"stop", b""]}
    read = ""
    for number in range(2):
        outputs = [
            SimpleNamespace(name=name, array=np.array([values[number]], object)) for name, values in texts.items()
        ]
        response: Any = SimpleNamespace(outputs=outputs, final=False)
        read += reader.read(response).text
    assert read == "a b"
