"""Readers of files that users show: each recognises its format, or says at which line it cannot read it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.lab.explain import genai_reports, load_generators
from tritonnb.lab.explain.figures import Content, Figures
from tritonnb.lab.explain.written_numbers import MOST, NUMBER, NotANumberError, read_number
from tritonnb.model_config.diagnose import diagnose
from tritonnb.model_config.read import read_config
from tritonnb.model_config.validate import check_scheduling
from tritonnb.telemetry.statistics_entry import UNDERFLOW_NS

#: What terminals and Markdown add to a text: colours, titles, fences, quotes.
_MARKS = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|^[ \t]*(?:```|~~~).*$|^(?:> ?)+", re.MULTILINE
)
_PARTS = {"queue_ms": "queue", "input_ms": "compute_input", "infer_ms": "compute_infer", "output_ms": "compute_output"}


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
    if text.startswith("\x1f\ufffd"):
        raise InvalidArgumentError(f"'{source}': expected a text, got a compressed file: unpack it with gunzip first")
    before, binary, _ = text.partition("\0")
    if binary:
        raise InvalidArgumentError(
            f"'{source}', line {1 + before.count(chr(10))}: expected a text in UTF-8, or in UTF-16 with a byte order "
            f"mark, got binary data"
        )
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
    text = _MARKS.sub("", text).replace("\t", " ")
    if not text.strip():
        raise InvalidArgumentError(f"'{source}': expected figures or a configuration, got an empty file")
    if genai_reports.RECORD.match(text):
        return genai_reports.read_records(source, text)
    if re.match(r"\s*(?:\{|\[\s*[{\[\]])", text):  # not a line of a log that begins with [WARNING]
        return _read_json(source, text)
    for pattern, reader in _TEXTS:
        if re.search(pattern, text, re.MULTILINE):
            try:
                return reader(source, text)
            except NotANumberError as error:
                line = 1 + text.partition(str(error))[0].count("\n")
                raise InvalidArgumentError(
                    f"'{source}', line {line}: expected a finite number with a decimal point, got '{str(error)[:40]}'"
                ) from None
    line, first = next((number, row) for number, row in enumerate(text.split("\n"), 1) if row.strip())
    raise InvalidArgumentError(
        f"'{source}': expected a configuration, output of perf_analyzer or GenAI-Perf, statistics, metrics, a trace or "
        f"a log, got line {line} {first.strip()[:60]!r}, which is of no known kind"
    )


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
    if isinstance(value, int | float) and not abs(value) < MOST:
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


_METRIC = re.compile(rf"^(nv_[a-z_]+)\{{(.*)\}}\s+{NUMBER}")
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
        key, value = f"{labels['model']}:{labels.get('version', '')}", read_number(match[3])
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
    for key, stats in models.items():
        if "inference_stats" not in stats:
            continue
        missing = [
            name for name, has in (
                ("nv_inference_request_success", "count" in stats["inference_stats"].get("success", {})),
                ("nv_inference_exec_count", "execution_count" in stats),
            ) if not has
        ]  # fmt: skip
        if missing:  # an excerpt: unlike in JSON of gRPC, what is missing is not zero
            content.problems.append(
                f"model '{stats['name']}': {source} lacks {' and '.join(missing)}: give all metrics"
            )
        else:
            content.counters[key] = stats
    if not content.counters:
        reason = content.problems[0] if content.problems else "got none of them"
        raise InvalidArgumentError(f"'{source}': expected metrics of models (nv_inference_…), {reason}")
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
    if checked.parsed is None:
        content.proves = "nothing, because it cannot be parsed"
    else:
        content.configs.append(checked.parsed.config)
    return content


def _read_json(source: str, text: str) -> Content:
    if re.match(r'\s*[\[{]\s*"?\{?"?(?:id|resourceSpans)"', text) or re.match(r'\s*\[\s*\{\s*"id"', text):
        return Content(source, "trace", "every request with its times; batches and their reasons")
    try:
        document = json.loads(text, strict=False)  # a profile export contains tensors as they are
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
            if "experiments" in document:  # which contains tensors, whose values may be any numbers
                return load_generators.read_profile_export(source, document)
            plain = _plain(document)
            if "model_stats" in plain:
                return read_statistics(source, plain)
            if "request_latency" in plain or "request_throughput" in plain:
                return genai_reports.read_json(source, plain)
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


#: In this order: the first line of a file that matches decides.
_TEXTS: tuple[tuple[str, Callable[[str, str], Content]], ...] = (
    (_LOG_LINE.pattern, _read_log),
    (r"^(?:Concurrency|Request [Rr]ate)[,;]", load_generators.read_perf_csv),
    (load_generators.LEVEL.pattern, load_generators.read_perf_analyzer),
    (r"\*\*\* Measurement Settings", load_generators.read_perf_analyzer),
    (r"^(?:# (?:HELP|TYPE) nv_|nv_[a-z_]+\{)", _read_metrics),
    (r"(?i)\brequest[\s│]+(?:latency|throughput)\b", genai_reports.read_table),
    (r"\bAIPerf\b|\bgenai-perf\b", genai_reports.read_failure),
    (load_generators.FAILURE.pattern, load_generators.read_failure),
    (r"^\s*[a-z_]+\s*[:{\[]", _read_config),
)
