"""The targets, by name. Their modules are imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager

#: Tries one input.
Try = Callable[[bytes], None]

TARGETS = {
    "http": "tools.fuzz.http:connections",
    "header": "tools.fuzz.plain_requests:plain_headers",
    "message": "tools.fuzz.plain_requests:plain_messages",
    "infer": "tools.fuzz.http:inference_bodies",
    "routes": "tools.fuzz.routes:bodies",
    "http2": "tools.fuzz.http2:connections",
    "hpack": "tools.fuzz.http2:header_blocks",
    "config": "tools.fuzz.configs:configurations",
    "bytes": "tools.fuzz.tensors:strings",
    "trace": "tools.fuzz.recordings:traces",
    "recording": "tools.fuzz.recordings:recordings",
    "shared_memory": "tools.fuzz.shared_memory:regions",
    "repository": "tools.fuzz.repository:load_requests",
}


def open_target(name: str) -> AbstractContextManager[Try]:
    """Prepare a target; the context manager's value tries one input."""
    module, _, function = TARGETS[name].partition(":")
    target: AbstractContextManager[Try] = getattr(importlib.import_module(module), function)()
    return target
