"""Chat templates of the OpenAI-compatible API: rendered beside the event loop, with errors that name the line."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.endpoints.openai.conftest import CHAT, MODEL, steps_until_idle
from tests.lazy_import import LazyModule
from tritonnb.endpoints.openai.generation import Generations
from tritonnb.model_config.chat_template import ChatTemplate
from tritonnb.server.server import Server

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")


pytestmark = pytest.mark.slow

TEMPLATE = """{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}
{%- if messages[0].role == "assistant" %}{{ raise_exception("expected the user first") }}{% endif %}<assistant>"""


def test_model_directory_may_have_a_chat_template(server: Server, client: openai.OpenAI) -> None:
    template = server[MODEL].served.context.directory / "chat_template.jinja"
    template.write_text(TEMPLATE)
    try:
        chat = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=9, seed=2)  # type: ignore[arg-type]
        plain = client.completions.create(model=MODEL, prompt="<user>what is json?<assistant>", max_tokens=9, seed=2)
        assert chat.choices[0].message.content == plain.choices[0].text
        with pytest.raises(openai.BadRequestError, match=r"chat_template.jinja, line 2: expected the user"):
            client.chat.completions.create(model=MODEL, messages=[{"role": "assistant", "content": "?"}])
    finally:
        template.unlink()


@pytest.fixture
def held_template(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Set when a chat template is being rendered, and what its rendering waits for."""
    begun, go_on = threading.Event(), threading.Event()
    render = ChatTemplate.render

    def hold(template: ChatTemplate, messages: Any) -> str:
        begun.set()
        assert go_on.wait(60)
        return render(template, messages)

    monkeypatch.setattr(ChatTemplate, "render", hold)
    template = server[MODEL].served.context.directory / "chat_template.jinja"
    template.write_text(TEMPLATE)
    yield begun, go_on
    go_on.set()
    template.unlink()


def test_health_probe_is_not_delayed_by_a_slow_chat_template(
    server: Server, client: openai.OpenAI, held_template: tuple[threading.Event, threading.Event]
) -> None:
    begun, go_on = held_template
    with ThreadPoolExecutor(1) as pool:
        endless = {"ignore_eos": True}  # else the model may end the text earlier
        chat = pool.submit(
            client.chat.completions.create,  # type: ignore[arg-type]
            model=MODEL,
            messages=CHAT,
            max_tokens=3,
            extra_body=endless,
        )
        assert begun.wait(60)
        try:
            with urllib.request.urlopen(f"{server.url}/v2/health/ready", timeout=15) as probe:
                assert probe.status == 200
        finally:
            go_on.set()
        assert chat.result(60).usage.completion_tokens == 3


def test_slots_are_freed_if_client_disconnects_while_chat_template_is_rendered(
    server: Server,
    client: openai.OpenAI,
    held_template: tuple[threading.Event, threading.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = held_template
    submitted, submit = threading.Event(), Generations.submit

    def note(generations: Generations, *args: Any) -> None:
        submit(generations, *args)
        submitted.set()

    monkeypatch.setattr(Generations, "submit", note)
    before = server[MODEL].stats()["execution_count"]
    body = json.dumps({"model": MODEL, "messages": CHAT, "max_tokens": 400, "ignore_eos": True}).encode()
    fields = [f"Host: 127.0.0.1:{server.port}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", *fields, "", ""]).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body)
        assert begun.wait(60)
    client.models.list()  # a round trip, after which the server knows
    go_on.set()
    assert submitted.wait(60)
    assert steps_until_idle(server, client) - before < 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n{{ messages }", "tiny_gpt/chat_template.jinja, line 2: unexpected '}'"),
        ("{% include 'config.pbtxt' %}", "tiny_gpt/chat_template.jinja, line 1: config.pbtxt"),
        ("{{ messages[0].a.b }}", "tiny_gpt/chat_template.jinja, line 1: 'dict object' has no attribute 'a'"),
    ],
    ids=["syntax", "another file", "undefined"],
)
def test_error_of_failing_chat_template_names_its_line(
    server: Server, client: openai.OpenAI, text: str, words: str
) -> None:
    template = server[MODEL].served.context.directory / "chat_template.jinja"
    template.write_text(text)
    try:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model=MODEL, messages=CHAT)  # type: ignore[arg-type]
        assert words in caught.value.message
    finally:
        template.unlink()


def test_invalid_chat_template_is_logged_at_load(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    template = server[MODEL].served.context.directory / "1" / "chat_template.jinja"
    template.write_text("{% for message in messages %}")
    try:
        server[MODEL].reload()
        assert "model 'tiny_gpt': tiny_gpt/1/chat_template.jinja, line 1: Unexpected end of template" in caplog.text
    finally:
        template.unlink()
