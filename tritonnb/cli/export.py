"""``tritonnb export``: the files that serve a model repository elsewhere."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    targets = parser.add_subparsers(dest="target", required=True)
    ray = targets.add_parser("ray", help="a configuration of Ray Serve, or KubeRay's RayService with it")
    _add_common(ray, "its path on the nodes")
    ray.add_argument("--kuberay", action="store_true", help="write a RayService, with the configuration in it")
    ray.add_argument("--image", default="", help="with --kuberay: of its pods, with Ray and tritonnb")
    ray.add_argument("--claim", default="", help="with --kuberay: the persistent volume claim of the repository")
    for target, help_text in (("kubernetes", "a Deployment and a Service"), ("kserve", "an InferenceService")):
        command = targets.add_parser(target, help=help_text)
        _add_common(command, "pvc://CLAIM/PATH, or a bucket: s3://, gs://, as://")
        _add_pods(command)
    image = targets.add_parser("dockerfile", help="the Dockerfile of an image with this server")
    image.add_argument("--ray", action="store_true", help="for KubeRay, with Ray")
    for command in targets.choices.values():
        command.add_argument("-o", "--output", type=Path, help="a file (default: standard output)")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status.

    Raises
    ------
    InvalidArgumentError
        If an option is invalid.
    OSError
        If the file cannot be written.
    """
    text = dockerfile(ray=options.ray) if options.target == "dockerfile" else write_documents(_documents(options))
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0


def _add_common(parser: argparse.ArgumentParser, repository: str) -> None:
    parser.add_argument("--model-repository", dest="repository", required=True, metavar="PATH", help=repository)
    parser.add_argument("--name", default="tritonnb", help="of what is created (default %(default)s)")
    parser.add_argument("--replicas", type=int, default=2, help="the number of servers (default %(default)s)")


def _add_pods(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-replicas", type=int, default=0, help="scale up to this number with the load")
    add("--image", default=TRITON_IMAGE, help="of the server (default %(default)s)")
    add("--cpus", default="2", help="of each replica (default %(default)s)")
    add("--memory", default="4Gi", help="of each replica (default %(default)s)")
    add("--gpus", type=int, default=0, help="of each replica (default %(default)s)")
    add("--sequence-header", default="", metavar="NAME", help="a proxy sends equal values of this header to one pod")
    add("--ingress", default="envoy", choices=("envoy", "nginx"), help="that proxy (default %(default)s)")
    add("--server-flag", dest="arguments", action="append", default=[], metavar="FLAG",
        help="a further flag of the server")  # fmt: skip


def _documents(options: argparse.Namespace) -> list[Json]:
    if options.target == "ray":
        config = serve_config(options.repository, options.name, replicas=options.replicas)
        if options.kuberay:
            return [ray_service(config, options.name, options.image, options.claim, options.replicas)]
        if options.image or options.claim:
            raise InvalidArgumentError("--image and --claim: expected --kuberay, since Ray Serve's file has no pods")
        return [config]
    workload = Workload(**{field.name: getattr(options, field.name) for field in fields(Workload)})
    return kubernetes(workload) if options.target == "kubernetes" else kserve(workload)
