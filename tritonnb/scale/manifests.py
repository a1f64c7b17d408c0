"""Manifests for Kubernetes and KServe that serve a model repository: Triton's image by default, or another.

A pod has no access to a directory of this machine, so the repository is the URI of a place that pods can read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
from tritonnb.core.version import TRITON_VERSION, VERSION
from tritonnb.scale.affinity import INGRESSES, Backend

Manifest = Json

#: Triton's image of the release whose behaviour this server has.
TRITON_IMAGE = "nvcr.io/nvidia/tritonserver:24.10-py3"
_MOUNT = "/models"
_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to run.

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
        scheme = urlsplit(self.repository).scheme
        if scheme not in ("pvc", "s3", "gs", "as"):
            raise InvalidArgumentError(
                f"model repository: expected a URI that pods can read (pvc://CLAIM/PATH, s3://, gs://, as://), got "
                f"'{self.repository}'; copy the directory to a volume or a bucket"
            )
        if self.ingress not in INGRESSES:
            raise InvalidArgumentError(f"ingress: expected one of {', '.join(INGRESSES)}, got '{self.ingress}'")
        if self.replicas < 1:
            raise InvalidArgumentError(f"replicas: expected at least 1, got {self.replicas}")

    @property
    def resources(self) -> Manifest:
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
    def command(self) -> list[str]:
        """The command line of a replica."""
        server = ["tritonserver"] if "tritonserver" in self.image else ["tritonnb", "serve", "--http-address=0.0.0.0"]
        foreign = [] if "tritonserver" in self.image else ["--http-allow-foreign=true"]
        repository = _MOUNT if self.claim[0] else self.repository
        return [*server, f"--model-repository={repository}", *foreign, *self.arguments]


def kubernetes(workload: Workload) -> list[Manifest]:
    """A Deployment and a Service, and a proxy in front of them if sequences are routed by a header.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    list of dict
        Manifests, in the order in which to apply them.
    """
    labels = {"app.kubernetes.io/name": workload.name}
    pod = {"containers": [_container(workload)], "terminationGracePeriodSeconds": 60, **_volumes(workload)}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": workload.name, "labels": labels},
        "spec": {
            "replicas": workload.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": _scraped()}, "spec": pod},
        },
    }
    service: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": workload.name, "labels": labels},
        "spec": {"selector": labels, "ports": [_service_port(name, port) for name, port in _PORTS.items()]},
    }
    manifests = [deployment, service]
    if workload.max_replicas > workload.replicas:
        manifests.append(_autoscaler(workload))
    if workload.sequence_header:
        service["spec"]["clusterIP"] = "None"  # the proxy has to see the pods, not one virtual address
        backend = Backend(workload.name, _PORTS["http"], _PORTS["grpc"], workload.sequence_header)
        manifests += INGRESSES[workload.ingress](backend)
    return manifests


def kserve(workload: Workload) -> list[Manifest]:
    """An InferenceService of KServe; with another image than Triton's, with a ServingRuntime of its own.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    list of dict

    Raises
    ------
    InvalidArgumentError
        If sequences are to be routed by a header: KServe's router has no consistent hash.
    """
    if workload.sequence_header:
        raise InvalidArgumentError(
            "KServe's router has no consistent hash: export kubernetes with --sequence-header, or ray"
        )
    model: Manifest = {
        "modelFormat": {"name": "triton"},
        "protocolVersion": "v2",
        "storageUri": workload.repository,
        "resources": workload.resources,
    }
    if workload.arguments:
        model["args"] = list(workload.arguments)
    manifests: list[Manifest] = []
    if workload.image == TRITON_IMAGE:
        model["runtimeVersion"] = TRITON_IMAGE.partition(":")[2]
    else:
        model["runtime"] = f"{workload.name}-runtime"
        manifests.append(_serving_runtime(workload))
    predictor: Manifest = {"minReplicas": workload.replicas, "model": model}
    if workload.max_replicas > workload.replicas:
        predictor["maxReplicas"] = workload.max_replicas
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": workload.name},
        "spec": {"predictor": predictor},
    }
    return [*manifests, service]


def _container(workload: Workload) -> Manifest:
    container: Manifest = {
        "name": "server",
        "image": workload.image,
        "command": workload.command,
        "ports": [{"name": name, "containerPort": port} for name, port in _PORTS.items()],
        "resources": workload.resources,
        "startupProbe": _probe("live", 120),
        "readinessProbe": _probe("ready", 3),
        "livenessProbe": _probe("live", 6),
    }
    claim, path = workload.claim
    if claim:
        mount: Manifest = {"name": "models", "mountPath": _MOUNT, "readOnly": True}
        container["volumeMounts"] = [mount | ({"subPath": path} if path else {})]
    return container


def _volumes(workload: Workload) -> Manifest:
    claim, _ = workload.claim
    if not claim:
        return {}
    return {"volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]}


def _probe(state: str, failures: int) -> Manifest:
    return {
        "httpGet": {"path": f"/v2/health/{state}", "port": "http"},
        "periodSeconds": 5,
        "failureThreshold": failures,
    }


def _service_port(name: str, port: int) -> Manifest:
    return {"name": name, "port": port, "targetPort": name}


def _scraped() -> Manifest:
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(_PORTS["metrics"])}


def _autoscaler(workload: Workload) -> Manifest:
    target = {"type": "Utilization", "averageUtilization": 70}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": workload.name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload.name},
            "minReplicas": workload.replicas,
            "maxReplicas": workload.max_replicas,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def _serving_runtime(workload: Workload) -> Manifest:
    command = [part for part in workload.command if not part.startswith("--model-repository=")]
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": f"{workload.name}-runtime"},
        "spec": {
            "supportedModelFormats": [{"name": "triton", "version": "2", "autoSelect": False}],
            "protocolVersions": ["v2", "grpc-v2"],
            "containers": [
                {
                    "name": "kserve-container",
                    "image": workload.image,
                    "command": command,
                    "args": ["--model-repository=/mnt/models", "--http-port=8080", "--grpc-port=9000"],
                    "resources": workload.resources,
                    "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                }
            ],
        },
    }


#: Of the user in the image. A number, since Kubernetes cannot check that the user of a name is not root.
_USER = 1000


def dockerfile(version: str = VERSION) -> str:
    """Return the Dockerfile of an image with this server, for ``--image``.

    Parameters
    ----------
    version : str, optional
        A released version is installed from the package index, one in development from its wheel (``make wheel``).
    """
    install = f'RUN pip install --no-cache-dir "tritonnb[onnxruntime]=={version}"'
    if ".dev" in version:
        install = f"""\
# This version has not been released: its wheel (make wheel) has to be beside this file.
COPY tritonnb-{version}-*.whl /tmp/
RUN pip install --no-cache-dir "$(echo /tmp/tritonnb-*.whl)[onnxruntime]\""""
    return f"""\
# Serves a model repository with tritonnb, compatible with Triton {TRITON_VERSION}.
FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim
{install} && useradd --create-home --uid {_USER} server
USER {_USER}
EXPOSE 8000 8001 8002
CMD ["tritonnb", "serve", "--model-repository=/models", "--http-address=0.0.0.0", "--http-allow-foreign=true"]
"""
