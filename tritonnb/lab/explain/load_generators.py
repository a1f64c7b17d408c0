"""Readers of what perf_analyzer writes: its report, its summary, its CSV, and the times of each request."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.explain.figures import Content, Figures
from tritonnb.lab.explain.written_numbers import MOST, MS, NUMBER, read_number

_TIME = rf"{NUMBER} ?({'|'.join(sorted(MS, key=len, reverse=True))})\b"


def _time_ms(pattern: str, text: str) -> float | None:
    match = re.search(pattern + _TIME, text)
    return None if match is None else read_number(match[1]) * MS[match[2]]


def _count(name: str, text: str) -> float | None:
    match = re.search(rf"{name}: *{NUMBER}", text, re.IGNORECASE)
    return None if match is None else read_number(match[1])


#: Lines with which perf_analyzer doubts its own figures, or gives up.
_DOUBTS = re.compile(
    r"(?:^|: *)[^:\n]*\b(?:Failed to (?:obtain stable|maintain|retrieve)|not able to keep up with the desired)[^\n]*"
    r"|^Thread \[\d+\] had error: [^\n]*",
    re.MULTILINE,
)
#: Its errors before the first measurement.
FAILURE = re.compile(r"^(?:error: |Failed to )[^\n]*", re.MULTILINE)
#: A server's latency of this multiple of the client's is an underflow, and no other traffic.
_IMPOSSIBLE = 100.0
#: More requests on the way than this multiple of the concurrency: it was another one.
_PERIODIC = 1.2
#: Requests, and the rows that they have, are counted at slightly different times.
_COUNTED = 0.1
#: Compute times are those of a row, if the overhead is that of the other rows up to this share.
_PER_ROW = 0.1
#: The part of a step of an ensemble: its name, and what the server measured of it.
_STEP = re.compile(r"^ *([^\s,:]+), version: *[^\n]*\n((?:.*\n?)*?)(?=^ *[^\s,:]+, version:|\Z)", re.MULTILINE)
#: The beginning of the figures at a concurrency, or at a rate.
LEVEL = re.compile(rf"^[ \t]*(Request concurrency|Request Rate|Concurrency|Request rate): *{NUMBER}(.*)$", re.MULTILINE)
#: The command line of a run, or the first line that the program writes.
_COMMAND = re.compile(r"\bperf_(?:analyzer|client)\b[^\n]*? (?:-m|--model-name)[ =]*['\"]?([^\s'\"]+)[^\n]*")
_BEGIN = re.compile(rf"^(?:[^\n]*{_COMMAND.pattern}|\*\*\* Measurement Settings)", re.MULTILINE)
#: A measurement of a verbose report, before it is stable.
_PASS = re.compile(r"^ *Pass \[\d+\] (throughput: [^\n]*)$", re.MULTILINE)


def read_perf_analyzer(source: str, text: str) -> Content:
    """Read the report and the summary of perf_analyzer, whole or in parts, of one run or of several."""
    content = Content(source, "output of perf_analyzer", "")
    content.problems = [f"perf_analyzer says: {found[0].strip(': ')}" for found in _DOUBTS.finditer(text)]
    for run in _runs(text):
        content.figures += _read_run(source, run, content.problems)
    if not content.figures:
        level = LEVEL.search(text)
        line = 1 + text[: level.start()].count("\n") if level else 1
        reason = content.problems[-1] if content.problems else "the output is cut off, or no request was measured"
        raise InvalidArgumentError(
            f"'{source}', line {line}: expected a throughput ('Throughput: N infer/sec') and a latency of "
            f"perf_analyzer, got none; {reason}"
        )
    known = "rate and latency" if any(figures.latency_ms for figures in content.figures) else "rate"
    content.proves = f"{known} at {', '.join(dict.fromkeys(figures.label for figures in content.figures))}" + (
        "" if any(figures.queue_ms is not None for figures in content.figures)
        else "; the server's part (queue, compute) is missing"
    )  # fmt: skip
    return content


def read_failure(source: str, text: str) -> Content:
    """Refuse the output of a run that failed before it measured anything.

    Raises
    ------
    InvalidArgumentError
        With the error of perf_analyzer.
    """
    found = FAILURE.search(text)
    assert found is not None  # it was recognised by this line
    line = 1 + text[: found.start()].count("\n")
    raise InvalidArgumentError(
        f"'{source}', line {line}: expected figures of perf_analyzer, got its error {found[0].strip()[:200]!r}"
    )


def _runs(text: str) -> list[str]:
    """Split a text into the runs of perf_analyzer; the command line of a run is in the same part as its report."""
    begins = [found.start() for found in _BEGIN.finditer(text)]
    runs: list[str] = []
    for begin, end in zip([0, *begins], [*begins, len(text)], strict=True):
        part = text[begin:end]
        if runs and not LEVEL.search(runs[-1]):
            runs[-1] += part
        else:
            runs.append(part)
    return runs


def _read_run(source: str, text: str, problems: list[str]) -> list[Figures]:
    named = _COMMAND.search(text)
    asked = re.search(r" (?:-b|--batch-size)[ =]*(\d+)", named[0]) if named else None
    rows = _count("Batch size", text) or (float(asked[1]) if asked else None)
    # A summary has the stabilized percentile in the place of the mean.
    of_percentile = re.search(r"Stabilizing using p\d+|Client p\d+ Batch Latency|--percentile", text) is not None
    run: list[Figures] = []
    levels = list(LEVEL.finditer(text))
    # With --request-intervals, only the summary names the rate.
    unnamed = text[: levels[0].start()].partition("Client:")[2] if levels else ""
    for level, following in zip(levels, [*levels[1:], None], strict=False):
        block = text[level.start() : len(text) if following is None else following.start()]
        block += "" if level is not levels[0] else unnamed
        passes = _PASS.findall(block)
        block = _PASS.sub("", block)
        is_unstable = bool(passes) and "Throughput:" not in block
        block += f"\n{passes[-1]}" if is_unstable else ""
        block = re.sub(r"infer/sec, latency ", "infer/sec, percentile ", block) if of_percentile else block
        figures = _level(source, level, block, int(rows) if rows else None, named[1] if named else "")
        if figures is not None:
            figures, doubts = _plausible(figures, _time_ms("overhead ", block))
            problems += doubts
            _add_level(run, figures)
            problems += (
                [f"not stable at {figures.label}: the last of {len(passes)} passes is used"] if is_unstable else []
            )
    return run


def _plausible(figures: Figures, overhead_ms: float | None) -> tuple[Figures, list[str]]:
    """Return figures without what cannot be true, and what was wrong."""
    problems = []
    if figures.server_ms and figures.latency_ms and figures.server_ms > _IMPOSSIBLE * figures.latency_ms:
        problems.append(
            f"{figures.server_ms / 1e3:,.0f} s in the server cannot be true beside {figures.latency_ms:g} ms that the "
            f"client saw: the server's latency is left out"
        )
        figures = replace(figures, server_ms=None)
    rows = figures.request_rows or 1
    if figures.request_rows and figures.rows and figures.requests and not figures.hits:
        sent = figures.rows / rows
        if abs(sent / figures.requests - 1) > _COUNTED:  # releases around 21.08 count the executions
            problems.append(
                f"{figures.requests:g} requests at {figures.label} do not fit {figures.rows:g} rows of {rows} a "
                f"request: they are taken for {sent:g}"
            )
            figures = replace(figures, requests=sent)
    others = (rows - 1) * (figures.compute_ms or 0.0)
    if rows > 1 and overhead_ms and others and abs(overhead_ms / others - 1) < _PER_ROW:
        # As the clients until 2022 do: the overhead is what remains of the request's latency.
        problems.append(f"the compute times at {figures.label} are those of a row: they are multiplied by {rows}")
        parts: dict[str, Any] = {
            name: (getattr(figures, name) or 0.0) * rows for name in ("input_ms", "infer_ms", "output_ms")
        }
        figures = replace(figures, **parts)
    return figures, problems


def _add_level(known: list[Figures], figures: Figures) -> None:
    """The summary at the end repeats the levels of the report."""
    for place, other in enumerate(known):
        if other.label == figures.label:
            known[place] = other.completed(figures)
            return
    known.append(figures)


def _level(source: str, level: re.Match[str], block: str, rows: int | None, model: str) -> Figures | None:
    throughput = re.search(rf"throughput: *{NUMBER} *(?:infer|requests?)/s", block, re.IGNORECASE)
    latency = _time_ms(r"Avg latency: *", block) or _time_ms(r"infer/sec, latency ", block)
    if latency is None:  # with --percentile, the mean latency is only that of the transport
        latency = _time_ms(r"Avg (?:HTTP|gRPC) time: *", block) or _time_ms(r"p50 latency: *", block)
    if throughput is None or not read_number(throughput[1]):
        return None
    value, is_rate = read_number(level[2]), "ate" in level[1]
    server, _, composing = block.partition("Composing models:")
    server = server.partition("Server:")[2]
    rate = read_number(throughput[1]) / (rows or 1)
    figures = _server_part(server, Figures(source, model=model, rate=rate))
    steps = [_server_part(part, Figures(source, model=name)) for name, part in re.findall(_STEP, composing)]
    if figures.requests:
        steps = [replace(step, rate=rate * (step.requests or 0) / figures.requests) for step in steps]
    return replace(
        figures, **load_fields(value, is_rate), request_rows=rows, latency_ms=latency, steps=tuple(steps),
    )  # fmt: skip


def load_fields(value: float | None, is_rate: bool) -> dict[str, Any]:
    """Return the fields of the load: a rate at which requests are sent, or clients who wait for their responses.

    Parameters
    ----------
    value : float or None
    is_rate : bool
    """
    if value is None:
        return {"label": "load"}
    if is_rate:
        return {"label": f"request rate {value:g}", "offered": value}
    return {"label": f"concurrency {value:g}", "clients": value}


def _server_part(text: str, figures: Figures) -> Figures:
    return replace(
        figures,
        rows=_count("Inference count", text), executions=_count("Execution count", text),
        requests=_count("(?:Successful )?request count", text), hits=_count("Cache hit count", text),
        server_ms=_time_ms(r"Avg request latency: *", text),
        queue_ms=_time_ms(r"(?:queue|avg queue time *:) ", text),
        input_ms=_time_ms(r"compute input(?: time *:)? ", text),
        infer_ms=_time_ms(r"compute infer(?: time *:)? ", text) or _time_ms(r"\+ compute ", text),
        output_ms=_time_ms(r"compute output(?: time *:)? ", text),
    )  # fmt: skip


def read_perf_csv(source: str, text: str) -> Content:
    """Read the file of ``perf_analyzer -f``; times are in microseconds."""
    content = Content(source, "CSV of perf_analyzer", "rate, latency and its parts; not the sizes of batches")
    header: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"(?:Concurrency|Request [Rr]ate);", line):
            raise InvalidArgumentError(
                f"'{source}', line {number}: expected commas between the cells, as perf_analyzer writes them, got "
                f"{line[:40]!r}"
            )
        cells = [cell.strip() for cell in line.split(",")]
        if cells[0] in ("Concurrency", "Request Rate", "Request rate"):
            header = cells
        elif header and line.strip():
            row = dict(zip(header, cells, strict=False))
            try:
                if len(cells) < len(header):
                    raise ValueError
                values = {name: _finite(row[name]) for name in row if row[name]}
                content.figures.append(_csv_level(source, header[0], values))
            except (KeyError, ValueError):
                content.problems.append(
                    f"'{source}', line {number}: expected {len(header)} numbers as in the header, got {line[:60]!r}; "
                    f"the line is not used"
                )
    if not content.figures:
        raise InvalidArgumentError(
            content.problems[0] if content.problems else
            f"'{source}': expected a row of numbers below the header, got none"
        )  # fmt: skip
    return content


def _finite(text: str) -> float:
    number = float(text)
    if not 0 <= number < MOST:
        raise ValueError
    return number


def _csv_level(source: str, kind: str, row: Mapping[str, float]) -> Figures:
    ms: dict[str, Any] = {key: row[name] / 1e3 for key, name in (
        ("queue_ms", "Server Queue"), ("input_ms", "Server Compute Input"),
        ("infer_ms", "Server Compute Infer"), ("output_ms", "Server Compute Output"),
    ) if name in row}  # fmt: skip
    whole = ("Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer",
             "Server Compute Output", "Client Recv")  # fmt: skip
    total = sum(row.get(name, 0.0) for name in whole) if "Server Queue" in row else 0.0
    latency_us = row.get("Avg latency") or total or row.get("p50 latency")
    return Figures(
        source, **load_fields(row[kind], kind != "Concurrency"), rate=row["Inferences/Second"],
        latency_ms=latency_us / 1e3 if latency_us else None, **ms,
    )  # fmt: skip


def read_profile_export(source: str, document: Mapping[str, Any]) -> Content:
    """Read the file of ``perf_analyzer --profile-export-file``: every request with its times in ns."""
    content = Content(source, "profile export of perf_analyzer", "rate, latency and its spread, request by request")
    for experiment in document["experiments"]:
        times = [
            (request["timestamp"], request["response_timestamps"][-1])
            for request in experiment.get("requests", ())
            if request.get("response_timestamps")
        ]
        load = experiment.get("experiment", {})
        fields = load_fields(float(load.get("value", 0)) or None, load.get("mode") == "request_rate")
        figures = figures_of_times(source, times, fields)
        on_the_way = sum(one.in_server or 0.0 for one in figures)
        if on_the_way > _PERIODIC * fields.get("clients", math.inf):
            content.problems.append(
                f"'{source}': says {fields['label']}, but on average {on_the_way:.1f} requests were on the way: the "
                f"concurrency varied, as with --periodic-concurrency-range"
            )
            figures = [replace(one, **load_fields(None, is_rate=False), clients=None) for one in figures]
        content.figures += figures
    if not content.figures:
        raise InvalidArgumentError(f"'{source}': expected at least two requests with responses, got fewer")
    return content


def figures_of_times(source: str, times: Sequence[tuple[int, int]], load: Mapping[str, Any]) -> list[Figures]:
    """Return the rate and the mean latency of requests, if there are two or more.

    Parameters
    ----------
    source : str
    times : sequence of (int, int)
        When each request was sent and when its last response came, in ns.
    load : mapping
        Fields of the load.
    """
    if len(times) < 2 or max(end for _, end in times) <= min(begin for begin, _ in times):
        return []
    seconds = (max(end for _, end in times) - min(begin for begin, _ in times)) / 1e9
    latency_ms = statistics.fmean(end - begin for begin, end in times) / 1e6
    return [Figures(source, **load, rate=len(times) / seconds, latency_ms=latency_ms)]
