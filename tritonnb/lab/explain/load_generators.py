"""Readers of what load generators write: perf_analyzer, GenAI-Perf and AIPerf."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.explain.figures import Content, Figures
from tritonnb.lab.explain.written_numbers import MOST, NUMBER, read_number

#: Milliseconds of a unit, as load generators write it.
_MS = {"ns": 1e-6, "nsec": 1e-6, "us": 1e-3, "usec": 1e-3, "µs": 1e-3, "μs": 1e-3, "microseconds": 1e-3, "ms": 1.0,
       "msec": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}  # fmt: skip
#: Requests per second of a unit.
_PER_SECOND = {"per sec": 1.0, "per_sec": 1.0, "requests/sec": 1.0, "requests/s": 1.0, "1/s": 1.0, "": 1.0,
               "requests/min": 1 / 60, "per min": 1 / 60}  # fmt: skip
_TIME = rf"{NUMBER} ?({'|'.join(sorted(_MS, key=len, reverse=True))})\b"


def _time_ms(pattern: str, text: str) -> float | None:
    match = re.search(pattern + _TIME, text)
    return None if match is None else read_number(match[1]) * _MS[match[2]]


def _count(name: str, text: str) -> float | None:
    match = re.search(rf"{name}: *{NUMBER}", text, re.IGNORECASE)
    return None if match is None else read_number(match[1])


#: Lines with which perf_analyzer doubts its own figures.
_DOUBTS = re.compile(r".*(?:Failed to obtain stable measurement|not able to keep up with the desired).*")
#: The part of a step of an ensemble: its name, and what the server measured of it.
_STEP = re.compile(r"^ *([^\s,:]+), version: *[^\n]*\n((?:.*\n?)*?)(?=^ *[^\s,:]+, version:|\Z)", re.MULTILINE)
#: The beginning of the figures at a concurrency, or at a rate.
LEVEL = re.compile(rf"^[ \t]*(Request concurrency|Request Rate|Concurrency|Request rate): *{NUMBER}(.*)$", re.MULTILINE)


def read_perf_analyzer(source: str, text: str) -> Content:
    """Read the report and the summary of perf_analyzer, whole or in parts."""
    rows = _count("Batch size", text)
    named = re.search(r"perf_(?:analyzer|client)\b[^\n]*? (?:-m|--model-name)[ =]*(\S+)", text)
    content = Content(source, "output of perf_analyzer", "")
    # A summary has the stabilized percentile in the place of the mean.
    of_percentile = re.search(r"Stabilizing using p\d+|--percentile", text) is not None
    content.problems = [f"perf_analyzer says: {line.strip()}" for line in re.findall(_DOUBTS, text)]
    text = re.sub(r"^.*\bPass \[\d+\].*$", "", text, flags=re.MULTILINE)  # of a verbose report, before it is stable
    levels = list(LEVEL.finditer(text))
    for level, following in zip(levels, [*levels[1:], None], strict=False):
        block = text[level.start() : len(text) if following is None else following.start()]
        block = re.sub(r"infer/sec, latency ", "infer/sec, percentile ", block) if of_percentile else block
        figures = _level(source, level, block, int(rows) if rows else None, named[1] if named else "")
        if figures is not None:
            _add_level(content.figures, figures)
    if not content.figures:
        line = 1 + text[: levels[0].start()].count("\n") if levels else 1
        raise InvalidArgumentError(
            f"'{source}', line {line}: expected a throughput ('Throughput: N infer/sec') and a latency of "
            f"perf_analyzer, got none; the output is cut off, or no request was measured"
        )
    known = "rate and latency" if any(figures.latency_ms for figures in content.figures) else "rate"
    content.proves = f"{known} at {', '.join(figures.label for figures in content.figures)}" + (
        "" if any(figures.queue_ms is not None for figures in content.figures)
        else "; the server's part (queue, compute) is missing"
    )  # fmt: skip
    return content


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
        figures, **_load(value, is_rate), request_rows=rows, latency_ms=latency, steps=tuple(steps),
    )  # fmt: skip


def _load(value: float | None, is_rate: bool) -> dict[str, Any]:
    """Return the fields of the load: a rate at which requests are sent, or clients who wait for their responses."""
    if value is None:
        return {"label": "load"}
    if is_rate:
        return {"label": f"request rate {value:g}", "offered": value}
    return {"label": f"concurrency {value:g}", "clients": value}


def _server_part(text: str, figures: Figures) -> Figures:
    return replace(
        figures,
        rows=_count("Inference count", text), executions=_count("Execution count", text),
        requests=_count("Successful request count", text), hits=_count("Cache hit count", text),
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
        source, **_load(row[kind], kind != "Concurrency"), rate=row["Inferences/Second"],
        latency_ms=latency_us / 1e3 if latency_us else None, **ms,
    )  # fmt: skip


def read_genai_table(source: str, text: str) -> Content:
    """Read the table, or the CSV, of GenAI-Perf and AIPerf: a metric with its unit, and its mean."""
    values: dict[str, dict[str, Any]] = {}
    pattern = rf"^[\s│|┃]*([A-Z][A-Za-z ]+?) ?\(([^)]+)\)[\s│|┃,\"]*{NUMBER}"
    for name, unit, value in re.findall(pattern, text, re.MULTILINE):
        values["_".join(name.lower().split())] = {"unit": unit, "avg": read_number(value)}
    return read_genai(source, values, text)


def read_genai(source: str, values: Mapping[str, Any], settings: str) -> Content:
    """Return the figures of means, with the load of a command line, or of settings in JSON."""

    def load(option: str) -> float | None:
        found = re.search(rf'\b{option}["=: ]+{NUMBER}', settings, re.IGNORECASE)
        return None if found is None else read_number(found[1])

    def mean(name: str, units: Mapping[str, float]) -> float | None:
        value = values.get(name)
        if not isinstance(value, Mapping) or value.get("avg") is None:
            return None
        unit = str(value.get("unit", "ms" if "ms" in units else ""))
        if unit not in units:
            raise InvalidArgumentError(
                f"'{source}': unit of {name} expected one of {', '.join(filter(None, units))}, got '{unit}'"
            )
        return float(value["avg"]) * units[unit]

    rate, latency = mean("request_throughput", _PER_SECOND), mean("request_latency", _MS)
    if rate is None and latency is None:
        raise InvalidArgumentError(
            f"'{source}': expected request_throughput or request_latency of GenAI-Perf or AIPerf, got neither"
        )
    offered, clients = load("request[_-]rate"), load("concurrency")
    # A concurrency beside a rate is only a limit.
    figures = Figures(source, **_load(offered or clients or None, bool(offered)), rate=rate, latency_ms=latency)
    return Content(source, "output of GenAI-Perf or AIPerf", "rate and latency that clients saw", [figures])


def read_profile_export(source: str, document: Mapping[str, Any]) -> Content:
    """Read the file of ``perf_analyzer --profile-export-file``: every request with its times in ns."""
    content = Content(source, "profile export of perf_analyzer", "rate, latency and its spread, request by request")
    for experiment in document["experiments"]:
        times = [
            (request["timestamp"], request["response_timestamps"][-1])
            for request in experiment.get("requests", ())
            if request.get("response_timestamps")
        ]
        if len(times) < 2 or max(end for _, end in times) <= min(begin for begin, _ in times):
            continue
        seconds = (max(end for _, end in times) - min(begin for begin, _ in times)) / 1e9
        load = experiment.get("experiment", {})
        content.figures.append(Figures(
            source, **_load(float(load.get("value", 0)) or None, load.get("mode") == "request_rate"),
            rate=len(times) / seconds, latency_ms=statistics.fmean(end - begin for begin, end in times) / 1e6,
        ))  # fmt: skip
    if not content.figures:
        raise InvalidArgumentError(f"'{source}': expected at least two requests with responses, got fewer")
    return content
