"""The recorded exchanges about the model repository, which follow one another on one server."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.endpoints.newer_release import recordings
from tests.endpoints.recorded_models import MODELS
from tests.endpoints.replay import differences, send
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.load import ConfigError
from tritonnb.server.options import ServerKeywords
from tritonnb.server.server import Server

EXCHANGES = recordings("repository.json")


def test_loading_unloading_and_the_index_are_answered_as_recorded() -> None:
    names = [model.name for model in MODELS.iterdir() if model.name not in ("probe", "wont_load")]
    options: ServerKeywords = {"model_control_mode": "explicit", "load_models": names, "allow_file_override": True}
    with Server(MODELS, port=0, **options) as server:
        assert {exchange["id"]: different for exchange in EXCHANGES if (different := play(server, exchange))} == {}


def play(server: Server, exchange: dict[str, Any]) -> list[str]:
    """The differences; unloading goes on after it was answered, so what changes is asked again."""
    give_up = time.monotonic() + exchange.get("within", 0)
    while (different := differences(exchange, *send(server.port, exchange["request"]))) and time.monotonic() < give_up:
        pass
    while "pause_after" in exchange and any(row.get("state") == "UNLOADING" for row in server.index()):
        pass
    return different


def test_load_request_with_files_is_refused_unless_allowed() -> None:
    (load,) = (exchange for exchange in EXCHANGES if exchange["id"] == "load-files")
    with Server(MODELS, port=0, model_control_mode="explicit") as server:
        status, _, body = send(server.port, load["request"])
    assert status == 501
    assert b"files are code" in body


@pytest.mark.parametrize("path", ["../escaped.py", "/../escaped.py", "1/../../escaped.py"])
def test_files_outside_the_model_directory_are_refused(path: str) -> None:
    with Server(port=0, model_control_mode="explicit", allow_file_override=True) as server:
        parameters: dict[str, str | bytes] = {"config": '{"backend": "python"}', f"file:{path}": b"pass"}
        with pytest.raises(Exception, match="outside the model's directory"):
            server.run(server.engine.load("m", parameters))


@pytest.mark.parametrize(
    ("path", "complaint"), [("A" * 300, "File name too long"), ("", "Is a directory"), ("1/", "Is a directory")]
)
def test_load_request_with_unwritable_file_is_refused(path: str, complaint: str) -> None:
    with Server(port=0, model_control_mode="explicit", allow_file_override=True) as server:
        parameters: dict[str, str | bytes] = {"config": '{"backend": "python"}', f"file:{path}": b"pass"}
        with pytest.raises(Exception, match=f"failed to open binary file for write .*: {complaint}"):
            server.run(server.engine.load("m", parameters))


def test_load_request_with_files_and_invalid_json_gets_the_json_error() -> None:
    with Server(port=0, model_control_mode="explicit", allow_file_override=True) as server:
        with pytest.raises(ConfigError) as caught:
            server.run(server.engine.load("m", {"config": '{"a": 1}', "file:1/model.py": b"pass"}))
        assert caught.value.cause == "a: Cannot find field."


@pytest.mark.parametrize("text", ["cGFzcw==", "cGFzcw", "c G!F\nzcw=", "cGFzcwAA="[:6]])
def test_base64_without_padding_or_with_other_characters_is_accepted(text: str) -> None:
    body = json.dumps({"parameters": {"config": '{"backend": "python"}', "file:1/model.py": text}})
    with Server(port=0, model_control_mode="explicit", allow_file_override=True) as server:
        request = {"method": "POST", "path": "/v2/repository/models/m/load", "body_text": body}
        _, _, answer = send(server.port, request)
        assert b"has no attribute 'TritonPythonModel'" in answer


def test_loading_an_unknown_model_leaves_no_entry() -> None:
    with Server(MODELS, port=0, model_control_mode="explicit") as server:
        before = server.index()
        with pytest.raises(ConfigError, match="failed to poll from model repository"):
            server.load("nowhere")
        assert server.index() == before


NAMES = [
    ("", "Model name cannot be empty. Please enter a valid name to deploy."),
    (" \t\r\n", "Model name cannot be empty. Please enter a valid name to deploy."),
    ("..", "invalid model name '..', model name must not contain path traversal characters"),
    (" .. ", "invalid model name ' .. ', model name must not contain path traversal characters"),
    ("../addsub", "invalid model name '../addsub', model name must not contain path traversal characters"),
    ("/addsub", "invalid model name '/addsub', model name must not contain path traversal characters"),
]


@pytest.mark.parametrize(("name", "text"), NAMES)
def test_blank_model_name_or_path_is_refused(name: str, text: str) -> None:
    with Server(MODELS, port=0, grpc_port=0, model_control_mode="explicit") as server:
        with pytest.raises(InvalidArgumentError) as raised:
            server.run(server.engine.load(name))
        assert raised.value.message == text
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            with pytest.raises(InferenceServerException) as refused:
                client.load_model(name)
            assert (refused.value.message(), refused.value.status()) == (text, "StatusCode.INVALID_ARGUMENT")
            client.unload_model(name)


def test_model_name_with_a_path_is_refused_over_http() -> None:
    with Server(MODELS, port=0, model_control_mode="explicit") as server:
        status, _, body = send(server.port, {"method": "POST", "path": "/v2/repository/models/../load"})
    assert (status, json.loads(body)) == (400, {"error": NAMES[2][1]})


@pytest.mark.parametrize("name", [".", "\0", "m\0", "A" * 300])
def test_model_name_that_is_an_invalid_directory_name_is_refused(name: str) -> None:
    files: dict[str, str | bytes] = {"config": '{"backend": "python"}', "file:1/model.py": b"pass"}
    with Server(MODELS, port=0, model_control_mode="explicit", allow_file_override=True) as server:
        for parameters in ({}, files):
            with pytest.raises(ConfigError):
                server.run(server.engine.load(name, parameters))


@pytest.mark.parametrize("field", ["runtime", "default_model_filename"])
def test_invalid_file_name_is_an_error(field: str) -> None:
    for name in ("\0", "A" * 300):
        with Server(MODELS, port=0, model_control_mode="explicit") as server:
            with pytest.raises(InvalidArgumentError):
                server.run(server.engine.load("addsub", {"config": json.dumps({"backend": "python", field: name})}))


def test_non_utf8_configuration_is_refused() -> None:
    with Server(MODELS, port=0, model_control_mode="explicit") as server:
        with pytest.raises(ConfigError, match="Encountered non UTF-8 code points"):
            server.run(server.engine.load("addsub", {"config": '{"backend": "pyt\udcffhon"}'}))
