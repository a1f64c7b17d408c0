"""Model repositories on disk: what a load does when nothing, something, or a part of an ensemble has changed."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.server.conftest import python_model
from tritonnb.core.errors import InternalError, InvalidArgumentError, NotFoundError, TritonError
from tritonnb.server.server import Server

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
Write = Callable[..., Path]


def write_ensemble(repository: Path, name: str, *models: str) -> None:
    steps, tensor = "", "X"
    for index, model in enumerate(models):
        written = "Y" if index == len(models) - 1 else f"t{index}"
        steps += f"""step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{tensor}" }}
                     output_map {{ key: "Y" value: "{written}" }} }} """
        tensor = written
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    config = f'platform: "ensemble" max_batch_size: 8 {TENSORS} ensemble_scheduling {{ {steps} }}'
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture
def repository(write_model: Write) -> Path:
    write_model("one", python_model("x + 1"))
    repository = write_model("ten", python_model("x + 10"))
    write_ensemble(repository, "both", "one", "ten")
    return repository


@pytest.fixture
def server(repository: Path) -> Iterator[Server]:
    with Server(repository, port=0, model_control_mode="explicit") as server:
        yield server


def infer(server: Server, name: str, x: float = 0) -> float:
    return float(server[name](X=np.array([[x]], np.float32))["Y"][0, 0])


def ready(server: Server) -> list[str]:
    return sorted(server)


def test_ensemble_loads_its_step_models(server: Server) -> None:
    server.load("both")
    assert ready(server) == ["both", "one", "ten"]
    assert infer(server, "both") == 11


def test_loading_an_unchanged_model_does_nothing(server: Server) -> None:
    server.load("one")
    infer(server, "one")
    server.load("one")
    assert server.stats("one")["model_stats"][0]["inference_count"] == 1


def test_loading_a_changed_model_serves_the_change(server: Server, write_model: Write) -> None:
    server.load("both")
    write_model("one", python_model("x + 2"))
    server.load("one")
    assert infer(server, "both") == 12
    assert server.stats("both")["model_stats"][0]["inference_count"] == 1


def test_older_file_counts_as_a_change(server: Server, repository: Path, write_model: Write) -> None:
    server.load("one")
    file = repository / "one" / "1" / "model.py"
    write_model("one", python_model("x + 2"))
    os.utime(file, (1_000_000_000, 1_000_000_000))
    server.load("one")
    assert infer(server, "one") == 2


def test_override_is_kept_until_the_files_change(server: Server, write_model: Write) -> None:
    server.load("one")
    server.load("one", config='{"backend": "python", "max_batch_size": 2, "input": [], "output": []}')
    assert server["one"].config.max_batch_size == 2
    server.load("one")
    assert server["one"].config.max_batch_size == 2
    write_model("one", python_model("x + 7"))
    server.load("one")
    assert server["one"].config.max_batch_size == 8


def test_step_whose_reload_fails_continues_as_before(server: Server, write_model: Write) -> None:
    server.load("both")
    write_model("one", "1 / 0")
    server.load("both")
    with pytest.raises(InvalidArgumentError, match="ZeroDivisionError"):
        server.load("one")
    assert infer(server, "both") == 11


def test_failure_of_a_step_is_reported_for_the_ensemble_and_repaired_with_it(
    server: Server, write_model: Write
) -> None:
    write_model("one", "1 / 0")
    with pytest.raises(InvalidArgumentError) as caught:
        server.load("both")
    assert str(caught.value).startswith(
        "load failed for model 'both': ensemble 'both' depends on 'one' which has no loaded version. Model 'one' "
        "loading failed with error: version 1 is at UNAVAILABLE state: Internal: ZeroDivisionError: division by zero"
    )
    write_model("one", python_model("x + 1"))
    server.load("one")
    assert infer(server, "both") == 11


def test_index_has_the_cause_of_an_ensemble_with_failed_steps(server: Server, repository: Path) -> None:
    write_ensemble(repository, "lost", "one", "missing")
    with pytest.raises(TritonError):
        server.load("lost")
    (entry,) = [row for row in server.index() if row["name"] == "lost"]
    assert entry["reason"] == "ensemble lost contains models that are not available or ambiguous: missing"


def test_cycle_of_ensembles_is_refused_and_other_models_load(server: Server, repository: Path) -> None:
    write_ensemble(repository, "cycle", "back", "one")
    write_ensemble(repository, "back", "both", "cycle")
    with pytest.raises(InvalidArgumentError, match=r"circular dependency between ensembles: cycle -> ... -> back"):
        server.load("cycle")
    assert ready(server) == ["both", "one", "ten"]


def test_ensemble_whose_reload_fails_continues_as_before(server: Server, repository: Path) -> None:
    server.load("both")
    write_ensemble(repository, "both", "one", "missing")
    with pytest.raises(TritonError, match="missing"):
        server.load("both")
    assert infer(server, "both") == 11


def test_unloading_an_ensemble_leaves_its_parts(server: Server) -> None:
    server.load("both")
    server.unload("both")
    assert ready(server) == ["one", "ten"]


def test_unloading_with_dependents_unloads_the_steps_that_no_other_ensemble_uses(
    server: Server, repository: Path
) -> None:
    write_ensemble(repository, "outer", "both", "ten")
    write_ensemble(repository, "other", "ten")
    for name in ("one", "outer", "other"):
        server.load(name)
    server.unload("outer", unload_dependents=True)
    assert ready(server) == ["one", "other", "ten"]


def test_unloading_a_part_makes_its_ensembles_unavailable(server: Server) -> None:
    server.load("both")
    server.unload("one")
    with pytest.raises(NotFoundError, match="'both' has no available versions"):
        server["both"]
    assert {entry["reason"] for entry in server.index() if entry["name"] == "both"} <= {"unloaded", ""}


def test_star_loads_every_model_at_start(repository: Path) -> None:
    with Server(repository, port=0, model_control_mode="explicit", load_models=["*"]) as server:
        assert ready(server) == ["both", "one", "ten"]


def test_several_repositories_are_merged_and_duplicate_names_are_ambiguous(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    for name in ("one", "more"):
        (other / name / "1").mkdir(parents=True)
        (other / name / "1" / "model.py").write_text(python_model("x * 2"))
        (other / name / "config.pbtxt").write_text(f'backend: "python" max_batch_size: 8 {TENSORS}')
    with Server([repository, other], port=0) as server:
        assert ready(server) == ["more", "ten"]
        assert "not unique across all model repositories" in str(server.load_errors["one"])
        assert "not available or ambiguous: one" in str(server.load_errors["both"])


def test_polling_follows_added_changed_and_removed_models(repository: Path, write_model: Write) -> None:
    with Server(repository, port=0, model_control_mode="poll", repository_poll_secs=3600) as server:
        write_model("one", python_model("x + 5"))
        write_model("new", python_model("x - 1"))
        (repository / "ten" / "config.pbtxt").unlink()
        (repository / "ten" / "1" / "model.py").unlink()
        (repository / "ten" / "1").rmdir()
        (repository / "ten").rmdir()
        server.run(server.engine.poll())
        assert infer(server, "one") == 5
        assert infer(server, "new") == -1
        assert ready(server) == ["new", "one"]


def test_polling_keeps_the_served_model_after_an_invalid_change(repository: Path, write_model: Write) -> None:
    with Server(repository, port=0, model_control_mode="poll", repository_poll_secs=3600) as server:
        write_model("one", "1 / 0")
        server.run(server.engine.poll())
        assert infer(server, "both") == 11


def test_repository_agents_are_refused_by_name(server: Server, write_model: Write) -> None:
    write_model("one", python_model("x"), config='model_repository_agents { agents { name: "checksum" } }')
    with pytest.raises(Exception, match=r"unable to find 'libtritonrepoagent_checksum\.so' for repo agent 'checksum'"):
        server.load("one")


def write_count(repository: Path, count: int, extra: str = "") -> None:
    config = repository / "one" / "config.pbtxt"
    config.write_text(f'backend: "python" max_batch_size: 8 {TENSORS} instance_group {{ count: {count} }} {extra}')


def test_only_the_instances_change_when_nothing_else_has_changed(server: Server, repository: Path) -> None:
    write_count(repository, 1)
    server.load("one")
    infer(server, "one")
    for count in (3, 1, 2):
        write_count(repository, count)
        server.load("one")
        assert server["one"].config.instance_group[0].count == count
        assert infer(server, "one") == 1
    write_count(repository, count)  # as it was, but newer
    server.load("one")
    assert server.stats("one")["model_stats"][0]["inference_count"] == 4
    write_count(repository, 2, "dynamic_batching { }")
    server.load("one")
    assert server.stats("one")["model_stats"][0]["inference_count"] == 0


def test_ensemble_is_loaded_again_if_only_the_instances_of_a_step_change(server: Server, repository: Path) -> None:
    """As Triton 2.51 does: it calls `both` loaded, and counts its requests from 0."""
    write_count(repository, 1)
    server.load("both")
    infer(server, "both")
    write_count(repository, 2)
    server.load("one")
    counts = {row["name"]: row["inference_count"] for row in server.stats()["model_stats"]}
    assert counts == {"both": 0, "one": 1, "ten": 1}


def test_instances_that_differ_only_in_name_are_kept_and_others_replaced(server: Server, repository: Path) -> None:
    def load(*groups: str) -> list[object]:
        text = "".join(f"instance_group {{ {group} }}" for group in groups)
        config = repository / "one" / "config.pbtxt"
        config.write_text(f'backend: "python" max_batch_size: 8 {TENSORS} {text}')
        server.load("one")
        return [instance.backend_instance for instance in server["one"].served.instances]

    before = load('count: 3 kind: KIND_CPU name: "a"')
    assert load('count: 1 kind: KIND_CPU name: "b"', 'count: 2 kind: KIND_CPU name: "c"') == before
    after = load('count: 2 kind: KIND_CPU name: "b"', "kind: KIND_CPU rate_limiter { priority: 2 }")
    assert [value in before for value in after] == [True, True, False]


def test_failed_instance_creation_changes_nothing(server: Server, write_model: Write) -> None:
    once = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        assert args["model_instance_name"].endswith("_0"), "only one"

    def execute(self, requests):
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
"""
    repository = write_model("one", once)
    write_count(repository, 1)
    server.load("one")
    write_count(repository, 2)
    with pytest.raises(InvalidArgumentError, match="Internal: AssertionError: only one"):
        server.load("one")
    assert infer(server, "one", 5) == 5
    assert server["one"].config.instance_group[0].count == 1


