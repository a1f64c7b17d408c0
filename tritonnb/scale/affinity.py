"""Proxies that send requests with the same value of a header to the same pod: Envoy and nginx.

They hash the header onto a ring of pods. That is weaker than `tritonnb.scale.ray`: a live sequence moves, and fails,
when pods are added or removed next to it on the ring; nothing drains; a gRPC stream is routed as a whole by the header
that it begins with; and clients have to send the header.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tritonnb.core.json_types import Json

_ENVOY_IMAGE = "envoyproxy/envoy:v1.32.1"
_NGINX_IMAGE = "nginx:1.27"
_ENVOY_TYPES = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True, slots=True)
class Backend:
    """The headless service behind the proxy, and the header that is hashed."""

    service: str
    http_port: int
    grpc_port: int
    header: str


def envoy(backend: Backend) -> list[Json]:
    """An Envoy in front of a headless service: ``RING_HASH`` by the header."""
    listeners = [
        _envoy_listener("http", backend, backend.http_port),
        _envoy_listener("grpc", backend, backend.grpc_port),
    ]
    clusters = [_envoy_cluster("http", backend, backend.http_port), _envoy_cluster("grpc", backend, backend.grpc_port)]
    config = {"static_resources": {"listeners": listeners, "clusters": clusters}}
    return _proxy(backend, _ENVOY_IMAGE, "/etc/envoy", {"envoy.yaml": json.dumps(config, indent=2)})


def nginx(backend: Backend) -> list[Json]:
    """An nginx in front of a headless service: ``hash … consistent`` by the header.

    It resolves the pods when it starts, and must be restarted when pods are added.
    """
    variable = "$http_" + backend.header.lower().replace("-", "_")
    config = f"""\
events {{}}
http {{
  upstream http_pods {{
    hash {variable} consistent;
    server {backend.service}:{backend.http_port};
  }}
  upstream grpc_pods {{
    hash {variable} consistent;
    server {backend.service}:{backend.grpc_port};
  }}
  client_max_body_size 0;
  server {{
    listen {backend.http_port};
    location / {{
      proxy_pass http://http_pods;
      proxy_http_version 1.1;
      proxy_buffering off;
    }}
  }}
  server {{
    listen {backend.grpc_port};
    http2 on;
    location / {{
      grpc_pass grpc://grpc_pods;
      grpc_read_timeout 1h;
    }}
  }}
}}
"""
    return _proxy(backend, _NGINX_IMAGE, "/etc/nginx", {"nginx.conf": config})


#: The proxies by name.
INGRESSES: dict[str, Callable[[Backend], list[Json]]] = {"envoy": envoy, "nginx": nginx}


def _envoy_listener(name: str, backend: Backend, port: int) -> Json:
    route = {
        "match": {"prefix": "/"},
        "route": {
            "cluster": name,
            "timeout": "0s",
            "hash_policy": [{"header": {"header_name": backend.header.lower()}}],
        },
    }
    manager = {
        "@type": f"{_ENVOY_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "codec_type": "AUTO",
        "route_config": {"virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": f"{_ENVOY_TYPES}.filters.http.router.v3.Router",
                },
            }
        ],
    }
    network_filter = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": name,
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
        "filter_chains": [{"filters": [network_filter]}],
    }


def _envoy_cluster(name: str, backend: Backend, port: int) -> Json:
    address = {"socket_address": {"address": backend.service, "port_value": port}}
    cluster: Json = {
        "name": name,
        "type": "STRICT_DNS",
        "lb_policy": "RING_HASH",
        "ring_hash_lb_config": {"minimum_ring_size": 1024},
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "5s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/v2/health/ready"},
            }
        ],
    }
    if name == "grpc":
        del cluster["health_checks"]
        cluster["typed_extension_protocol_options"] = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_ENVOY_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    return cluster


def _proxy(backend: Backend, image: str, directory: str, files: dict[str, str]) -> list[Json]:
    name = f"{backend.service}-affinity"
    labels = {"app.kubernetes.io/name": name}
    ports = {"http": backend.http_port, "grpc": backend.grpc_port}
    mounts = [{"name": "config", "mountPath": f"{directory}/{file}", "subPath": file} for file in files]
    container = {
        "name": "proxy",
        "image": image,
        "ports": [{"name": port_name, "containerPort": port} for port_name, port in ports.items()],
        "volumeMounts": mounts,
    }
    pod = {"containers": [container], "volumes": [{"name": "config", "configMap": {"name": name}}]}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": files},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "selector": labels,
                "ports": [
                    {"name": port_name, "port": port, "targetPort": port_name} for port_name, port in ports.items()
                ],
            },
        },
    ]
