"""The workload of a sweep as a command of Triton's Perf Analyzer."""

from __future__ import annotations

import shlex

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.profile.workload import LoadOptions
from tritonnb.simulation.arrivals import ClosedLoop


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
        what = (
            "inputs 'random' or 'zero'" if not isinstance(inputs, str) else "clients=, or constant or poisson arrivals"
        )
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
