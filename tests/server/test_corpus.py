"""Responses of a real Triton to configurations that a backend completes, or whose models run when they load.

The rest of the corpus is played against the configuration layer alone, in ``tests/model_config``.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_config.harness import Case, lay_out
from tests.model_config.test_corpus import HERE, NEWER_FIELDS, in_process, without_newer_fields
from tritonnb.core.errors import TritonError
from tritonnb.model_config.load import ConfigError
from tritonnb.model_config.to_json import config_to_json
from tritonnb.server.server import Server

MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
FRAMES = re.compile(r"\n\nAt:\n.*?(?=;|$)", re.S)
CASES = [case for case in json.loads((HERE / "corpus.json").read_text()) if not in_process(case)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    with Server(repository, port=0, model_control_mode="explicit", allow_file_override=True) as server:
        yield server


def reaches_the_engine(case: Case) -> bool:
    """Return whether the load request is one that the endpoint hands on."""
    load_parameters = case.get("load_parameters", {})
    return all(
        type(value) is str and (name == "config" or name.startswith("file:")) for name, value in load_parameters.items()
    )


PLAYED = [case for case in CASES if case["id"] not in NEWER_FIELDS and reaches_the_engine(case)]


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: case["id"])
def test_load_request_has_tritons_response(server: Server, case: Case) -> None:
    repository = Path(server.engine.options.model_repositories[0])
    lay_out(repository, case)
    write_models(repository, case)
    name = case.get("model_name", case["id"])
    answer, config = load(server, name, case)  # type: ignore[arg-type]
    assert ("fails" if answer else "loads") == case["verdict"], answer
    if not case.get("error_varies"):
        assert FRAMES.sub("", answer.replace(str(repository), "{REPO}")) == FRAMES.sub("", case.get("error", ""))
    if not answer:
        assert config == case["normalized_config"]


def load(server: Server, name: str, case: Case) -> tuple[str, Case]:
    """The error text of a load that fails, otherwise the configuration."""
    try:
        server.run(server.engine.load(name, parameters(case)))
    except TritonError as error:
        return error.client_message if isinstance(error, ConfigError) else error.message, {}
    config = without_newer_fields(json.loads(config_to_json(server[name].served.config)))
    server.unload(name)
    return "", config


def write_models(repository: Path, case: Case) -> None:
    models = {case.get("model_name", case["id"]): case, **case.get("extra_models", {})}
    for name, model in models.items():
        for path in (repository / name).glob("*/model.py"):
            if not path.stat().st_size:
                path.write_text(model.get("model_py") or MODEL)


def parameters(case: Case) -> dict[str, str | bytes]:
    load_parameters = case.get("load_parameters", {})
    return {name: value if name == "config" else base64.b64decode(value) for name, value in load_parameters.items()}
