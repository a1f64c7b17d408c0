"""Manifests that serve a model repository on Kubernetes, KServe or Ray, with Triton's image by default, or another.

A pod has no access to a directory of this machine, so the repository is a URI that pods can read. The contents of the
manifests are in ``templates/``. Needs PyYAML.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.core.json_types import Json
from tritonnb.core.version import TRITON_CONTAINER, TRITON_VERSION, VERSION

#: Triton's image of the release that this server behaves like.
TRITON_IMAGE = f"nvcr.io/nvidia/tritonserver:{TRITON_CONTAINER}-py3"
#: Of Ray's own image, a version that `tritonnb.scale.ray` needs.
RAY_VERSION = "2.60.0"
#: The tag of an image has the version of Python: a wheel of this environment has to fit.
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
#: The path of a persistent volume with models, in a pod.
MOUNT = "/models"
#: The proxies that send requests with the same value of a header to the same pod, and their images.
INGRESSES = {"envoy": "envoyproxy/envoy:v1.32.1", "nginx": "nginx:1.27"}
#: Characters of a name of Kubernetes.
MOST_NAME = 63
#: The ending of the name of the proxy, which clients use.
_AFFINITY = "-affinity"
#: The ending of the name of KServe's runtime with another image than Triton's.
_RUNTIME = "-runtime"
_TEMPLATES = Path(__file__).parent / "templates"
#: A service has the strictest rule (RFC 1035): other objects may begin with a digit.
_NAME = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")
#: Volume claims have the widest rule (RFC 1123): several labels, each of which may begin with a digit.
_CLAIM = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUANTITY = re.compile(r"(?=.*[1-9])\d+(\.\d+)?([mkMGTPE]|[KMGTPE]i|e\d+)?", re.ASCII)
_HEADER = re.compile("[A-Za-z][-A-Za-z0-9]*")
_IMAGE = re.compile(
    r"([A-Za-z0-9][-A-Za-z0-9.]*(:\d+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
#: Strings that YAML 1.1, which PyYAML writes, reads as strings, and YAML 1.2 or Go's reader as numbers or booleans.
_AMBIGUOUS = re.compile(r"(?:[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|0o[0-7]+|[yYnN])\Z")


@dataclass(frozen=True, slots=True)
class Workload:
    """The servers that are to run.

    Attributes
    ----------
    repository : str
        ``pvc://CLAIM[/PATH]``, or a URI that the server reads itself: ``s3://…``, ``gs://…``, ``as://…``.
    name : str
    replicas : int
    max_replicas : int
        More than ``replicas``: scale with the load, where the platform can.
    image : str
    cpus : str
        Kubernetes' quantity, for each replica.
    memory : str
    gpus : int
    arguments : sequence of str
        Further flags of the server.
    sequence_header : str
        A header with the correlation ID: requests with the same value go to the same replica.
    ingress : str
        The proxy that does this: ``"envoy"`` or ``"nginx"``.
    """

    repository: str
    name: str = "triton"
    replicas: int = 2
    max_replicas: int = 0
    image: str = TRITON_IMAGE
    cpus: str = "2"
    memory: str = "4Gi"
    gpus: int = 0
    arguments: Sequence[str] = ()
    sequence_header: str = ""
    ingress: str = "envoy"

    def __post_init__(self) -> None:
        _check_name("name", self.name, MOST_NAME - (len(_AFFINITY) if self.sequence_header else 0))
        uri = urlsplit(self.repository)
        if uri.scheme not in ("pvc", "s3", "gs", "as") or not uri.netloc:
            raise InvalidArgumentError(
                f"model repository: expected a URI that pods can read (pvc://CLAIM/PATH, s3://, gs://, as://), got "
                f"'{self.repository}'; copy the directory to a volume or a bucket"
            )
        if uri.scheme == "pvc":
            _check_claim("claim of the model repository", uri.netloc)
            if ".." in uri.path.split("/"):  # Kubernetes refuses them: they would lead out of the volume
                raise InvalidArgumentError(f"model repository: expected a path without '..', got '{self.repository}'")
        if self.ingress not in INGRESSES:
            raise InvalidArgumentError(f"ingress: expected one of {', '.join(INGRESSES)}, got '{self.ingress}'")
        _check_count("replicas", self.replicas, 1)
        if self.max_replicas:
            _check_count("max_replicas", self.max_replicas, self.replicas)
        _check_count("gpus", self.gpus, 0)
        _check_text("cpus", self.cpus, _QUANTITY, "a quantity such as 2 or 500m")
        _check_text("memory", self.memory, _QUANTITY, "a quantity such as 4Gi")
        _check_text("image", self.image, _IMAGE, "an image such as registry.example/name:tag")
        if self.sequence_header:
            # It becomes a part of the configuration of the proxy.
            _check_text("sequence_header", self.sequence_header, _HEADER, "letters, digits and '-'")

    @property
    def resources(self) -> Json:
        """Requests and limits of a container."""
        quantities = {"cpu": self.cpus, "memory": self.memory}
        if self.gpus:
            quantities["nvidia.com/gpu"] = str(self.gpus)
        return {"requests": quantities, "limits": quantities}

    @property
    def claim(self) -> tuple[str, str]:
        """The persistent volume claim and the path in it; empty for a bucket."""
        uri = urlsplit(self.repository)
        return (uri.netloc, uri.path.strip("/")) if uri.scheme == "pvc" else ("", "")

    @property
    def runs_triton(self) -> bool:
        """Return whether the image contains Triton, not this server."""
        return "tritonserver" in self.image

    @property
    def command(self) -> list[str]:
        """The command line of a replica."""
        server = ["tritonserver"] if self.runs_triton else ["tritonnb", "serve", "--http-address=0.0.0.0"]
        foreign = [] if self.runs_triton else ["--http-allow-foreign=true"]
        repository = MOUNT if self.claim[0] else self.repository
        return [*server, f"--model-repository={repository}", *foreign, *self.arguments]


def _check_name(what: str, name: str, most: int = MOST_NAME) -> None:
    """Check a name of Kubernetes.

    Raises
    ------
    InvalidArgumentError
        If it is invalid.
    """
    if not _NAME.fullmatch(name) or len(name) > most:
        raise InvalidArgumentError(
            f"{what}: expected a DNS label (RFC 1035 and 1123: lower-case letters, digits and '-', from a letter to a "
            f"letter or digit, at most {most} characters), got '{name}'"
        )


def _check_claim(what: str, claim: str) -> None:
    _check_text(what, claim, _CLAIM, "a DNS subdomain (RFC 1123) such as models.v1")


def _check_count(what: str, count: int, least: int) -> None:
    if count < least:
        raise InvalidArgumentError(f"{what}: expected at least {least}, got {count}")


def _check_text(what: str, text: str, pattern: re.Pattern[str], expected: str) -> None:
    if not pattern.fullmatch(text):
        raise InvalidArgumentError(f"{what}: expected {expected}, got '{text}'")


def name_of(model: str) -> str:
    """Return a name of Kubernetes for a model, which may have others.

    Examples
    --------
    >>> name_of("Digits_1")
    'digits-1'
    """
    words = re.findall("[a-z0-9]+", model.lower())
    name = "-".join(words if words and words[0][0].isalpha() else ["model", *words])
    return name[:MOST_NAME].rstrip("-")


def kubernetes(workload: Workload) -> list[Json]:
    """Return a Deployment and a Service, and a proxy in front of them if sequences are routed by a header.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    list of dict
        Manifests, in the order to apply them.

    Raises
    ------
    InvalidArgumentError
        If the image contains this server, which reads no buckets, and the repository is one.
    """
    claim, path = workload.claim
    if not claim and not workload.runs_triton:
        raise InvalidArgumentError(
            f"model repository: expected pvc://CLAIM/PATH for an image with tritonnb, which reads no buckets, got "
            f"'{workload.repository}'"
        )
    values: Json = {
        "name": workload.name,
        "replicas": workload.replicas,
        "max_replicas": workload.max_replicas,
        "image": workload.image,
        "command": workload.command,
        "resources": workload.resources,
        "mounts": [_mount(MOUNT, path)] if claim else None,
        "volumes": [_volume(claim)] if claim else None,
        # The proxy has to see the pods, not one virtual address.
        "cluster_ip": "None" if workload.sequence_header else None,
    }
    manifests = _read_template("kubernetes.yaml", values)
    if workload.max_replicas > workload.replicas:
        manifests += _read_template("autoscaler.yaml", values)
    return manifests + (_proxy(workload) if workload.sequence_header else [])


def _proxy(workload: Workload) -> list[Json]:
    """Return a proxy that hashes a header onto a ring of the pods of a headless service.

    That is weaker than `tritonnb.scale.ray`: a live sequence moves, and fails, when pods are added or removed next to
    it on the ring; nothing drains; a gRPC stream is routed as a whole by the header that it begins with; and clients
    have to send the header. nginx resolves the pods when it starts, and must be restarted when pods are added.
    """
    header = workload.sequence_header.lower()
    values = {"service": workload.name, "header": header, "variable": "$http_" + header.replace("-", "_")}
    if workload.ingress == "envoy":
        file, text = "envoy.yaml", json.dumps(_read_template("envoy.yaml", values)[0], indent=2)
    else:
        file, text = "nginx.conf", Template((_TEMPLATES / "nginx.conf").read_text("utf-8")).substitute(values)
    values = {
        "name": f"{workload.name}{_AFFINITY}",
        "image": INGRESSES[workload.ingress],
        "file": file,
        "mount_path": f"/etc/{workload.ingress}/{file}",
    }
    return _read_template("proxy.yaml", {**values, "files": {file: text}})


def kserve(workload: Workload) -> list[Json]:
    """Return an InferenceService of KServe; with another image than Triton's, with a dedicated ServingRuntime.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    list of dict

    Raises
    ------
    InvalidArgumentError
        If sequences are to be routed by a header: KServe's router has no consistent hash. If the name of the runtime
        would be too long.
    """
    if workload.sequence_header:
        raise InvalidArgumentError(
            "KServe's router has no consistent hash: export kubernetes with --sequence-header, or ray"
        )
    is_triton = workload.image == TRITON_IMAGE
    _check_name("name", workload.name, MOST_NAME - (0 if is_triton else len(_RUNTIME)))
    values = {
        "name": workload.name,
        "repository": workload.repository,
        "image": workload.image,
        "command": [part for part in workload.command if not part.startswith("--model-repository=")],
        "resources": workload.resources,
        "arguments": list(workload.arguments) or None,
        "runtime_version": TRITON_IMAGE.partition(":")[2] if is_triton else None,
        "runtime": None if is_triton else f"{workload.name}{_RUNTIME}",
        "replicas": workload.replicas,
        "max_replicas": workload.max_replicas if workload.max_replicas > workload.replicas else None,
    }
    runtime, service = _read_template("kserve.yaml", values)
    return [service] if is_triton else [runtime, service]


def serve_config(model_repository: str, name: str = "tritonnb", **options: Any) -> Json:
    """Return the configuration of Ray Serve: for ``serve deploy``, or KubeRay's ``serveConfigV2``.

    Parameters
    ----------
    model_repository : str
        Its path on the nodes.
    name : str, optional
        Of the application.
    **options
        Arguments of `tritonnb.scale.ray.app`.

    Returns
    -------
    dict

    Raises
    ------
    InvalidArgumentError
        If there is no replica.

    Examples
    --------
    >>> serve_config("/models", replicas=3)["applications"][0]["args"]
    {'model_repository': '/models', 'replicas': 3}
    """
    _check_count("replicas", options.get("replicas", 1), 1)
    arguments = {"model_repository": model_repository, **options}
    return _read_template("serve.yaml", {"name": name, "arguments": arguments})[0]


#: KubeRay adds to the name of a service.
_MOST_RAY_NAME = 47


def ray_service(config: Mapping[str, Any], name: str, image: str, claim: str = "", workers: int = 2) -> Json:
    """Return KubeRay's RayService with a configuration of Serve.

    Parameters
    ----------
    config : mapping
        Of `serve_config`.
    name : str
    image : str
        Contains Ray and this server: `dockerfile` with ``ray=True``.
    claim : str, optional
        A persistent volume claim, mounted at the path of the repository on every node.
    workers : int, optional
        Pods of the cluster besides the head.

    Returns
    -------
    dict

    Raises
    ------
    InvalidArgumentError
        If a name, the image or the path of the volume is invalid.
    """
    path = config["applications"][0]["args"]["model_repository"]
    _check_name("name", name, _MOST_RAY_NAME)
    if not image:
        raise InvalidArgumentError(
            "image: expected an image with Ray and tritonnb for the pods of KubeRay, got none; `tritonnb export "
            "dockerfile --ray` writes its Dockerfile"
        )
    _check_text("image", image, _IMAGE, "an image such as registry.example/name:tag")
    if claim:
        _check_claim("claim", claim)
        if not path.startswith("/") or ":" in path or ".." in path.split("/"):
            raise InvalidArgumentError(f"model repository: expected an absolute path in the pods, got '{path}'")
    _check_count("workers", workers, 1)
    values = {
        "name": name,
        "config": write_documents([config]),
        "version": RAY_VERSION,
        "image": image,
        "workers": workers,
        "mounts": [_mount(path)] if claim else None,
        "volumes": [_volume(claim)] if claim else None,
    }
    return _read_template("ray_service.yaml", values)[0]


def _mount(path: str, sub_path: str = "") -> Json:
    return {"name": "models", "mountPath": path, "readOnly": True, **({"subPath": sub_path} if sub_path else {})}


def _volume(claim: str) -> Json:
    return {"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


#: Of the user in the image. A number, since Kubernetes cannot check that the user of a name is not root.
_USER = 1000


def dockerfile(version: str = VERSION, *, ray: bool = False) -> str:
    """Return the Dockerfile of an image with this server, for ``--image``.

    Parameters
    ----------
    version : str, optional
        A released version is installed from the package index, one in development from its wheel (``make wheel``),
        since nobody owns its name there.
    ray : bool, optional
        An image for `ray_service`, from Ray's own.
    """
    extras = "ray,onnxruntime" if ray else "onnxruntime"
    install = f'RUN pip install --no-cache-dir "tritonnb[{extras}]=={version}"'
    if ".dev" in version:
        install = f"""\
