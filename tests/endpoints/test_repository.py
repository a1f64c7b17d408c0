"""The recorded exchanges about the model repository, which follow one another on one server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.replay import differences, send
from tests.endpoints.test_transcripts import MODELS
from tritonnb.model_config.load import ConfigError
from tritonnb.server.server import Server

EXCHANGES = json.loads((Path(__file__).parent / "repository.json").read_text())


def test_loading_unloading_and_the_index_are_answered_as_recorded() -> None:
    names = [each.name for each in MODELS.iterdir() if each.name not in ("probe", "wont_load")]
    options: dict[str, Any] = {"model_control_mode": "explicit", "load_models": names, "allow_file_override": True}
    with Server(MODELS, port=0, **options) as server:
        assert {each["id"]: found for each in EXCHANGES if (found := play(server, each))} == {}


def play(server: Server, exchange: dict[str, Any]) -> list[str]:
    """The differences; unloading goes on after it was answered, so what changes is asked again."""
    give_up = time.monotonic() + exchange.get("within", 0)
    while (found := differences(exchange, *send(server.port, exchange["request"]))) and time.monotonic() < give_up:
        pass
    while "pause_after" in exchange and any(each.get("state") == "UNLOADING" for each in server.index()):
        pass
    return found


def test_files_are_refused_unless_the_server_was_started_with_them_allowed() -> None:
    (load,) = (each for each in EXCHANGES if each["id"] == "load-files")
    with Server(MODELS, port=0, model_control_mode="explicit") as server:
        status, _, body = send(server.port, load["request"])
    assert status == 501
    assert b"files are code" in body


@pytest.mark.parametrize("path", ["../escaped.py", "/../escaped.py", "1/../../escaped.py"])
def test_files_stay_in_the_directory_of_their_model(path: str) -> None:
    with Server(port=0, model_control_mode="explicit", allow_file_override=True) as server:
        parameters = {"config": '{"backend": "python"}', f"file:{path}": b"pass"}
        with pytest.raises(Exception, match="outside the model's directory"):
            server.run(server.engine.load("m", parameters))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "complaint"), [("A" * 300, "File name too long"), ("", "Is a directory"), ("1/", "Is a directory")]
)
def test_files_that_cannot_be_written_are_refused(path: str, complaint: str) -> None:
    with Server(port=0, model_control_mode="explicit", allow_file_override=True) as server:
        parameters = {"config": '{"backend": "python"}', f"file:{path}": b"pass"}
        with pytest.raises(Exception, match=f"failed to open binary file for write .*: {complaint}"):
            server.run(server.engine.load("m", parameters))  # type: ignore[arg-type]


def test_files_with_a_broken_configuration_are_refused_in_the_words_of_json_alone() -> None:
    with Server(port=0, model_control_mode="explicit", allow_file_override=True) as server:
        with pytest.raises(ConfigError) as caught:
            server.run(server.engine.load("m", {"config": '{"a": 1}', "file:1/model.py": b"pass"}))
        assert caught.value.cause == "a: Cannot find field."


@pytest.mark.parametrize("text", ["cGFzcw==", "cGFzcw", "c G!F\nzcw=", "cGFzcwAA="[:6]])
def test_base64_is_read_leniently(text: str) -> None:
    body = json.dumps({"parameters": {"config": '{"backend": "python"}', "file:1/model.py": text}})
    with Server(port=0, model_control_mode="explicit", allow_file_override=True) as server:
        request = {"method": "POST", "path": "/v2/repository/models/m/load", "body_text": body}
        _, _, answer = send(server.port, request)
        assert b"has no attribute 'TritonPythonModel'" in answer


def test_a_model_that_is_in_no_repository_leaves_nothing_behind() -> None:
    with Server(MODELS, port=0, model_control_mode="explicit") as server:
        before = server.index()
        with pytest.raises(ConfigError, match="failed to poll from model repository"):
            server.load("nowhere")
        assert server.index() == before