def test_several_failing_instances_are_logged_and_the_last_is_reported(
    server: Server, write_model: Write, caplog: pytest.LogCaptureFixture
) -> None:
    model = """
class TritonPythonModel:
    def initialize(self, args):
        name = args["model_instance_name"]
        if name != "b_1":
            raise pb_utils.TritonModelException("not " + name)
"""
    groups = ", ".join(f'{{ name: "{name}" count: 2 kind: KIND_CPU }}' for name in "ab")
    write_model("m", f"import triton_python_backend_utils as pb_utils\n{model}", f"instance_group [ {groups} ]")
    with pytest.raises(InvalidArgumentError, match="Internal: TritonModelException: not b_0"):
        server.load("m")
    logged = [re.search("ERROR: Failed to create instance: .*not (\\w+)", message) for message in caplog.messages]
    assert [record[1] for record in logged if record] == ["a_0", "a_1", "b_0"]


def test_missing_version_in_the_version_policy_is_ignored(server: Server, write_model: Write) -> None:
    write_model("m", python_model("x"), "version_policy { specific { versions: [1, 7, 7] } }")
    server.load("m")
    assert [(entry["version"], entry["state"]) for entry in server.index() if entry["name"] == "m"] == [("1", "READY")]


def test_model_without_a_selected_version_stays_in_the_index_with_the_cause(server: Server, write_model: Write) -> None:
    write_model("m", python_model("x"), "version_policy { specific { versions: [7] } }")
    with pytest.raises(TritonError):
        server.load("m")
    (entry,) = [row for row in server.index() if row["name"] == "m"]
    assert "at least one version must be available" in entry["reason"]


