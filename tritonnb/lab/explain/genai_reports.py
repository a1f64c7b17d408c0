"""Readers of what GenAI-Perf and AIPerf write: a table, CSV, JSON, and the times of each request."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.explain.figures import Content, Figures
from tritonnb.lab.explain.load_generators import figures_of_times, load_fields
from tritonnb.lab.explain.written_numbers import MS, NUMBER, read_number

#: Requests per second of a unit.
_PER_SECOND = {"per sec": 1.0, "per_sec": 1.0, "requests/sec": 1.0, "requests/s": 1.0, "1/s": 1.0, "": 1.0,
               "requests/min": 1 / 60, "per min": 1 / 60}  # fmt: skip
#: A metric with its unit; the table of AIPerf indents what belongs to another metric.
_METRIC = re.compile(r"[\s↳]*([A-Z][A-Za-z ]+?) *\(([^)]+)\) *")
_KIND = "output of GenAI-Perf or AIPerf"
_PROVES = "rate and latency that clients saw"
#: The beginning of a line of AIPerf's *profile_export.jsonl*.
RECORD = re.compile(r'\s*\{"metadata": ?\{"session_num"')


def read_table(source: str, text: str) -> Content:
    """Read the table, or the CSV: a metric with its unit, and its mean or its only value."""
    values: dict[str, dict[str, Any]] = {}
    for label, value in _csv_rows(text) if re.search(r"^Metric,", text, re.MULTILINE) else _table_rows(text):
        metric = _METRIC.fullmatch(label)
        if metric and value not in ("", "N/A", "-"):
            values["_".join(metric[1].lower().split())] = {"unit": metric[2], "avg": value}
    return read_values(source, values, text)


def _csv_rows(text: str) -> Iterator[tuple[str, str]]:
    yield from ((row[0], row[1].strip()) for row in csv.reader(text.splitlines()) if len(row) > 1)


def _table_rows(text: str) -> Iterator[tuple[str, str]]:
    """Yield the first two cells; a narrow terminal continues the first one on the next line."""
    label = value = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split("[│┃|]", line)[1:-1]]
        if len(cells) < 2:
            # Releases before 24.07 write single values below the table.
            name, colon, rest = line.rpartition(":")
            cells = [name.strip(), rest.strip(), ""] if colon else []
        if not cells:
            continue
        if not any(cells[1:]):
            label += " " + cells[0]
            continue
        yield label, value
        label, value = cells[:2]
    yield label, value


def read_values(source: str, values: Mapping[str, Any], settings: str) -> Content:
    """Return the figures of means, with the load of a command line, or of settings in JSON.

    Raises
    ------
    InvalidArgumentError
        If there is neither a rate nor a latency, or a unit is unknown.
    """

    def load(option: str) -> float | None:
        found = re.search(rf"\b{option}(?:-range)?[\"=: ]*{NUMBER}", settings, re.IGNORECASE)
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
        number = value["avg"]
        return (read_number(number) if isinstance(number, str) else float(number)) * units[unit]

    rate, latency = mean("request_throughput", _PER_SECOND), mean("request_latency", MS)
    if rate is None and latency is None:
        raise InvalidArgumentError(
            f"'{source}': expected request_throughput or request_latency of GenAI-Perf or AIPerf, got neither"
        )
    offered, clients = load("request[_-]rate"), load("concurrency")
    # A concurrency beside a rate is only a limit.
    figures = Figures(source, **load_fields(offered or clients or None, bool(offered)), rate=rate, latency_ms=latency)
    return Content(source, _KIND, _PROVES, [figures])


def read_json(source: str, document: Mapping[str, Any]) -> Content:
    """Read the results of GenAI-Perf, or of AIPerf, which name the load in other words."""
    settings = document.get("input_config") or {}
    phases = [phase for phase in settings.get("phases") or () if phase.get("kind", "profiling") == "profiling"]
    settings = {**settings, "request_rate": phases[-1]["rate"]} if phases and phases[-1].get("rate") else settings
    return read_values(source, document, json.dumps(settings))


def read_records(source: str, text: str) -> Content:
    """Read *profile_export.jsonl* of AIPerf: every request with its times in ns.

    Raises
    ------
    InvalidArgumentError
        If fewer than two requests succeeded.
    """
    content = Content(source, _KIND, "rate and latency, request by request")
    times, failures = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            request = record["metadata"]
            if record.get("error") or request.get("was_cancelled"):
                failures += 1
            elif request.get("benchmark_phase", "profiling") == "profiling":
                times.append((int(request["request_start_ns"]), int(request["request_end_ns"])))
        except (AttributeError, KeyError, TypeError, ValueError):
            content.problems.append(
                f"'{source}', line {number}: expected a request of AIPerf, got {line[:60]!r}; the line is not used"
            )
    failed = f"; {failures} failed" if failures else ""
    content.figures = figures_of_times(source, times, load_fields(None, is_rate=False))
    if not content.figures:
        raise InvalidArgumentError(f"'{source}': expected at least two requests with responses, got fewer{failed}")
    content.problems += [f"'{source}': {failures} requests failed beside {len(times)} that succeeded"] if failed else []
    return content


def read_failure(source: str, text: str) -> Content:
    """Refuse the output of a run without results.

    Raises
    ------
    InvalidArgumentError
        With the last error that it contains.
    """
    errors = re.findall(r"\b(?:ERROR|CRITICAL)\b\s*(.*)", text)
    raise InvalidArgumentError(
        f"'{source}': expected request_throughput or request_latency of GenAI-Perf or AIPerf, got "
        + (f"its error {errors[-1].strip()[:200]!r}" if errors else "neither")
    )
