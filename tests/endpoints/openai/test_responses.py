"""The OpenAI-compatible API: the ``openai`` package as the client, its types as the schema."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
import pytest
from tornado.iostream import StreamClosedError

from tests.endpoints.openai.conftest import CHAT, MODEL, body_of, post, steps_until_idle
from tests.lazy_import import LazyModule
from tritonnb.core.events import RequestRefused
from tritonnb.endpoints import long_work
from tritonnb.endpoints.http.json_arrays import MOST_VALUES
from tritonnb.endpoints.openai.errors import OpenAiError
from tritonnb.endpoints.openai.fields import ROUTES
from tritonnb.endpoints.openai.handlers import CompletionsHandler
from tritonnb.server.server import Server

if TYPE_CHECKING:
    import openai
    from pydantic import BaseModel
else:
    openai = LazyModule("openai")

pytestmark = pytest.mark.slow

#: Generations that do not end by themselves.
LONG: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
COMPLETION = {"model": MODEL, "prompt": "Once", "seed": 1, "max_tokens": 5, "temperature": 0.8}
CHATTED = {"model": MODEL, "messages": CHAT, "seed": 1, "max_tokens": 5}


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("completions", COMPLETION, "Completion"),
        ("completions", {**COMPLETION, "n": 2, "logprobs": 2, "echo": True, "stop": ["x", "y"]}, "Completion"),
        ("completions", {**COMPLETION, "prompt": ["a", "b"], "top_p": 0.9, "user": "me"}, "Completion"),
        ("chat/completions", CHATTED, "chat.ChatCompletion"),
        ("chat/completions", {**CHATTED, "n": 2, "logprobs": True, "top_logprobs": 2}, "chat.ChatCompletion"),
        ("chat/completions", {"model": MODEL, "messages": CHAT, "max_completion_tokens": 3}, "chat.ChatCompletion"),
        ("embeddings", {"model": "letters", "input": "abc"}, "CreateEmbeddingResponse"),
    ],
    ids=["completion", "choices", "prompts", "chat", "chat logprobs", "chat limit", "embedding"],
)
def test_response_conforms_to_the_openai_packages_types(
    server: Server, path: str, body: dict[str, Any], kind: str
) -> None:
    answer = body_of(post(f"{server.url}/v1/{path}", body), type_named(f"openai.types.{kind}"))
    choices = getattr(answer, "choices", [])
    assert len(choices) in (0, body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1))
    for choice in choices:
        assert choice.finish_reason in ("stop", "length")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("null", [False, True], ids=["absent", "null"])
@pytest.mark.parametrize("model", [MODEL, "tiny_gpt_static", "plain"])
def test_only_model_and_prompt_are_required(server: Server, model: str, null: bool, stream: bool) -> None:
    for path, prompt in (("completions", {"prompt": "Once"}), ("chat/completions", {"messages": CHAT})):
        fields = ROUTES[f"/v1/{path}"]
        nulls = dict.fromkeys(fields.known | fields.unsupported.keys()) if null else {}
        body = {**nulls, "model": model, **prompt, "stream": stream}
        status, raw = post(f"{server.url}/v1/{path}", body)
        assert (status, b"error" in raw) == (200, False), raw


def test_model_receives_the_parameters_of_the_client_and_a_token_limit(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="plain", messages=CHAT, seed=2)  # type: ignore[arg-type]
    assert json.loads(chat.choices[0].message.content or "") == {"max_tokens": 16, "seed": 2}
    completion = client.completions.create(model="plain", prompt="")
    assert json.loads(completion.choices[0].text) == {"max_tokens": 16}


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("completions", {**COMPLETION, "n": 2, "logprobs": 1}, "Completion"),
        ("chat/completions", {**CHATTED, "n": 2, "logprobs": True}, "chat.ChatCompletionChunk"),
    ],
    ids=["completion", "chat"],
)
def test_every_chunk_of_a_stream_conforms_to_the_openai_types(
    server: Server, path: str, body: dict[str, Any], kind: str
) -> None:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    status, raw = post(f"{server.url}/v1/{path}", asked)
    assert status == 200
    *events, done, empty = raw.decode().split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    documents = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all("usage" in document for document in documents)
    for document in documents:
        check_chunk(document, type_named(f"openai.types.{kind}"))
    *parts, last = documents
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 10)
    assert all(part["usage"] is None for part in parts)
    for index in range(2):
        choices = [choice for part in parts for choice in part["choices"] if choice["index"] == index]
        assert [choice["finish_reason"] for choice in choices[-2:]] == [None, "length"]


def check_chunk(document: dict[str, Any], kind: type[BaseModel]) -> None:
    """Check a chunk; the package has no type for those of completions, whose ``finish_reason`` may be null."""
    if kind is openai.types.Completion:
        choices = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in document["choices"]]
        document = {**document, "choices": choices}
    body_of((200, json.dumps(document).encode()), kind)


def type_named(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/completions", "completion_create_params.CompletionCreateParamsStreaming"),
        ("/v1/chat/completions", "chat.completion_create_params.CompletionCreateParamsStreaming"),
        ("/v1/embeddings", "embedding_create_params.EmbeddingCreateParams"),
    ],
)
def test_every_field_of_the_openai_package_is_read_ignored_or_refused(path: str, kind: str) -> None:
    fields, parameters = ROUTES[path], type_named(f"openai.types.{kind}")
    documented = {name for base in parameters.__mro__ for name in getattr(base, "__annotations__", {})}
    documented |= set(get_type_hints(parameters))
    assert fields.known | fields.unsupported.keys() == documented | fields.extensions
    assert not fields.extensions & documented
    assert not fields.read.keys() & fields.ignored


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHATTED),
     ("/v1/embeddings", {"model": "letters", "input": "abc"})],
)  # fmt: skip
def test_documented_fields_and_types_match_the_endpoint(server: Server, path: str, body: dict[str, Any]) -> None:
    fields = ROUTES[path]
    harmless = {name: values[0] for name, values in fields.unsupported.items() if values}
    body_of(post(f"{server.url}{path}", {**body, **harmless, **dict.fromkeys(fields.ignored, "x")}),
            type_named(fields.response))  # fmt: skip
    for name in fields.unsupported:
        status, raw = post(f"{server.url}{path}", {**body, name: ["something else"]})
        assert (status, json.loads(raw)["error"]["code"]) == (400, "unsupported_parameter")
    if fields.chunk:
        _, raw = post(f"{server.url}{path}", {**body, "stream": True})
        check_chunk(json.loads(raw.split(b"\n\n")[0].removeprefix(b"data: ")), type_named(fields.chunk))


# --- the openai package as the client ------------------------------------------------------------------


def test_model_list_contains_language_and_embedding_models(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {MODEL, "tiny_gpt_static", "letters", "plain"}
    assert client.models.retrieve(MODEL).owned_by == "tritonnb"
    openai.types.Model.model_validate(client.models.retrieve(MODEL).model_dump(), strict=True)
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("nothing")
    assert refused.value.code == "model_not_found"


def test_streamed_text_equals_the_complete_response(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="Once", max_tokens=20, seed=3)
    parts = list(client.completions.create(model=MODEL, prompt="Once", max_tokens=20, seed=3, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 20)
    chat = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=20, seed=3)  # type: ignore[arg-type]
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=CHAT,  # type: ignore[arg-type]
        max_tokens=20,
        seed=3,
        stream=True,
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == chat.choices[0].message.content


def test_both_models_return_the_same_for_every_seed(client: openai.OpenAI) -> None:
    def texts(model: str, **options: Any) -> list[str]:
        choices = client.completions.create(model=model, prompt="a", max_tokens=12, **options).choices
        return [choice.text for choice in choices]

    both = texts(MODEL, seed=7, n=3)
    assert both == texts("tiny_gpt_static", seed=7, n=3)
    assert both[1:2] == texts(MODEL, seed=8)
    assert len(set(both)) == 3
    assert len(set(texts(MODEL, temperature=0, n=2))) == 1


def test_stop_string_ends_the_text_and_is_omitted(client: openai.OpenAI) -> None:
    def complete(**options: Any) -> Any:
        return client.completions.create(model=MODEL, prompt="b", max_tokens=30, seed=5, **options)

    text = complete().choices[0].text
    stop = text[10:13]
    before = text[: text.index(stop)]
    assert (complete(stop=stop).choices[0].text, complete(stop=stop).choices[0].finish_reason) == (before, "stop")
    assert "".join(part.choices[0].text for part in complete(stop=["never", stop], stream=True)) == before


def test_choices_of_all_prompts_are_limited(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 2048 choices in all, got 17 prompts with 128 choices"):
        client.completions.create(model=MODEL, prompt=["a"] * 17, n=128)


def test_log_probabilities_belong_to_their_tokens(client: openai.OpenAI) -> None:
    choice = client.completions.create(model=MODEL, prompt="c", max_tokens=4, seed=1, logprobs=3).choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == choice.text
    assert logprobs.text_offset == [0, 1, 2, 3]
    for token, logprob, most in zip(
        logprobs.tokens or [], logprobs.token_logprobs or [], logprobs.top_logprobs or [], strict=True
    ):
        assert most[token] == logprob < 0
        assert len(most) in (3, 4)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_are_the_models_output(client: openai.OpenAI, encoding: Any) -> None:
    answer = client.embeddings.create(model="letters", input=["abba", "c"], encoding_format=encoding)
    vectors = [entry.embedding for entry in answer.data]
    if encoding == "base64":
        import base64

        vectors = [np.frombuffer(base64.b64decode(str(vector)), "<f4").tolist() for vector in vectors]
    assert vectors == [[2, 2, 0], [0, 0, 1]]


def test_slots_of_disconnected_client_are_freed(
    server: Server, client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    before = server[MODEL].stats()["execution_count"]
    stream = client.completions.create(model=MODEL, prompt="d", max_tokens=400, n=8, stream=True, **LONG)
    next(iter(stream))
    assert server[MODEL].served.in_flight == 8
    stream.close()
    assert steps_until_idle(server, client) - before < 200
    last = client.completions.create(model=MODEL, prompt="d", max_tokens=3, n=8, **LONG).choices[7]
    assert last.finish_reason == "length"
    assert not caplog.records


def test_generations_end_if_writing_to_the_disconnected_client_fails(
    server: Server, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = CompletionsHandler.flush

    def fail_once(handler: CompletionsHandler, include_footers: bool = False) -> asyncio.Future[None]:
        monkeypatch.setattr(CompletionsHandler, "flush", flush)
        raise StreamClosedError

    monkeypatch.setattr(CompletionsHandler, "flush", fail_once)
    before = server[MODEL].stats()["execution_count"]
    list(client.completions.create(model=MODEL, prompt="d", max_tokens=400, n=8, stream=True, **LONG))
    assert steps_until_idle(server, client) - before < 200


def test_unknown_model_has_the_same_error_on_every_route(server: Server) -> None:
    expected = OpenAiError("The model 'x' does not exist", "model", status=404, code="model_not_found").body()["error"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{server.url}/v1/models/x")
    answers = [(caught.value.code, caught.value.read())]
    for path, body in (
        ("completions", {"prompt": "a"}), ("chat/completions", {"messages": CHAT}), ("embeddings", {"input": "a"}),
    ):  # fmt: skip
        answers.append(post(f"{server.url}/v1/{path}", {"model": "x", **body}))
    assert [(status, json.loads(raw)["error"]) for status, raw in answers] == 4 * [(404, expected)]


# --- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        ("completions", b"{", 400, None, "could not parse"),
        ("completions", [], 400, None, "expected a JSON object, got array"),
        ("completions", {"prompt": "a"}, 400, "model", "you must provide a 'model' parameter"),
        ("completions", {"model": "nothing", "prompt": "a"}, 404, "model", "'nothing' does not exist"),
        ("completions", {**COMPLETION, "colour": 1}, 400, "colour", "Unrecognized request argument"),
        ("completions", {**COMPLETION, "suffix": "z"}, 400, "suffix", "not supported"),
        ("completions", {**COMPLETION, "temperature": 3}, 400, "temperature", "a number from 0 to 2, got 3"),
        ("completions", {**COMPLETION, "max_tokens": True}, 400, "max_tokens", "expected integer, got boolean"),
        ("completions", {**COMPLETION, "prompt": [1, 2]}, 400, "prompt", "no tokens"),
        ("completions", {**COMPLETION, "stop": ["a"] * 5}, 400, "stop", "at most 4 strings"),
        ("completions", {**COMPLETION, "prompt": "x" * 600}, 400, None, "the context of the model"),
        ("completions", {**COMPLETION, "stream_options": {}, "n": 0}, 400, "n", "an integer from 1 to 128"),
        ("completions", {**COMPLETION, "model": "letters"}, 400, "model", "text_input"),
        ("chat/completions", {"model": MODEL, "messages": []}, 400, "messages", "at least one message"),
        ("chat/completions", {**CHATTED, "tools": [{}]}, 400, "tools", "not supported"),
        ("chat/completions", {**CHATTED, "messages": [{"role": "me"}]}, 400, "messages[0]", "a role of"),
        ("chat/completions", {**CHATTED, "max_completion_tokens": 3}, 400, "max_tokens", "cannot be combined"),
        ("chat/completions", {**CHATTED, "top_logprobs": 3}, 400, "top_logprobs", "'logprobs' to be true"),
        ("embeddings", {"model": MODEL, "input": "a"}, 400, "model", "output of floating-point numbers"),
        ("embeddings", {"model": "letters", "input": [1]}, 400, "input", "tokens are not supported"),
        ("embeddings", {"model": "letters", "input": "a", "dimensions": 2}, 400, "dimensions", "expected 3"),
        ("nothing", {}, 404, None, "Invalid URL or method (POST /v1/nothing)"),
        ("models", {}, 405, None, "Invalid URL or method (POST /v1/models)"),
    ],
)
def test_error_has_openais_format_and_status(
    server: Server, path: str, body: object, status: int, param: str | None, words: str
) -> None:
    code, raw = post(f"{server.url}/v1/{path}", body)
    error = json.loads(raw)["error"]
    assert (code, error["param"], error["type"]) == (status, param, "invalid_request_error")
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


LONG_TEXT = "x" * (3 * long_work.LONG)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", json.dumps({**COMPLETION, "colour": 1})),
        ("completions", json.dumps({**COMPLETION, "colour": LONG_TEXT})),
        ("completions", json.dumps({"prompt": LONG_TEXT, "colour": 1, "suffix": LONG_TEXT, "model": MODEL})),
        ("completions", json.dumps({**COMPLETION, "prompt": ["a"] * (MOST_VALUES + 1)})),
        ("completions", json.dumps({**COMPLETION, "prompt": LONG_TEXT})[:-2]),
        ("completions", f'{{"metadata":{{"model":"nothing"}},"model" : "{MODEL}","prompt":"\\ud800"}}'),
        ("chat/completions", json.dumps({**CHATTED, "messages": [{"role": "me", "content": LONG_TEXT}]})),
        ("embeddings", json.dumps({"model": MODEL, "input": LONG_TEXT})),
    ],
)
def test_refusal_is_an_event_of_the_named_model(server: Server, path: str, body: str) -> None:
    with server.record() as recording:
        status, answer = post(f"{server.url}/v1/{path}", body.encode())
    assert status == 400
    refusals = [event for event in recording.events if isinstance(event, RequestRefused)]
    assert [(event.model, event.message) for event in refusals] == [(MODEL, json.loads(answer)["error"]["message"])]


# --- other clients ---------------------------------------------------------------------------------------


def test_curl_generate_stream_and_grpc_get_the_same_text(server: Server, client: openai.OpenAI) -> None:
    text = client.completions.create(model=MODEL, prompt="e", max_tokens=9, seed=4).choices[0].text
    body = json.dumps({"model": MODEL, "prompt": "e", "max_tokens": 9, "seed": 4})
    command = ["curl", "--silent", "--fail", f"{server.url}/v1/completions", "--data", body]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["choices"][0]["text"] == text
    asked = {"text_input": "e", "stream": True, "max_tokens": 9, "seed": 4}
    _, raw = post(f"{server.url}/v2/models/{MODEL}/generate_stream", asked)
    events = [json.loads(line.removeprefix("data: ")) for line in raw.decode().split("\n\n") if line]
    assert "".join(event["text_output"] for event in events) == text
    assert "".join(over_grpc(server, "e", max_tokens=9, seed=4)) == text


def over_grpc(server: Server, prompt: str, **parameters: int) -> list[str]:
    import queue

    from tritonclient import grpc

    results: queue.Queue[Any] = queue.Queue()
    texts = []
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as stub:
        tensors = [grpc.InferInput("text_input", [1, 1], "BYTES"), grpc.InferInput("stream", [1, 1], "BOOL")]
        tensors[0].set_data_from_numpy(np.array([[prompt.encode()]], object))
        tensors[1].set_data_from_numpy(np.array([[True]]))
        stub.start_stream(lambda result, error: results.put(error or result))
        stub.async_stream_infer(MODEL, tensors, parameters=parameters, enable_empty_final_response=True)
        while True:
            result = results.get(timeout=60)
            texts.append(result.as_numpy("text_output").item().decode())
            if result.get_response().parameters["triton_final_response"].bool_param:
                return texts