INITIAL = 'initial_state { name: "i" data_type: TYPE_FP32 dims: 1 data_file: "f" }'
STATE = f'state {{ input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: 1 {INITIAL} }}'
SAMPLE = 'inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 input_data_file: "f" } }'


@pytest.mark.parametrize(
    ("config", "directory", "complaint"),
    [
        ('metric_tags { key: "a-b" value: "x" }', "", "metric tag expected letters, digits and underscores"),
        ('batch_output { source_input: "X" }', "", "batch output must specify 'target_name'"),
        ('output { name: "Z" data_type: TYPE_FP32 dims: 1 label_filename: "f" }', "f", "Is a directory"),
        (f"sequence_batching {{ {STATE} }}", "initial_state/f", "Is a directory"),
        (f'model_warmup {{ name: "w" batch_size: 1 {SAMPLE} }}', "warmup/f", "Is a directory"),
    ],
    ids=["metric tag", "batch output", "labels", "initial state", "warm-up"],
)
def test_model_that_would_crash_triton_is_refused_and_the_others_serve(
    server: Server, repository: Path, write_model: Write, config: str, directory: str, complaint: str
) -> None:
    server.load("one")
    write_model("m", python_model("x"), config)
    (repository / "m" / directory).mkdir(parents=True, exist_ok=True)
    with pytest.raises(TritonError, match=complaint):
        server.load("m")
    assert infer(server, "one") == 1


