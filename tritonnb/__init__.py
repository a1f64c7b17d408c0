"""An NVIDIA-Triton-compatible inference server inside the Jupyter kernel.

>>> import tritonnb as tnb
>>> server = tnb.serve("model_repository")  # doctest: +SKIP
>>> server["digits"](image=images)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritonnb import compiled  # noqa: F401 -- before everything that may be compiled
from tritonnb.core.lazy_names import lazy_names

# What is public, for type checkers. At run time a module is imported when a name of it is first used, so that the
# simulation works where NumPy, Tornado and gRPC are not installed.
if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from tritonnb import errors
    from tritonnb.backends.pt2_export import export_pt2
    from tritonnb.cli.doctor import doctor
    from tritonnb.core import datatypes
    from tritonnb.core.datatypes import *  # noqa: F403 -- its __all__ lists the datatypes
    from tritonnb.core.errors import TritonError
    from tritonnb.core.version import VERSION as __version__
    from tritonnb.endpoints.grpc.options import GrpcOptions
    from tritonnb.endpoints.http.options import HttpOptions
    from tritonnb.endpoints.metrics.families import MetricsOptions
    from tritonnb.endpoints.openai.options import OpenAiOptions
    from tritonnb.profile.load import load
    from tritonnb.profile.load_curves import plot_throughput_latency
    from tritonnb.profile.prompts import prompts
    from tritonnb.profile.result import LoadResult
    from tritonnb.profile.running_load import Load
    from tritonnb.profile.service_times import service_times
    from tritonnb.profile.sweep import Sweep, sweep
    from tritonnb.profile.sweep_result import SweepResult
    from tritonnb.profile.theory import Theory, theory
    from tritonnb.recording.comparison import Comparison, compare
    from tritonnb.recording.recording import Recording
    from tritonnb.recording.simulate import simulate
    from tritonnb.remote.connect import connect
    from tritonnb.remote.connection import Remote
    from tritonnb.remote.otlp_receiver import OtlpReceiver, otlp_receiver
    from tritonnb.scale.start import ScaledServer, scale
    from tritonnb.scheduling.resources import Resource
    from tritonnb.server.nested_loop import allow_nested
    from tritonnb.server.serve import serve
    from tritonnb.server.server import Server
    from tritonnb.simulation import (
        Arrival,
        ClosedLoop,
        bursts,
        constant,
        fixed,
        jittered,
        linear,
        measured,
        poisson,
        sequences,
        service_time,
        table,
    )
    from tritonnb.teaching.random_worksheet import worksheet
    from tritonnb.teaching.worksheet import Worksheet
    from tritonnb.telemetry.log_settings import LogSettings
    from tritonnb.telemetry.trace_settings import TraceOptions

    __all__ = [
        *datatypes.__all__,
        "Arrival",
        "ClosedLoop",
        "Comparison",
        "GrpcOptions",
        "HttpOptions",
        "Load",
        "LoadResult",
        "LogSettings",
        "MetricsOptions",
        "OpenAiOptions",
        "OtlpReceiver",
        "Recording",
        "Remote",
        "Resource",
        "ScaledServer",
        "Server",
        "Sweep",
        "SweepResult",
        "Theory",
        "TraceOptions",
        "TritonError",
        "Worksheet",
        "__version__",
        "allow_nested",
        "bursts",
        "compare",
        "connect",
        "constant",
        "doctor",
        "errors",
        "export_pt2",
        "fixed",
        "jittered",
        "linear",
        "load",
        "measured",
        "otlp_receiver",
        "plot_throughput_latency",
        "poisson",
        "prompts",
        "scale",
        "sequences",
        "serve",
        "service_time",
        "service_times",
        "simulate",
        "sweep",
        "table",
        "theory",
        "worksheet",
    ]
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics: ``%load_ext tritonnb``."""
    from tritonnb.notebook.magics import TritonMagics

    shell.register_magics(TritonMagics)
