"""Recording files: one JSON value per line.

The first line holds the format, whether the recording is simulated, the configurations of the models as *config.pbtxt*
text, and what is known about the trace from which it was made. Every other line is one event.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from google.protobuf import text_format

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import Event
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.event_types import event_of
from tritonnb.recording.trace_source import TraceSource

#: What reading the first line of another kind of file can raise.
_UNREADABLE = (
    *(StopIteration, ValueError, TypeError, LookupError, AttributeError, RecursionError),
    text_format.ParseError,
)
_FORMAT = {"format": "tritonnb recording", "version": 1}


def write(
    path: str | os.PathLike[str],
    events: Iterable[Event],
    configs: Mapping[str, pb.ModelConfig],
    simulated: bool,
    source: TraceSource | None = None,
) -> None:
    """Write a recording; an existing file is replaced atomically."""
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        texts = {name: text_format.MessageToString(config) for name, config in configs.items()}
        origin = {} if source is None else {"trace": source.to_dict()}
        print(json.dumps(_FORMAT | {"models": texts, "simulated": simulated} | origin), file=file)
        for event in events:
            print(json.dumps({"event": type(event).__name__} | dataclasses.asdict(event)), file=file)
    partial.replace(target)


def read(
    path: str | os.PathLike[str],
) -> tuple[list[Event], dict[str, pb.ModelConfig], bool, TraceSource | None]:
    """Read the events and configurations of a file, whether it is a simulation, and its trace if it comes from one.

    Raises
    ------
    InvalidArgumentError
        If the file is not a recording, or has an unknown format version.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        lines = enumerate(file, 1)
        try:
            head = json.loads(next(lines)[1])
            form, version, texts = head["format"], head["version"], head["models"]
            if form != _FORMAT["format"]:
                raise ValueError(form)
            source = TraceSource.from_dict(head["trace"]) if "trace" in head else None
            configs = {name: text_format.Parse(text, pb.ModelConfig()) for name, text in texts.items()}
        except _UNREADABLE:
            raise InvalidArgumentError(
                f"'{path}': expected a tritonnb recording, got another kind of file: traces are read by "
                "Recording.from_trace"
            ) from None
        if version != _FORMAT["version"]:
            raise InvalidArgumentError(
                f"recording '{path}': expected format version {_FORMAT['version']}, got {version}"
            )
        events = [_event(path, number, line) for number, line in lines]
        return events, configs, bool(head.get("simulated")), source


def is_recording(content: bytes) -> bool:
    """Whether bytes begin like a recording file."""
    return f'"format": "{_FORMAT["format"]}"'.encode() in content.partition(b"\n")[0]


def _event(path: str | os.PathLike[str], number: int, line: str) -> Event:
    try:
        return event_of(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"recording '{path}', line {number}: expected an event: {error}") from error
