"""The OpenAI-compatible API can be restricted, disabled and limited."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.endpoints.openai.conftest import CHAT, TEXT_OUTPUT, post
from tests.lazy_import import LazyModule
from tritonnb.core.datatypes import BYTES
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.server.server import Server

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")


pytestmark = pytest.mark.slow


def test_openai_api_can_be_disabled_or_have_a_port_and_a_key(tmp_path: Path) -> None:
    with Server(tmp_path, port=0, openai=OpenAiOptions(allow=False)) as server:
        assert server.openai_port is None
        assert post(f"{server.url}/v1/completions", {})[0] == 404
    with Server(tmp_path, port=0, openai_port=0, openai=OpenAiOptions(api_key="secret")) as server:
        assert post(f"{server.url}/v1/completions", {})[0] == 404
        own = f"http://127.0.0.1:{server.openai_port}/v1"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=own, api_key="wrong", max_retries=0).models.list()
        assert openai.OpenAI(base_url=own, api_key="secret", max_retries=0).models.list().data == []


@pytest.mark.parametrize("openai_port", [None, 0])
def test_default_token_limit_applies_without_max_tokens(tmp_path: Path, openai_port: int | None) -> None:
    with Server(tmp_path, port=0, openai_port=openai_port, openai=OpenAiOptions(default_max_tokens=3)) as server:

        @server.model
        def limit(text_input: BYTES[1], sampling_parameters: BYTES[1]) -> TEXT_OUTPUT:
            sampling: Any = sampling_parameters
            return {"text_output": np.array([str(json.loads(sampling[0])["max_tokens"]).encode()], np.object_)}

        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.openai_port or server.port}/v1", api_key="none")
        chat: Any = functools.partial(client.chat.completions.create, model="limit", messages=CHAT)
        for limits, text in (({}, "3"), ({"max_tokens": 7}, "7"), ({"max_completion_tokens": 8}, "8")):
            assert chat(**limits).choices[0].message.content == text
        assert client.completions.create(model="limit", prompt="a").choices[0].text == "3"


def test_http_restrictions_apply_to_openai_routes(tmp_path: Path) -> None:
    options = HttpOptions(restricted_api=(("inference", "x-key", "1"),))
    with Server(tmp_path, port=0, http=options) as server:
        refused = post(f"{server.url}/v1/completions", {"model": "m"})
        assert (refused[0], json.loads(refused[1])["error"]["message"]) == (
            403,
            "This API is restricted, expecting header 'x-key'",
        )
        assert post(f"{server.url}/v1/completions", {"model": "m"}, **{"x-key": "1"})[0] == 404
        assert post(f"{server.url}/v1/completions", {"model": "m"}, Origin="http://evil.example")[0] == 403
