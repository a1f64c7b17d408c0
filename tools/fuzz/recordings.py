"""Files that a stranger may have written: traces of a server, and saved recordings."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.fuzz.targets import Try
from tools.fuzz.unexpected import require
from tritonnb.core.errors import TritonError
from tritonnb.recording.recording import Recording

_CONFIG = 'name: "m" max_batch_size: 8 dynamic_batching { }'


@contextmanager
def traces() -> Iterator[Try]:
    """Read a trace file: of the mode ``triton``, or OTLP in JSON or protobuf."""
    with tempfile.TemporaryDirectory(prefix="tritonnb-fuzz-") as scratch:
        path, saved = Path(scratch, "trace.json"), Path(scratch, "recording")

        def run(data: bytes) -> None:
            path.write_bytes(data)
            for config in (None, {"m": _CONFIG}):
                try:
                    recording = Recording.from_trace(path, config)
                except TritonError:
                    continue
                _use(recording)
                recording.save(saved)
                require(Recording.load(saved).events == recording.events, "saving and loading changes the events")

        yield run


@contextmanager
def recordings() -> Iterator[Try]:
    """Read a file of `Recording.save`."""
    with tempfile.TemporaryDirectory(prefix="tritonnb-fuzz-") as scratch:
        path = Path(scratch, "recording")

        def run(data: bytes) -> None:
            path.write_bytes(data)
            try:
                recording = Recording.load(path)
            except TritonError:
                return
            _use(recording)

        yield run


def _use(recording: Recording) -> None:
    """Do with a recording what a notebook does to show it."""
    try:
        repr(recording)
        recording._repr_html_()
        recording.summary()
        recording.diagnoses()
        recording.requests  # noqa: B018  # computed on access
        for batch in recording.batches[:8]:
            batch.why  # noqa: B018  # computed on access
    except TritonError:
        return
