"""Servers with the models of which responses of Triton were recorded."""

from __future__ import annotations

from pathlib import Path

from tritonnb.server.options import ServerKeywords
from tritonnb.telemetry.trace_settings import TraceOptions

MODELS = Path(__file__).parents[1] / "models"


def server_options(isolate: bool) -> ServerKeywords:
    """The options of a server that loads them, explicitly."""
    names = [model.name for model in MODELS.iterdir() if model.name not in ("probe", "wont_load")]
    return {
        "model_control_mode": "explicit",
        "load_models": names,
        "trace": TraceOptions("trace.json"),
        "allow_client_shm": True,
        "isolate": isolate,
    }
