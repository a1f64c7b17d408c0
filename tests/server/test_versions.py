"""``server["name", 1]``: one version of a model, in process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from tests.server.conftest import python_model
from tritonnb.server.server import Server


@pytest.fixture
def server(write_model: Callable[..., Path]) -> Iterator[Server]:
    for version in (1, 3):
        repository = write_model("m", python_model(f"x + {version}"), "version_policy { all { } }", version)
    with Server(repository, port=0) as server:
        yield server


@pytest.mark.parametrize(("key", "added"), [("m", 3), (("m", 1), 1), (("m", 3), 3)])
def test_handle_of_a_version_uses_that_version(server: Server, key: Any, added: int) -> None:
    model = server[key]
    assert model(X=[[1.0]])["Y"].tolist() == [[1.0 + added]]
    assert model.infer_all(X=[[1.0]])[0]["Y"].tolist() == [[1.0 + added]]
    assert asyncio.run(model.infer_async(X=[[1.0]]))["Y"].tolist() == [[1.0 + added]]
    assert model.ready
    assert model.stats()["version"] == str(added)
    assert model.stats()["inference_count"] == 3
    assert model.served.version == added
    assert model.metadata()["versions"] == (["1", "3"] if key == "m" else [str(added)])
    assert repr(model).startswith(f"model 'm' (version {'1, 3' if key == 'm' else added}, READY)")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (("m", 2), "Request for unknown model: 'm' version 2 is not found; ready: 1, 3"),
        (("n", 1), "Request for unknown model: 'n' is not found"),
        (("m", 0), "model 'm': version: expected an integer of at least 1, got 0"),
        (("m", -1), "model 'm': version: expected an integer of at least 1, got -1"),
        (("m", "1"), "model 'm': version: expected an integer of at least 1, got '1'"),
        (("m", True), "model 'm': version: expected an integer of at least 1, got True"),
    ],
)
def test_unknown_version_is_an_error(server: Server, key: Any, words: str) -> None:
    with pytest.raises(tnb.TritonError) as caught:
        server[key]
    assert str(caught.value).startswith(words)


def policy(*versions: int) -> str:
    return f"version_policy {{ specific {{ versions: {list(versions)} }} }}"


def requests_since_load(server: Server) -> dict[str, int]:
    """Send a request to each version; count the requests that each has executed since it was loaded."""
    counts = {row["version"]: row["inference_count"] for row in server.stats("m")["model_stats"]}
    for version in counts:
        server["m", int(version)](X=[[1.0]])
    return counts


def test_reload_keeps_versions_whose_files_have_not_changed(
    write_model: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """As Triton 2.51 does with the same changes, which NVIDIA's test_load_new_model_version makes."""
    for version in (1, 2, 3):
        repository = write_model("m", python_model("x"), policy(1, 2), version)
    with Server(repository, port=0, model_control_mode="explicit") as server:
        server.load("m")
        assert requests_since_load(server) == {"1": 0, "2": 0}
        write_model("m", python_model("x + 1"), policy(1, 2, 3), version=2)
        server.load("m")
        assert requests_since_load(server) == {"1": 1, "2": 0, "3": 0}
        assert server["m", 2](X=[[1.0]])["Y"].tolist() == [[2.0]]
        (repository / "m" / "helper.py").write_text("")
        server.load("m")
        assert requests_since_load(server) == {"1": 0, "2": 0, "3": 0}
        write_model("m", python_model("x"), f"{policy(1)} instance_group {{ count: 2 }}", version=3)
        with caplog.at_level("INFO"):
            server.load("m")
        assert requests_since_load(server) == {"1": 1}
        assert len(server["m"].served.instances) == 2
        assert caplog.messages.count("successfully loaded 'm'") == 1
