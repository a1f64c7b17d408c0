"""Readers of files that users show: each recognises its format, or says at which line it cannot read it."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.explain.figures import Figures
from tritonnb.model_config.diagnose import diagnose
from tritonnb.model_config.read import read_config
from tritonnb.model_config.validate import check_scheduling
from tritonnb.telemetry.statistics_entry import UNDERFLOW_NS

#: Milliseconds of a unit, as load generators write it.
_MS = {"ns": 1e-6, "nsec": 1e-6, "us": 1e-3, "usec": 1e-3, "µs": 1e-3, "μs": 1e-3, "microseconds": 1e-3, "ms": 1.0,
       "msec": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}  # fmt: skip
#: Requests per second of a unit.
_PER_SECOND = {"per sec": 1.0, "per_sec": 1.0, "requests/sec": 1.0, "requests/s": 1.0, "1/s": 1.0, "": 1.0,
               "requests/min": 1 / 60, "per min": 1 / 60}  # fmt: skip
#: Whether it is a number is examined later, so that "3,5" is not read as 3 or as 35.
_NUMBER = r"(\d[\d.,]*(?:[eE][+-]?\d+)?)"
_TIME = rf"{_NUMBER} ?({'|'.join(sorted(_MS, key=len, reverse=True))})\b"
#: Digits with a decimal point, and with commas between thousands.
_PLAIN_NUMBER = re.compile(r"(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?(?:[eE][+-]?\d+)?")
#: Counters have 64 bits.
_MOST = 1 << 64
#: What terminals and Markdown add to a text.
_MARKS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|^```.*$", re.MULTILINE)
_PARTS = {"queue_ms": "queue", "input_ms": "compute_input", "infer_ms": "compute_infer", "output_ms": "compute_output"}


@dataclass
class Content:
    """What a file contains.

    Attributes
    ----------
    source, kind, proves : str
        The file, what it was recognised as, and what follows from it.
    figures : list of Figures
    counters : dict of str to Mapping
        Statistics by model, in the form of ``model_stats``; two contents of this kind are subtracted.
    configs : list of ModelConfig
    problems, version : list of str, str
        What is wrong in a configuration or a log, and the version of the server.
    """

    source: str
    kind: str
    proves: str
    figures: list[Figures] = field(default_factory=list)
    counters: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    configs: list[pb.ModelConfig] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    version: str = ""


def read(source: str, text: str) -> Content:
    """Recognise the contents of a file, and read it.

    Parameters
    ----------
    source : str
        The name of the file, for messages.
    text : str

    Raises
    ------
    InvalidArgumentError
        If it is empty, of no known kind, or damaged; it names the line.

    Examples
    --------
    >>> read("a.txt", "Concurrency: 4, throughput: 800 infer/sec, latency 5000 usec").figures[0].latency_ms
    5.0
    """
    text = _MARKS.sub("", text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))
    if not text.strip():
        raise InvalidArgumentError(f"'{source}': expected figures or a configuration, got an empty file")
    if re.match(r"\s*(?:\{|\[\s*[{\[\]])", text):  # not a line of a log that begins with [WARNING]
        return _read_json(source, text)
    for pattern, reader in _TEXTS:
        if re.search(pattern, text, re.MULTILINE):
            try:
                return reader(source, text)
            except _NotANumberError as error:
                line = 1 + text.partition(error.text)[0].count("\n")
                raise InvalidArgumentError(
                    f"'{source}', line {line}: expected a finite number with a decimal point, got '{error.text[:40]}'"
                ) from None
    line, first = next((number, row) for number, row in enumerate(text.split("\n"), 1) if row.strip())
    raise InvalidArgumentError(
        f"'{source}': expected a configuration, output of perf_analyzer or GenAI-Perf, statistics, metrics, a trace or "
        f"a log, got line {line} {first.strip()[:60]!r}, which is of no known kind"
    )


# --- load generators ----------------------------------------------------------------------------------


class _NotANumberError(Exception):
    """A text in the place of a number."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _number(text: str) -> float:
    stripped = text.rstrip(".,")  # of the sentence
    number = float(stripped.replace(",", "")) if _PLAIN_NUMBER.fullmatch(stripped) else math.inf
    if number > _MOST:
        raise _NotANumberError(stripped)
    return number