def test_directory_that_only_begins_with_a_number_is_not_a_version(
    server: Server, repository: Path, write_model: Write
) -> None:
    write_model("m", python_model("x"))
    (repository / "m" / "2x").mkdir()
    server.load("m")
    assert [entry["version"] for entry in server.index() if entry["name"] == "m"] == ["1"]


def test_broken_symlink_in_model_directory_is_ignored(server: Server, repository: Path) -> None:
    (repository / "one" / "2").symlink_to(repository / "nowhere")
    (repository / "one" / "notes").symlink_to(repository / "nowhere")
    server.load("one")
    assert infer(server, "one") == 1


def test_configuration_is_shown_with_all_its_characters(server: Server, write_model: Write) -> None:
    write_model("m", python_model("x"), r'parameters { key: "a\000b" value { string_value: "c\000d" } }')
    server.load("m")
    with urllib.request.urlopen(f"{server.url}/v2/models/m/config") as answer:
        assert json.load(answer)["parameters"] == {"a\0b": {"string_value": "c\0d"}}


def test_removed_repository_is_named(tmp_path: Path) -> None:
    repository = tmp_path / "gone"
    repository.mkdir()
    with Server(repository, port=0, model_control_mode="explicit") as server:
        repository.rmdir()
        with pytest.raises(InternalError, match=f"^failed to open directory {repository}$"):
            server.index()


def test_server_of_a_removed_repository_shows_what_it_serves(repository: Path) -> None:
    with Server(repository, port=0, model_control_mode="explicit", load_models=["one"]) as server:
        shutil.rmtree(repository)
        assert re.search(r"\n  one +1 +0 +0 +READY\n.* UNAVAILABLE: failed to open directory ", repr(server))
        with pytest.raises(NotFoundError, match=r"^Request for unknown model: 'won' is not found; did you mean 'one'"):
            server["won"]
        one = server["one"]
        server.unload("one")
        assert repr(one) == f"model 'one' (not ready: failed to open directory {repository})"


def test_directory_whose_name_is_not_utf8_is_no_model(
    repository: Path, write_model: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write_model("caf\udce9", python_model("x"))
    with Server(repository, port=0) as server:
        assert ready(server) == ["both", "one", "ten"]
        assert {entry["name"] for entry in server.index()} == {"both", "one", "ten"}
    assert f"directory '{repository}/caf\\udce9': expected a name in UTF-8; it is no model" in caplog.messages


def test_repository_that_cannot_be_read_is_the_error_of_its_load(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.load("one")

    def scandir(path: object = ".") -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InternalError, match=r"^failed to open directory .*/one: Too many open files$"):
        server.load("one")
    assert infer(server, "one") == 1


def test_files_of_a_load_request_are_used_for_a_part_of_an_ensemble(repository: Path, write_model: Write) -> None:
    with Server(repository, port=0, model_control_mode="explicit", allow_file_override=True) as server:
        check_files_of_a_part(server, write_model)


def check_files_of_a_part(server: Server, write_model: Write) -> None:
    server.load("both")
    code = base64.b64encode(python_model("x + 5").encode()).decode()
    tensors = {name: [{"name": name[0], "data_type": "TYPE_FP32", "dims": [1]}] for name in ("X", "Y")}
    config = json.dumps({"backend": "python", "max_batch_size": 8, "input": tensors["X"], "output": tensors["Y"]})
    body = json.dumps({"parameters": {"config": config, "file:1/model.py": code}}).encode()
    urllib.request.urlopen(f"{server.url}/v2/repository/models/one/load", body).close()
    assert (infer(server, "one"), infer(server, "both")) == (5, 15)
    write_model("one", python_model("x + 2"))
    server.load("both")
    assert (infer(server, "one"), infer(server, "both")) == (5, 15)
    server.load("one")
    assert (infer(server, "one"), infer(server, "both")) == (2, 12)


@pytest.mark.parametrize(
    ("backend", "runtime"), [("adder", ""), ("adder", 'runtime: "model.py"'), ("pytorch", 'runtime: "model.py"')]
)
def test_python_based_backend_is_found_in_the_default_backend_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolate: bool, backend: str, runtime: str
) -> None:
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    config = f'backend: "{backend}" {runtime} max_batch_size: 8 {TENSORS}'
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(config)
    (tmp_path / "backends" / backend).mkdir(parents=True)
    (tmp_path / "backends" / backend / "model.py").write_text(python_model("x + 3"))
    monkeypatch.setattr("tritonnb.engine.repository.loader.BACKEND_DIRECTORY", tmp_path / "backends")
    with Server(tmp_path / "models", port=0, isolate=isolate) as server:
        assert infer(server, "m") == 3
