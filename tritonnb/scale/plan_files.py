"""`Plan.export`: the files that carry out a plan, for Triton, Ray Serve and Kubernetes."""

from __future__ import annotations

import os
from pathlib import Path

from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.lab.load.export import export as export_model
from tritonnb.lab.prediction.plan import Plan
from tritonnb.scale.manifests import MOUNT, Workload, kubernetes, name_of, serve_config, write_documents
from tritonnb.server.model_handle import ModelHandle


@with_short_traceback
@with_checked_types
def export(
    plan: Plan,
    directory: str | os.PathLike[str],
    *,
    model: ModelHandle | None = None,
    model_repository: str = "pvc://models",
) -> Path:
    """Write the planned configuration and replicas to a directory; needs PyYAML.

    Parameters
    ----------
    directory : path
        Created if it does not exist. It is a model repository, with *ray.yaml* for ``serve deploy`` and
        *kubernetes.yaml* for ``kubectl apply``.
    model : ModelHandle, optional
        The model with the files to copy; by default only its *config.pbtxt* is written.
    model_repository : str, optional
        Where pods find the repository: ``pvc://CLAIM/PATH``, ``s3://…``, ``gs://…`` or ``as://…``. Nodes of Ray, which
        run this server, need the directory at */models*.

    Returns
    -------
    pathlib.Path
        The model's directory.

    Raises
    ------
    InvalidArgumentError
        If the URI is not one that pods can read, or the model has no files.
    UnsupportedError
        If PyYAML is not installed.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from tritonnb import jittered, linear, poisson, simulate
    >>> config = 'name: "m" max_batch_size: 8 dynamic_batching { }'
    >>> rec = simulate(config, poisson(100, 1, seed=1), jittered(linear(1, 5), sigma=0.1))
    >>> plan = rec.twin().plan("p99 < 50 ms", rate=500, count=[1], max_queue_delay_microseconds=[0], max_batch_size=[8])
    >>> with TemporaryDirectory() as directory:
    ...     path = plan.export(directory, model_repository="s3://bucket/models")
    ...     print(path.name, sorted(path.name for path in path.parent.iterdir()))
    m ['kubernetes.yaml', 'm', 'ray.yaml']
    """
    best, folder = plan.best, Path(directory).expanduser()
    workload = Workload(model_repository, name_of(plan.model), best.replicas)
    texts = {
        "kubernetes.yaml": write_documents(kubernetes(workload)),
        "ray.yaml": write_documents([serve_config(MOUNT, plan.model, replicas=best.replicas)]),
    }
    target = export_model(model or plan.model, best.config, folder)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return target