def _time_ms(pattern: str, text: str) -> float | None:
    match = re.search(pattern + _TIME, text)
    return None if match is None else _number(match[1]) * _MS[match[2]]


def _count(name: str, text: str) -> float | None:
    match = re.search(rf"{name}: *{_NUMBER}", text, re.IGNORECASE)
    return None if match is None else _number(match[1])


#: Lines with which perf_analyzer doubts its own figures.
_DOUBTS = re.compile(r".*(?:Failed to obtain stable measurement|not able to keep up with the desired).*")
_LEVEL = re.compile(
    rf"^[ \t]*(Request concurrency|Request Rate|Concurrency|Request rate): *{_NUMBER}(.*)$", re.MULTILINE
)


def _read_perf_analyzer(source: str, text: str) -> Content:
    """Read the report and the summary of perf_analyzer, whole or in parts."""
    rows = _count("Batch size", text)
    named = re.search(r"perf_(?:analyzer|client)\b[^\n]*? (?:-m|--model-name)[ =]*(\S+)", text)
    content = Content(source, "output of perf_analyzer", "")
    # A summary has the stabilized percentile in the place of the mean.
    of_percentile = re.search(r"Stabilizing using p\d+|--percentile", text) is not None
    content.problems = [f"perf_analyzer says: {line.strip()}" for line in re.findall(_DOUBTS, text)]
    text = re.sub(r"^.*\bPass \[\d+\].*$", "", text, flags=re.MULTILINE)  # of a verbose report, before it is stable
    levels = list(_LEVEL.finditer(text))
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
    throughput = re.search(rf"throughput: *{_NUMBER} *(?:infer|requests?)/s", block, re.IGNORECASE)
    latency = _time_ms(r"Avg latency: *", block) or _time_ms(r"infer/sec, latency ", block)
    if latency is None:  # with --percentile, the mean latency is only that of the transport
        latency = _time_ms(r"Avg (?:HTTP|gRPC) time: *", block) or _time_ms(r"p50 latency: *", block)
    if throughput is None or not _number(throughput[1]):
        return None
    value, of_rate = _number(level[2]), "ate" in level[1]
    server, _, composing = block.partition("Composing models:")
    server = server.partition("Server:")[2]
    rate = _number(throughput[1]) / (rows or 1)
    figures = _server_part(server, Figures(source, model=model, rate=rate))
    steps: list[Figures] = []
    for match in re.finditer(
        r"^ *([^\s,:]+), version: *[^\n]*\n((?:.*\n?)*?)(?=^ *[^\s,:]+, version:|\Z)", composing, re.M
    ):
        steps.append(  # noqa: PERF401 -- the pattern is long enough
            _server_part(match[2], Figures(source, model=match[1], rate=None))
        )
    if figures.requests:
        steps = [replace(step, rate=rate * (step.requests or 0) / figures.requests) for step in steps]
    return replace(
        figures, label=f"{'request rate' if of_rate else 'concurrency'} {value:g}",
        clients=None if of_rate else value, offered=value if of_rate else None, request_rows=rows,
        latency_ms=latency, p99_ms=_time_ms(r"p99 latency: *", block), steps=tuple(steps),
    )  # fmt: skip


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


def _read_perf_csv(source: str, text: str) -> Content:
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
    if not 0 <= number < _MOST:
        raise ValueError
    return number


def _csv_level(source: str, kind: str, row: Mapping[str, float]) -> Figures:
    level, is_rate = row[kind], kind != "Concurrency"
    ms: dict[str, Any] = {key: row[name] / 1e3 for key, name in (
        ("queue_ms", "Server Queue"), ("input_ms", "Server Compute Input"),
        ("infer_ms", "Server Compute Infer"), ("output_ms", "Server Compute Output"),
    ) if name in row}  # fmt: skip
    whole = ("Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer",
             "Server Compute Output", "Client Recv")  # fmt: skip
    total = sum(row.get(name, 0.0) for name in whole) if "Server Queue" in row else 0.0
    latency_us = row.get("Avg latency") or total or row.get("p50 latency")
    return Figures(
        source, f"{'request rate' if is_rate else 'concurrency'} {level:g}", rate=row["Inferences/Second"],
        clients=None if is_rate else level, offered=level if is_rate else None,
        latency_ms=latency_us / 1e3 if latency_us else None,
        p99_ms=row["p99 latency"] / 1e3 if "p99 latency" in row else None, **ms,
    )  # fmt: skip


