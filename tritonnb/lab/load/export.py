"""Exports of a sweep: a command of Perf Analyzer with its workload, and the model with its best configuration."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from google.protobuf import text_format

from tritonnb.client.address import ModelAddress
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.load.workload import LoadOptions
from tritonnb.lab.simulation.arrivals import ClosedLoop
from tritonnb.model_config.write import BACKUP, write_text
from tritonnb.server.model_handle import ModelHandle


def perf_analyzer_command(model: str, traffic: LoadOptions, rate: float, url: str) -> str:
    """Return the command line.

    Parameters
    ----------
    model : str
        Name of the model.
    traffic : dict
        Arguments of `load`.
    rate : float
        Requests per second of an open loop.
    url : str
        ``HOST:PORT``, or ``grpc://HOST:PORT`` for gRPC.

    Raises
    ------
    InvalidArgumentError
        If Perf Analyzer has no option for the workload: a list of arrivals, or arrays as inputs.

    Examples
    --------
    >>> perf_analyzer_command("m", {"clients": 8, "requests": 400}, 0, "localhost:8000")
    'perf_analyzer -m m -u localhost:8000 -i http -b 1 --concurrency-range=8 --request-count=400 --input-data=random'
    """
    scheme, _, authority = url.rpartition("://")
    arrivals, clients, rows = traffic.get("arrivals"), traffic.get("clients"), traffic.get("rows")
    requests: float | None = traffic["requests"]
    if isinstance(arrivals, ClosedLoop) and not arrivals.think_ms:
        clients, rows = arrivals.clients, arrivals.rows
        requests = arrivals.requests if requests is None else min(requests, arrivals.requests)
    inputs = traffic.get("inputs", "random")
    if not isinstance(inputs, str) or (clients is None and arrivals not in ("constant", "poisson")):
        what = "clients=, or constant or poisson arrivals" if isinstance(inputs, str) else "inputs 'random' or 'zero'"
        raise InvalidArgumentError(f"perf_analyzer expected {what}: it has no option for other workloads")
    words = ["perf_analyzer", "-m", model, "-u", authority, "-i", "grpc" if scheme.startswith("grpc") else "http"]
    words += ["-b", str(rows or 1)]
    if clients is not None:
        words.append(f"--concurrency-range={clients}")
    else:
        words += [f"--request-rate-range={rate:g}", f"--request-distribution={arrivals}"]
    words += [f"--request-count={requests}", f"--input-data={inputs}"]
    for name, shape in (traffic.get("shapes") or {}).items():
        words.append(f"--shape={name}:{','.join(map(str, shape))}")
    if traffic.get("sequence_length"):
        words += [f"--sequence-length={traffic['sequence_length']}", "--sequence-length-variation=0"]
        words.append(f"--num-of-sequences={traffic['sequences']}")
    return shlex.join(words)


def export(model: ModelHandle | ModelAddress | str, config: pb.ModelConfig, repository: str | os.PathLike[str]) -> Path:
    """Write the files of a model and its *config.pbtxt* to a model repository.

    Existing files of the same names are replaced; other files stay. The text of a replaced *config.pbtxt* remains in
    *config.pbtxt.bak*. The files of a model on another server, or of one that is only named, cannot be read: only its
    *config.pbtxt* is written.

    Parameters
    ----------
    model : ModelHandle, ModelAddress or str
    config : ModelConfig
    repository : path
        Created if it does not exist.

    Returns
    -------
    pathlib.Path
        Directory of the model in the repository.

    Raises
    ------
    InvalidArgumentError
        If the model has no files, or is served from this repository.
    """
    target = Path(repository).expanduser() / (model if isinstance(model, str) else model.name)
    if isinstance(model, ModelHandle):
        _copy_files(model, target)
    else:
        target.mkdir(parents=True, exist_ok=True)
    write_text(target / "config.pbtxt", text_format.MessageToString(config))
    return target


def _copy_files(model: ModelHandle, target: Path) -> None:
    source = model.served.context.directory
    if not (source / str(model.served.version)).is_dir():
        raise InvalidArgumentError(
            f"model '{model.name}': export expected a model with files, got a Python function: "
            "write it as a model.py of the python backend"
        )
    if target.resolve() == source.resolve():
        raise InvalidArgumentError(
            f"model '{model.name}': export expected another repository than the served one, got '{target}': "
            "export somewhere else, or edit the configuration there"
        )
    without = shutil.ignore_patterns("__pycache__", "config.pbtxt", f"config.pbtxt{BACKUP}")
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=without)