# This version has not been released: its wheel (make wheel) has to be beside this file.
COPY tritonnb-{version}-*.whl /tmp/
RUN pip install --no-cache-dir "$(echo /tmp/tritonnb-*.whl)[{extras}]\""""
    if ray:
        return f"""\
# Serves a model repository with tritonnb on Ray Serve.
FROM rayproject/ray:{RAY_VERSION}-py{_PYTHON.replace(".", "")}
{install}
"""
    return f"""\
# Serves a model repository with tritonnb, compatible with Triton {TRITON_VERSION}.
FROM python:{_PYTHON}-slim
{install} && useradd --create-home --uid {_USER} server
USER {_USER}
EXPOSE 8000 8001 8002
CMD ["tritonnb", "serve", "--model-repository=/models", "--http-address=0.0.0.0", "--http-allow-foreign=true"]
"""


# --- YAML ---------------------------------------------------------------------------------------


def _read_template(name: str, values: Mapping[str, Any]) -> list[Json]:
    """Read the documents of a template.

    Parameters
    ----------
    name : str
        Of the file.
    values : mapping of str to object
        What takes the place of ``$name``: of a whole text any value, and of a part of one a string. A field or an
        element with the value None is left out.

    Raises
    ------
    UnsupportedError
        If PyYAML is not installed.
    """
    documents = _import_yaml().safe_load_all((_TEMPLATES / name).read_text("utf-8"))
    return [_filled(document, values) for document in documents]


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        members = ((name, _filled(value, values)) for name, value in node.items())
        return {_filled(name, values): value for name, value in members if value is not None}
    if isinstance(node, list):
        return [value for element in node if (value := _filled(element, values)) is not None]
    if isinstance(node, str):
        return values[node[1:]] if node[:1] == "$" and node[1:] in values else Template(node).substitute(values)
    return node


def write_documents(documents: Sequence[Mapping[str, Any]]) -> str:
    """Write documents in the order of their fields, with texts of several lines as blocks, and without anchors.

    Raises
    ------
    UnsupportedError
        If PyYAML is not installed.

    Examples
    --------
    >>> print(write_documents([{"kind": "Service", "spec": {"ports": [{"port": 8000}], "version": "1"}}]), end="")
    kind: Service
    spec:
      ports:
      - port: 8000
      version: '1'
    """
    yaml = _import_yaml()
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    dumper.add_representer(str, _represent_text)
    dumper.add_implicit_resolver("tag:yaml.org,2002:float", _AMBIGUOUS, list("-+.0123456789yYnN"))
    return str(yaml.dump_all(documents, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def _represent_text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


def _import_yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise UnsupportedError(
            'YAML: expected the package PyYAML, which is not installed: pip install "tritonnb[export]"'
        ) from None
    return yaml