def _read_genai_table(source: str, text: str) -> Content:
    """Read the table, or the CSV, of GenAI-Perf and AIPerf: a metric with its unit, and its mean."""
    values: dict[str, dict[str, Any]] = {}
    pattern = rf"^[\s│|┃]*([A-Z][A-Za-z ]+?) ?\(([^)]+)\)[\s│|┃,\"]*{_NUMBER}"
    for name, unit, value in re.findall(pattern, text, re.MULTILINE):
        values["_".join(name.lower().split())] = {"unit": unit, "avg": _number(value)}
    return _genai(source, values, text)


def _genai(source: str, values: Mapping[str, Any], settings: str) -> Content:
    """Return the figures of means, with the load of a command line, or of settings in JSON."""

    def load(option: str) -> float | None:
        found = re.search(rf'\b{option}["=: ]+{_NUMBER}', settings, re.IGNORECASE)
        return None if found is None else _number(found[1])

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
    if offered:  # a concurrency beside it is only a limit
        clients = None
    label = f"request rate {offered:g}" if offered else f"concurrency {clients:g}" if clients else "load"
    figures = Figures(source, label, rate=rate, clients=clients, offered=offered, latency_ms=latency)
    return Content(source, "output of GenAI-Perf or AIPerf", "rate and latency that clients saw", [figures])


def _read_profile_export(source: str, document: Mapping[str, Any]) -> Content:
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
        latencies = sorted((end - begin) / 1e6 for begin, end in times)
        load = experiment.get("experiment", {})
        value, is_rate = float(load.get("value", 0)) or None, load.get("mode") == "request_rate"
        content.figures.append(Figures(
            source, f"{'request rate' if is_rate else 'concurrency'} {value:g}" if value else "load",
            rate=len(times) / seconds, clients=None if is_rate else value, offered=value if is_rate else None,
            latency_ms=sum(latencies) / len(latencies), p99_ms=latencies[int(0.99 * (len(latencies) - 1))],
        ))  # fmt: skip
    if not content.figures:
        raise InvalidArgumentError(f"'{source}': expected at least two requests with responses, got fewer")
    return content


# --- the server ---------------------------------------------------------------------------------------


def figures_of_counters(source: str, stats: Mapping[str, Any], seconds: float | None, label: str) -> Figures:
    """Convert an entry of ``model_stats``, or the difference of two.

    Parameters
    ----------
    source : str
    stats : mapping
    seconds : float or None
        The time between both.
    label : str
    """
    parts = stats.get("inference_stats") or {}
    success = _integer(parts.get("success"), "count")

    def mean(name: str) -> float | None:
        entry = parts.get(name)
        ns = _integer(entry, "ns")
        # gRPC as JSON leaves out zeros: a part that is missing beside others is zero.
        count = _integer(entry, "count") or success
        return None if not count or not parts or ns >= UNDERFLOW_NS else ns / count / 1e6

    sizes = {}
    parts_ms: dict[str, Any] = {name: mean(part) for name, part in _PARTS.items()}
    for row in stats.get("batch_stats") or ():
        compute = [row.get(name) for name in ("compute_input", "compute_infer", "compute_output")]
        number = _integer(compute[1], "count")
        ns = [_integer(part, "ns") for part in compute]
        if number and max(ns) < UNDERFLOW_NS:
            sizes[_integer(row, "batch_size")] = (float(number), sum(ns) / number / 1e6)
    return Figures(
        source, label, model=str(stats.get("name", "")), requests=success, failed=_integer(parts.get("fail"), "count"),
        rows=_integer(stats, "inference_count"), executions=_integer(stats, "execution_count"),
        hits=_integer(parts.get("cache_hit"), "count"), rate=success / seconds if seconds else None,
        server_ms=mean("success"), sizes=sizes, **parts_ms,
    )  # fmt: skip


def _integer(entry: Any, name: str) -> int:
    value = 0 if entry is None else int(entry.get(name) or 0)
    if value < 0:
        raise ValueError(f"{name} {value}")
    return value


