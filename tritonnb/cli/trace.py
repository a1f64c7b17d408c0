"""``tritonnb trace``: trace files as a timeline, as a web page, or explained in the terminal."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.traces.from_trace import trace_files
from tritonnb.lab.traces.trace_file import content_of, read_entries
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import RULES, pluralize
from tritonnb.telemetry.perfetto import to_perfetto
from tritonnb.telemetry.trace_entry import TraceEntry

_OUTPUT = "trace.perfetto.json"
_NO_ENTRIES = (
    "a timeline expected a list of objects with an 'id', which a server writes in the trace mode triton, got other "
    "content; OTLP messages are read with --explain and --html"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add("files", nargs="+", type=Path, help="trace files of this server or of Triton")
    add("-o", "--output", type=Path, help=f"file of the timeline (default {_OUTPUT})")
    add("--explain", action="store_true", help="print what the server did and why, instead of writing a timeline")
    add("--html", type=Path, metavar="PAGE", help="write a web page with the views of the recording")
    config_help = "configuration of the model, or a model repository: with it, the reasons of the batches are inferred"
    add("--config", type=Path, help=config_help)
    add("--trace-rate", type=int, metavar="N", help="the server traced 1 of N requests (default: estimated)")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status.

    Raises
    ------
    InvalidArgumentError
        If a file is not a trace, the configuration cannot be read, or an option has no effect.
    OSError
        If a file cannot be read or written.
    """
    is_recording = options.explain or options.html
    if not is_recording and (options.config or options.trace_rate is not None):
        raise InvalidArgumentError("--config and --trace-rate apply to --explain and --html: add one of them")
    if is_recording:
        recording = Recording.from_trace(options.files, options.config, trace_rate=options.trace_rate)
        if options.explain:
            print(explanation(recording))
        if options.html:
            recording.to_html(options.html)
            print(options.html)
    if options.output or not is_recording:
        print(_write_timeline(options.files, options.output or Path(_OUTPUT)))
    return 0


def explanation(recording: Recording) -> str:
    """Return the verdict, the batch sizes, the rules that sent the batches, and the diagnoses of each model.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> text = explanation(simulate("max_batch_size: 2", [(0, 2)] * 2, fixed(5)))
    >>> print(text.splitlines()[-1])
      2 batches: without a batcher, every request is executed alone
    """
    sections = []
    for name in sorted({batch.model for batch in recording.batches}):
        model = recording.for_model(name)
        rules = Counter(batch.reason.rule for batch in model.batches)
        lines = [*repr(model).splitlines()]
        if model.source is None or not model.source.sampled:
            lines += [f"{pluralize(count, 'batch', 'batches')}: {RULES[rule]}" for rule, count in rules.most_common()]
        sections.append("\n  ".join([name, *lines]))
    return "\n\n".join(sections) or "Nothing was executed."


def _write_timeline(files: Sequence[Path], output: Path) -> Path:
    entries: list[TraceEntry] = []
    for file in trace_files(files):
        try:
            content = content_of(file).decode("utf-8", "replace")
            if not content.lstrip().startswith("["):
                raise InvalidArgumentError(_NO_ENTRIES)
            entries += read_entries(content)[0]
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"trace file '{file}': {error.message}") from None
    output.write_text(json.dumps(to_perfetto(entries)), "utf-8")
    return output
