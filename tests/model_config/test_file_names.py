"""A configuration in a load request names only files in the model's directory."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import find_library
from tritonnb.model_config.load import check_override
from tritonnb.server.server import Server

OUTPUT = {"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}
STATE = {"input_name": "S", "output_name": "T", "data_type": "TYPE_FP32", "dims": [1]}


def fields_that_name(path: str) -> dict[str, dict[str, Any]]:
    """A configuration with the path, for each field that names a file."""
    return {
        "runtime": {"runtime": path},
        "default_model_filename": {"default_model_filename": path},
        "cc_model_filenames": {"cc_model_filenames": {"8.0": path}},
        "label_filename": {"output": [{**OUTPUT, "label_filename": path}]},
        "input_data_file": {"model_warmup": [{"inputs": {"X": {"input_data_file": path}}}]},
        "data_file": {"sequence_batching": {"state": [{**STATE, "initial_state": [{"data_file": path}]}]}},
    }


@pytest.mark.parametrize("field", fields_that_name(""))
@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "a/../../secret", ".."])
def test_files_outside_are_refused(field: str, path: str) -> None:
    override = json.dumps(fields_that_name(path)[field])
    with pytest.raises(InvalidArgumentError) as caught:
        check_override("m", override)
    assert caught.value.message == f"model 'm': {field} expected a file of the model, got '{path}'"


@pytest.mark.parametrize("path", ["labels.txt", "a/b.txt", "..labels", ""])
def test_files_of_the_model_are_accepted(path: str) -> None:
    for config in fields_that_name(path).values():
        check_override("m", json.dumps(config))


@pytest.mark.parametrize("backend", ["../../tmp/backend", "/tmp/backend", ".."])
def test_backend_must_be_a_string(backend: str) -> None:
    with pytest.raises(InvalidArgumentError, match="backend expected a name, got the path"):
        check_override("m", json.dumps({"backend": backend}))


def test_client_cannot_read_a_file_as_labels(tmp_path: Path) -> None:
    (tmp_path / "repository" / "m" / "1").mkdir(parents=True)
    (tmp_path / "repository" / "m" / "config.pbtxt").write_text('backend: "python"')
    (tmp_path / "secret").write_text("secret")
    override = json.dumps({"backend": "python", "output": [{**OUTPUT, "label_filename": "../../secret"}]})
    with Server(tmp_path / "repository", port=0, model_control_mode="explicit") as server:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/v2/repository/models/m/load",
            json.dumps({"parameters": {"config": override}}).encode(),
        )
        with pytest.raises(HTTPError) as caught:
            urllib.request.urlopen(request)
        assert caught.value.code == 400
        assert b"label_filename expected a file of the model, got '../../secret'" in caught.value.read()


def test_library_with_an_absolute_path_is_not_found(tmp_path: Path) -> None:
    library = tmp_path / "other" / "library.so"
    library.parent.mkdir()
    library.touch()
    config = pb.ModelConfig(name="m", backend="b", runtime=str(library))
    with pytest.raises(InvalidArgumentError, match="unable to find backend library"):
        find_library(config, tmp_path / "m", 1, tmp_path / "backends")
