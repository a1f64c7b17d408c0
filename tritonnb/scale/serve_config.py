"""The configuration of Ray Serve for a model repository: for ``serve deploy``, or KubeRay's ``serveConfigV2``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonnb.core.json_types import Json
from tritonnb.scale.yaml import write_documents

#: Of Ray's own image, with Python and Ray at versions that `tritonnb.scale.ray` needs.
RAY_VERSION = "2.60.0"
_RAY_IMAGE = f"rayproject/ray:{RAY_VERSION}-py312"
#: In the file, so that it can be written where Ray is not installed.
_SERVICER_FUNCTIONS = [f"tritonnb.scale.ray.grpc_service:{name}" for name in ("add_service", "add_health")]


def serve_config(model_repository: str, name: str = "tritonnb", **options: Any) -> Json:
    """The configuration of Serve.

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

    Examples
    --------
    >>> serve_config("/models", replicas=3)["applications"][0]["args"]
    {'model_repository': '/models', 'replicas': 3}
    """
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": 8000},
        "grpc_options": {"port": 8001, "grpc_servicer_functions": _SERVICER_FUNCTIONS},
        "applications": [
            {
                "name": name,
                "import_path": "tritonnb.scale.ray:build",
                "route_prefix": "/",
                "args": {"model_repository": model_repository, **options},
            }
        ],
    }


def ray_service(config: Mapping[str, Any], name: str, claim: str = "", workers: int = 2) -> Json:
    """KubeRay's RayService with a configuration of Serve.

    Parameters
    ----------
    config : mapping
        Of `serve_config`.
    name : str
    claim : str, optional
        A persistent volume claim, mounted at the path of the repository on every node.
    workers : int, optional
        Pods of the cluster besides the head.

    Returns
    -------
    dict
    """
    path = config["applications"][0]["args"]["model_repository"]
    head = {"rayStartParams": {}, "template": {"spec": _pod("ray-head", claim, path)}}
    group = {
        "groupName": "workers",
        "replicas": workers,
        "minReplicas": 1,
        "maxReplicas": max(workers, 1),
        "rayStartParams": {},
        "template": {"spec": _pod("ray-worker", claim, path)},
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": name},
        "spec": {
            "serveConfigV2": write_documents([config]),
            "rayClusterConfig": {
                "rayVersion": RAY_VERSION,
                "headGroupSpec": head,
                "workerGroupSpecs": [group],
            },
        },
    }


def _pod(container_name: str, claim: str, path: str) -> Json:
    # Ray's image has no tritonnb: it is installed when the pod starts, before Ray.
    install = 'pip install --quiet "tritonnb[ray,onnxruntime]"'
    container: Json = {
        "name": container_name,
        "image": _RAY_IMAGE,
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "ray stop"]}}},
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
    }
    pod: Json = {
        "initContainers": [
            {
                "name": "install",
                "image": _RAY_IMAGE,
                "command": ["/bin/sh", "-c", f"{install} --target /packages"],
                "volumeMounts": [{"name": "packages", "mountPath": "/packages"}],
            }
        ],
        "containers": [container],
        "volumes": [{"name": "packages", "emptyDir": {}}],
    }
    container["env"] = [{"name": "PYTHONPATH", "value": "/packages"}]
    container["volumeMounts"] = [{"name": "packages", "mountPath": "/packages"}]
    if claim:
        container["volumeMounts"].append({"name": "models", "mountPath": path, "readOnly": True})
        pod["volumes"].append({"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    return pod