def read_statistics(source: str, document: Mapping[str, Any]) -> Content:
    """Read a response of the statistics extension.

    Parameters
    ----------
    source : str
    document : mapping
    """
    proves = "counts and times since each model was loaded" if document["model_stats"] else (
        "that no model is loaded, or none is ready"
    )  # fmt: skip
    content = Content(source, "statistics of the server", proves)
    for entry in document["model_stats"]:
        stats = dict(_plain(entry))
        _integer(stats, "last_inference")
        figures_of_counters(source, stats, None, "")  # raises if a field has another type
        content.counters[f"{stats.get('name', '')}:{stats.get('version', '')}"] = stats
        if any(ns >= UNDERFLOW_NS for ns in _durations(stats)):
            content.problems.append(
                f"model '{stats.get('name')}': a duration of the statistics is about 1.8e19 ns, a difference below "
                f"zero; those durations are left out (known for PyTorch 2 archives on 26.05 to 26.08: server #8874)"
            )
    return content


def _plain(value: Any) -> Any:
    """Convert gRPC's JSON: integers are strings there, and names may be in camel case.

    Raises
    ------
    ValueError
        If a number has more than 64 bits, or is not finite.
    """
    if isinstance(value, int | float) and not abs(value) < _MOST:
        raise ValueError(f"the number {value:.3g}")
    if isinstance(value, Mapping):
        return {re.sub(r"(?<=[a-z])[A-Z]", lambda m: "_" + m[0].lower(), name): _plain(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, str) and value.isdigit() and len(value) < 25 else value


def _durations(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        yield from (v for name, v in value.items() if name == "ns" and isinstance(v, int))
        for item in value.values():
            yield from _durations(item)
    elif isinstance(value, list):
        for item in value:
            yield from _durations(item)


_METRIC = re.compile(rf"^(nv_[a-z_]+)\{{(.*)\}}\s+{_NUMBER}")
#: Part of the statistics and its field, by metric.
_OF_METRIC = {
    "nv_inference_request_success": ("success", "count"), "nv_inference_request_failure": ("fail", "count"),
    "nv_inference_request_duration_us": ("success", "ns"), "nv_inference_queue_duration_us": ("queue", "ns"),
    "nv_inference_compute_input_duration_us": ("compute_input", "ns"),
    "nv_inference_compute_infer_duration_us": ("compute_infer", "ns"),
    "nv_inference_compute_output_duration_us": ("compute_output", "ns"),
    "nv_cache_num_hits_per_model": ("cache_hit", "count"),
}  # fmt: skip


def _read_metrics(source: str, text: str) -> Content:
    content = Content(source, "Prometheus metrics", "counts and times since the start; not the sizes of single batches")
    models: dict[str, dict[str, Any]] = defaultdict(dict)
    for number, line in enumerate(text.split("\n"), 1):
        match = _METRIC.match(line)
        if match is None:
            if line.startswith("nv_inference") and "{" in line and "NaN" not in line:
                raise InvalidArgumentError(
                    f"'{source}', line {number}: expected NAME{{LABELS}} VALUE, got {line[:60]!r}; is it cut off?"
                )
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
        if "model" not in labels:
            continue
        key, value = f"{labels['model']}:{labels.get('version', '')}", _number(match[3])
        stats = models[key]
        stats.update(name=labels["model"], version=labels.get("version", ""))
        # A model has one line for each GPU, and failures one for each reason.
        if match[1] == "nv_inference_count":
            stats["inference_count"] = stats.get("inference_count", 0) + int(value)
        elif match[1] == "nv_inference_exec_count":
            stats["execution_count"] = stats.get("execution_count", 0) + int(value)
        elif match[1] in _OF_METRIC:
            part, unit = _OF_METRIC[match[1]]
            entry = stats.setdefault("inference_stats", {}).setdefault(part, {})
            entry[unit] = entry.get(unit, 0) + int(value * (1000 if unit == "ns" else 1))
    content.counters = {key: stats for key, stats in models.items() if "inference_stats" in stats}
    if not content.counters:
        raise InvalidArgumentError(f"'{source}': expected metrics of models (nv_inference_…), got none of them")
    return content


_EXECUTING = re.compile(
    r"model (?:'|\")?([^\s,'\"]+)['\"]?, instance ['\"]?([^\s,'\"]+)['\"]?, executing (\d+) requests"
)
_LOG_LINE = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d", re.MULTILINE)


def _read_log(source: str, text: str) -> Content:
    content = Content(source, "log of the server", "")
    requests: dict[str, list[int]] = defaultdict(list)
    for model, _, count in _EXECUTING.findall(text):
        requests[model].append(int(count))
    for model, counts in requests.items():
        content.figures.append(
            Figures(source, "log", model=model, requests=sum(counts), executions=len(counts))
        )  # rows are not in the log
    failures = re.findall(r"failed to load '([^']+)'[^:]*: (.*)", text)
    content.problems = [f"model '{name}' failed to load: {reason.strip()}" for name, reason in dict(failures).items()]
    version = re.search(r"server_version\s*\|\s*(2\.\d+\.\d+)", text)
    content.version = version[1] if version else ""
    content.proves = (
        "requests of each execution" if requests
        else "no execution is logged: backends write them with --log-verbose=1"
    )  # fmt: skip
    return content


def _read_config(source: str, text: str) -> Content:
    checked = diagnose(text, check_scheduling)
    problems = [
        f"'{source}'" + (f", line {problem.line}" if problem.line else "") + f": {problem.message}"
        + (f"; {problem.hint}" if problem.hint else "")
        for problem in checked.problems
    ]  # fmt: skip
    content = Content(source, "configuration of a model", "instances, batcher, delay, limits", problems=problems)
    if checked.parsed is not None:
        content.configs.append(checked.parsed.config)
    return content


def _read_json(source: str, text: str) -> Content:
    if re.match(r'\s*[\[{]\s*"?\{?"?(?:id|resourceSpans)"', text) or re.match(r'\s*\[\s*\{\s*"id"', text):
        return Content(source, "trace", "every request with its times; batches and their reasons")
    try:
        document = json.loads(text)
    except RecursionError:
        raise InvalidArgumentError(f"'{source}': expected JSON of the server, got deeply nested JSON") from None
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"'{source}', line {error.lineno}: expected JSON, got {error.msg.lower()} at column {error.colno}; is the "
            f"file complete?"
        ) from None
    except ValueError as error:  # a number of thousands of digits
        raise InvalidArgumentError(f"'{source}': {error}") from None
    if isinstance(document, Mapping):
        try:
            plain = _plain(document)
            for name, reader in _DOCUMENTS.items():
                if name in plain:
                    return reader(source, plain)
            if "request_latency" in plain or "request_throughput" in plain:
                return _genai(source, plain, json.dumps(plain.get("input_config", {})))
            if {"versions", "inputs"} <= plain.keys():
                return Content(
                    source, "metadata of a model", "its tensors; not its batcher: see /v2/models/NAME/config"
                )
            if isinstance(plain.get("error"), str):
                raise InvalidArgumentError(f"'{source}': expected a response, got the error {plain['error'][:200]!r}")
            if isinstance(plain.get("extensions"), list):
                return Content(source, "metadata of the server", "its version", version=str(plain.get("version", "")))
            if plain.keys() & {"max_batch_size", "platform", "backend", "instance_group", "config"}:
                config = Content(source, "configuration of a model", "instances, batcher, delay, limits")
                config.configs.append(read_config(document))
                return config
        except TritonError as error:
            raise InvalidArgumentError(f"'{source}': {error.message.removeprefix(repr(source) + ': ')}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(f"'{source}': expected fields of another type, got {error!r}") from None
    raise InvalidArgumentError(
        f"'{source}', line 1: expected statistics (model_stats), a configuration, results of GenAI-Perf, a profile "
        f"export or a trace, got JSON of another kind"
    )


_DOCUMENTS: dict[str, Callable[[str, Mapping[str, Any]], Content]] = {
    "model_stats": read_statistics, "experiments": _read_profile_export,
}  # fmt: skip
#: In this order: the first line of a file that matches decides.
_TEXTS: tuple[tuple[str, Callable[[str, str], Content]], ...] = (
    (_LOG_LINE.pattern, _read_log),
    (r"^(?:Concurrency|Request [Rr]ate),", _read_perf_csv),
    (_LEVEL.pattern, _read_perf_analyzer),
    (r"\*\*\* Measurement Settings", _read_perf_analyzer),
    (r"^(?:# (?:HELP|TYPE) nv_|nv_[a-z_]+\{)", _read_metrics),
    (r"Request (?:Latency|Throughput) \(", _read_genai_table),
    (r"^\s*[a-z_]+\s*[:{\[]", _read_config),
)
