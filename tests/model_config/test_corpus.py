"""The responses of a real Triton to hundreds of configurations, compared in process.

``corpus.json`` holds its verdict, its error text, the cause it wrote to its log, and the normalised
configuration of each. Here they are compared with the configuration package alone, so what needs a
backend to complete or run a model is left to the tests of the server: the areas *auto_complete*,
*model_py* and *python_parameters*, the execution of warm-up samples, and load parameters other than a
configuration.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.model_config.harness import Case, lay_out, load
from tritonnb.model_config.load import load_config
from tritonnb.model_config.to_json import config_to_json

HERE = Path(__file__).parent
NEEDS_A_BACKEND = {"auto_complete", "model_py", "python_parameters"}
WARM_UP_REQUESTS = ("expected ", "inference input ", "unexpected shape ", "failed to run warmup sample ")
#: Fields of later releases, which the recorded one takes for mistakes.
NEWER_FIELDS = {"en_max_inflight", "mi_metrics_ok"}
#: The same for the platform ``torch_aoti`` and its file *model.pt2*.
NEWER_PLATFORMS = {f"identity_{number}" for number in (79, 81, 105, 138, 139, 140)}


def in_process(case: Case) -> bool:
    """Return whether the configuration layer decides this case alone."""
    parameters = case.get("load_parameters", {"config": ""})
    if parameters.keys() != {"config"} or not isinstance(parameters["config"], str):
        return False
    if case["area"] == "warmup" and any(message in case.get("error", "") for message in WARM_UP_REQUESTS):
        return False
    return case["area"] not in NEEDS_A_BACKEND and case["id"] not in NEWER_FIELDS | NEWER_PLATFORMS


def cases(file: str) -> list[Case]:
    return [case for case in json.loads((HERE / file).read_text()) if in_process(case)]


@pytest.mark.parametrize("case", cases("corpus.json"), ids=lambda case: case["id"])
def test_corpus_has_the_verdicts_of_triton(case: Case, tmp_path: Path) -> None:
    play(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases("variations.json"), ids=lambda case: f"{case['area']}-{case['id']}")
def test_variations_of_the_corpus_have_the_verdicts_of_triton(case: Case, tmp_path: Path) -> None:
    play(case, tmp_path)


def play(case: Case, repository: Path) -> None:
    lay_out(repository, case)
    name = str(case.get("model_name", case["id"]))
    outcome = load(repository, name, case.get("load_parameters", {}).get("config"))
    assert outcome.verdict == case["verdict"], outcome.error
    if case["verdict"] == "loads":
        assert without_newer_fields(json.loads(config_to_json(outcome.config))) == case["normalized_config"]
    elif not case.get("error_varies"):
        assert outcome.error.replace(str(repository), "{REPO}") == case["error"]
    log = "\n".join(line.replace("\\", "\\\\").replace("\n", "\\n") for line in outcome.log).replace(
        str(repository), "{REPO}"
    )
    assert case.get("server_log", "") in log
    assert case.get("parse_error", "") in log


def without_newer_fields(config: Case) -> Case:
    """A normalised configuration as the recorded release prints it."""
    if "ensemble_scheduling" in config:
        assert config["ensemble_scheduling"].pop("max_inflight_requests") == 0
    return config


@pytest.mark.parametrize("name", sorted(NEWER_FIELDS))
def test_fields_of_later_releases_are_known(name: str, tmp_path: Path) -> None:
    (case,) = (case for case in json.loads((HERE / "corpus.json").read_text()) if case["id"] == name)
    lay_out(tmp_path, case)
    config = load_config(tmp_path / name, name).config
    assert config.ensemble_scheduling.max_inflight_requests == 4 or config.model_metrics.metric_control
