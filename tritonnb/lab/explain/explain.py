"""`explain`: answers from configurations, figures of load generators, statistics, metrics, traces and logs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from tritonnb.client.known_defects import known_defects
from tritonnb.core.arguments import require_positive
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.threads import threads_of
from tritonnb.lab.explain import batches, causes
from tritonnb.lab.explain.changes import effects
from tritonnb.lab.explain.figures import Content, Figures
from tritonnb.lab.explain.readers import figures_of_counters, read
from tritonnb.lab.explain.traces import TRACE, figures_of, models_in, read_traces
from tritonnb.scheduling.from_config import describe_scheduling
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.statistics_entry import difference

#: Files of one run have the same rate, up to this share: a profile export counts requests of all windows.
_SAME_RATE = 0.01
#: The label of counters that are not subtracted; with at most this number of requests, the first are a part to mention.
_SINCE_START, _FEW = "since the start", 10

Source = str | os.PathLike[str] | Mapping[str, Any]


@dataclass
class Explanation:
    """The answer of `explain`; in a notebook, Markdown.

    Attributes
    ----------
    sections : list of (str, list of str)
        Titles, each with sentences.
    causes : dict of str to str
        By model, the name of what limits the rate: ``instances_busy``, ``batches_not_full``, ``saturated``,
        ``few_clients``, ``queue_delay``, ``outside_server``, ``overhead``, ``load``, ``step:…`` of an ensemble; empty
        if the figures do not tell.
    contradictions : list of str
    refused : list of str
        What could not be read, with line and reason.

    Examples
    --------
    >>> answer = explain("Concurrency: 4, throughput: 3000 infer/sec, latency 5000 usec")
    >>> answer.contradictions[0].split(":")[0]
    '3,000 requests/s with 4 clients and 5 ms do not fit'
    >>> answer.markdown().splitlines()[0]
    '### What was given'
    """

    sections: list[tuple[str, list[str]]] = field(default_factory=list)
    causes: dict[str, str] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the answer as Markdown."""
        parts = [
            f"### {title}\n\n" + "\n".join(f"- {text}" for text in texts) for title, texts in self.sections if texts
        ]
        return "\n\n".join(parts) + "\n"

    def __str__(self) -> str:
        return self.markdown().replace("**", "")

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return self.markdown().replace("<", "&lt;")  # names come from files, and not every notebook removes scripts


@with_short_traceback
def explain(*sources: Source, seconds: float | None = None) -> Explanation:
    """Explain what limits a model, from files that need no recording.

    Parameters
    ----------
    *sources : path, str or dict
        Any mixture of *config.pbtxt*, output of perf_analyzer or GenAI-Perf (text, CSV, JSON), responses of the
        statistics extension (HTTP or gRPC JSON; two are subtracted), Prometheus metrics (one or two scrapes), trace
        files, logs with ``--log-verbose=1``, server metadata: paths, texts, or decoded JSON.
    seconds : float, optional
        The time between two statistics or two scrapes; by default it is estimated, if their times of the last
        inference allow that.

    Returns
    -------
    Explanation
        What each file proves, what limits the rate, whether requests are batched, what the queue time consists of,
        what changes would give (simulated, as ranges, because averages leave open what they do), and what to measure
        next. What cannot be read is listed, and does not prevent the rest.

    Raises
    ------
    InvalidArgumentError
        If there is no source, or ``seconds`` is not positive.

    Examples
    --------
    >>> config = "name: 'm' max_batch_size: 8"
    >>> explain(config, "Concurrency: 8, throughput: 100 infer/sec, latency 80000 usec").sections[2][0]
    "Model 'm'"
    """
    if not sources:
        raise InvalidArgumentError("explain expected at least one file, text or dict, got none")
    answer = Explanation()
    texts = []
    for number, source in enumerate(sources, 1):
        name, text, failure = _named_text(source, number)
        if failure:
            answer.refused.append(failure)
        else:
            texts.append((name, text))
    return explain_texts(texts, seconds, answer)


def explain_texts(
    texts: Iterable[tuple[str, str]], seconds: float | None = None, answer: Explanation | None = None
) -> Explanation:
    """Explain texts with names, as `explain`.

    Parameters
    ----------
    texts : iterable of (str, str)
    seconds : float, optional
    answer : Explanation, optional
        To add to.

    Raises
    ------
    InvalidArgumentError
        If ``seconds`` is not positive.
    """
    require_positive(seconds=seconds)
    answer = answer or Explanation()
    contents: list[Content] = []
    traces: list[tuple[str, str]] = []
    for name, text in texts:
        try:
            contents.append(read(name, text))
        except InvalidArgumentError as error:
            answer.refused.append(error.message)
            continue
        if contents[-1].kind == "trace":
            traces.append((name, text))
    answer_contents(answer, contents, traces, seconds)
    return answer


def _named_text(source: Source, number: int) -> tuple[str, str, str]:
    """Return name, text and why it cannot be read."""
    name = f"source {number}"
    if isinstance(source, Mapping):
        try:
            return name, json.dumps(source), ""
        except (TypeError, ValueError, RecursionError) as error:
            return name, "", f"'{name}': expected a dict of JSON, got {error}"
    if isinstance(source, str) and ((set(source) & set("\n{:") and not _is_file(source)) or not source.strip()):
        return name, source, ""
    if not isinstance(source, str | os.PathLike):
        return name, "", f"'{name}': expected a path, a text or a dict, got {type(source).__name__}"
    path = Path(source)
    # The directory of a configuration is the name of its model, and tells several apart.
    name = f"{path.absolute().parent.name}/{path.name}" if path.name == "config.pbtxt" else path.name
    try:
        content = path.read_bytes()
        # PowerShell writes what it redirects in UTF-16.
        encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        return name, content.decode(encoding, "replace"), ""
    except (OSError, ValueError) as error:
        return name, "", f"{str(source)[:60]!r}: cannot be read: {getattr(error, 'strerror', error)}"


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # a text is too long for a name, or contains what no name may
        return False


def answer_contents(
    answer: Explanation,
    contents: Sequence[Content],
    traces: Sequence[tuple[str, str]] = (),
    seconds: float | None = None,
) -> None:
    """Add the sections to an answer.

    Parameters
    ----------
    answer : Explanation
    contents : sequence of Content
    traces : sequence of (str, str)
        Names and texts of trace files.
    seconds : float, optional
        Between two statistics.
    """
    given = [f"`{content.source}`: {content.kind}; it proves: {content.proves}" for content in contents]
    answer.sections.append(("What was given", given + [f"Not read: {text}" for text in answer.refused]))
    problems = [problem for content in contents for problem in content.problems]
    answer.sections.append(("Problems in it", problems))
    version = next((content.version for content in contents if content.version), "")
    configs = _named_configs(contents, traces)
    recordings, unreadable = read_traces(traces, configs)
    answer.refused += unreadable
    measured = [figures for content in contents for figures in content.figures]
    measured += [figures for recording in recordings for figures in figures_of(recording)]
    by_model = _by_model(measured + _from_counters(contents, seconds, problems), configs, problems)
    for model, (figures, config) in by_model.items():
        _explain_model(answer, model, figures, config, version)
    for recording in recordings:
        texts = [recording.verdict(), *recording.remarks()]
        with suppress(InvalidArgumentError):  # a sample has no diagnoses
            texts += [diagnosis.text for diagnosis in recording.diagnoses()]
        answer.sections.append(("Trace", texts))
    if unreadable:
        answer.sections.append(("Trace", [f"Not read: {text}" for text in unreadable]))
    if not by_model and not traces:
        answer.sections.append(("What to measure next", [_next(None, None)]))


def _named_configs(contents: Sequence[Content], traces: Sequence[tuple[str, str]]) -> list[pb.ModelConfig]:
    """Return the configurations; one without a name has that of its directory, as in Triton, or of the only model."""
    models = {name for _, text in traces for name in models_in(text)}
    models |= {figures.model for content in contents for figures in content.figures}
    models |= {key.partition(":")[0] for content in contents for key in content.counters}
    models.discard("")
    for content in contents:
        directory = content.source.rpartition("/")[0]
        for config in content.configs:
            if not config.name and (directory in models or len(models) == 1):
                config.name = directory if directory in models else next(iter(models))
    return [config for content in contents for config in content.configs]


def _from_counters(contents: Sequence[Content], seconds: float | None, problems: list[str]) -> list[Figures]:
    """Return the figures of statistics and metrics: of the time between the last two, otherwise since the start."""
    found = []
    for kind in dict.fromkeys(content.kind for content in contents if content.counters):
        dumps = [content for content in contents if content.kind == kind]
        is_used = any(content.counters != dumps[0].counters for content in dumps)
        for key in dict.fromkeys(key for content in dumps for key in content.counters):
            known = [(content.counters[key], content.source) for content in dumps if key in content.counters]
            known, doubt = _in_order(key, known)
            problems += doubt
            distinct = [pair for number, pair in enumerate(known) if not number or pair[0] != known[number - 1][0]]
            if len(distinct) > 1:
                try:
                    found.append(_between(distinct, seconds))
                except InvalidArgumentError as error:
                    problems.append(error.message)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    problems.append(f"model '{key}': both statistics cannot be subtracted: {error!r}")
            elif len(known) > 1 and is_used:
                continue  # nobody used it in the time that is looked at
            elif distinct[0][0].get("inference_count") or "inference_stats" in distinct[0][0]:
                found.append(figures_of_counters(distinct[0][1], distinct[0][0], None, _SINCE_START))
    return found


def _in_order(
    key: str, known: list[tuple[Mapping[str, Any], str]]
) -> tuple[list[tuple[Mapping[str, Any], str]], list[str]]:
    """Sort dumps by time, since files may be in any order; metrics contain no time, but their counts grow."""
    if all(stats.get("last_inference") for stats, _ in known):
        key_of = itemgetter("last_inference", "inference_count")
        return sorted(known, key=lambda pair: [int(value) for value in key_of({"inference_count": 0, **pair[0]})]), []
    if any(stats.get("last_inference") for stats, _ in known):
        return known, []
    ordered = sorted(known, key=lambda pair: int(pair[0].get("inference_count") or 0))
    if ordered == known:
        return known, []
    return ordered, [
        f"model '{key.partition(':')[0]}': the counts in {ordered[-1][1]} are larger than those in {ordered[0][1]}: it "
        f"is taken as the later one, if the server was not started again between both"
    ]


def _between(dumps: Sequence[tuple[Mapping[str, Any], str]], seconds: float | None) -> Figures:
    """Return the figures of the time between the last two dumps, and of the time before."""

    def figures(first: Mapping[str, Any], last: Mapping[str, Any], source: str) -> Figures:
        changed = difference(last, {name: value for name, value in first.items() if value is not None})
        if _is_negative(changed):
            order = "" if last.get("last_inference") else ", or the files are given in another order"
            raise InvalidArgumentError(
                f"model '{last.get('name')}': a counter fell between both: it was loaded again meanwhile{order}"
            )
        between = seconds or _seconds_between(first, last)
        words = "between both" + (f", about {between:.1f} s" if between else "")
        return figures_of_counters(source, changed, between, words)

    *_, (first, _), (last, source) = dumps
    (start, _), (second, _) = dumps[:2]
    before = figures(start, second, source) if len(dumps) > 2 else figures_of_counters(source, start, None, "")
    until_ms = int(first.get("last_inference") or 0)
    is_time = 0 < until_ms < 1 << 45  # other servers may count otherwise
    until = time.strftime("%H:%M:%S UTC", time.gmtime(until_ms / 1e3)) if is_time else "the first of both"
    return replace(
        figures(first, last, source), before=replace(before, label=until), is_time_estimated=not seconds
    )  # fmt: skip


def _seconds_between(first: Mapping[str, Any], last: Mapping[str, Any]) -> float | None:
    """Under traffic, the last inference of each is shortly before the request for its statistics (ms)."""
    times = [int(stats.get("last_inference", 0) or 0) for stats in (first, last)]
    return (times[1] - times[0]) / 1e3 if all(times) and times[1] > times[0] else None


def _is_negative(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_negative(item) for name, item in value.items() if name not in ("batch_size", "last_inference"))
    return isinstance(value, int) and value < 0


def _by_model(
    measured: Sequence[Figures], configs: Sequence[pb.ModelConfig], problems: list[str]
) -> dict[str, tuple[list[Figures], pb.ModelConfig | None]]:
    """Assign figures and configurations to models; what has no name belongs to the only model."""
    steps_of_reports = {step.model for figures in measured for step in figures.steps}
    named = dict.fromkeys([figures.model for figures in measured if figures.model])
    # A report beside a configuration is about its model, even if the statistics contain others.
    names = {config.name for config in configs if config.name and config.name not in steps_of_reports} or named
    only = next(iter(names)) if len(names) == 1 else ""
    result: dict[str, tuple[list[Figures], pb.ModelConfig | None]] = {}
    for figures in measured:
        result.setdefault(figures.model or only, ([], None))[0].append(figures)
    if len(names) > 1 and "" in result:
        problems.append(
            f"figures without the name of a model can be those of any of {', '.join(map(repr, sorted(names)))}: add "
            f"the command line to them (perf_analyzer -m NAME …), or give one configuration"
        )
    for config in configs:
        # A configuration without a name is that of the only model; of several, it may be any.
        name = config.name or (next(iter(result)) if len(result) == 1 else "")
        known = result.get(name) or ([], None)
        if known[1] is not None and known[1] != config:
            whose = f"model '{name}'" if name else "a model without a name"
            problems.append(f"two configurations of {whose} differ: the first is used")
        elif not config.name and len(result) > 1 and name not in result:
            problems.append(f"a configuration without a name can be that of any of {', '.join(map(repr, result))}: add "
                            f"the name to it")  # fmt: skip
        result[name] = (known[0], known[1] or config)
    for name, (figures_of_model, config) in result.items():
        models = [] if config is None else [step.model_name for step in config.ensemble_scheduling.step]
        steps = tuple(result[model][0][0] for model in models if model in result and result[model][0])
        result[name] = ([_with_steps(one, one.steps or steps, result) for one in figures_of_model], config)
    described = {
        step.model for measured_of_model, _ in result.values() for one in measured_of_model for step in one.steps
    }
    return {name: known for name, known in result.items() if known[0] or name not in described}


def _with_steps(
    figures: Figures, steps: Sequence[Figures], known: Mapping[str, tuple[list[Figures], pb.ModelConfig | None]]
) -> Figures:
    """Add the steps of an ensemble, with their configurations."""
    return replace(
        figures, steps=tuple(replace(step, config=known.get(step.model, ([], None))[1]) for step in steps)
    )  # fmt: skip


def _explain_model(
    answer: Explanation, model: str, measured: list[Figures], config: pb.ModelConfig | None, version: str
) -> None:
    title = f"Model '{model}'" if model else "The model"
    texts = (
        []
        if config is None
        else [f"Configuration: {describe_scheduling(config)}".replace(" 0 instances", " number of instances not given")]
    )
    if config is not None:
        texts += [f"Known defect of Triton: {defect}" for defect in known_defects(config, version)]
        threads = threads_of(config)
        texts += [] if threads is None else [f"{threads}; if they execute at the same time, they slow each other down"]
    # The load generator and the server's counters describe the same requests: each has what the other lacks.
    counted = [figures for figures in measured if not (figures.clients or figures.offered or figures.latency_ms)]
    clients = _same_runs([figures for figures in measured if figures not in counted])
    repeated = {one.label for one in clients if sum(one.label == other.label for other in clients) > 1}
    texts += [
        f"Several measurements at {label}: "
        + ", ".join(f"{one.rate or 0:,.1f} requests/s in {one.source}" for one in clients if one.label == label)
        + "; the figures below are of one of them"
        for label in sorted(repeated)
    ]
    if len(clients) == 1 and len(counted) == 1:
        # Counts since the start contain other loads: their latency says nothing of the way to this client.
        since_start = counted[0].before is None
        server_ms = None if since_start else counted[0].server_ms
        clients = [clients[0].completed(replace(counted[0], rate=None, server_ms=server_ms, is_time_estimated=False))]
    figures = max(clients or counted, key=_importance, default=None)
    highest = max(clients or counted, key=_load, default=None)
    if figures is None or highest is None:
        answer.sections.append((title, [*texts, "No figures: nothing measured says what limits it"]))
        answer.sections.append(("What to measure next", [_next(None, config, model)]))
        return
    found = [f"{one.label}: {text}" for one in (*clients, *counted) for text in causes.contradictions(one, config)]
    answer.contradictions += [text.partition(": ")[2] for text in found]
    others = [other for other in (*clients, *counted) if other is not figures and other.clients]
    name, text = causes.limit(figures, config, others)
    if figures.requests == 0 or (figures.executions == 0 and not figures.hits):
        name, text = "", "nothing was executed in this time"
    answer.causes[model] = name
    texts += [f"**Contradiction** at {one}" for one in found]
    texts += filter(None, [causes.degrades(figures, config, version), causes.company(measured, config)])
    texts.append(f"**What limits the rate** ({figures.label or figures.source}): {text}")
    requests = round(figures.requests or 0)
    if figures.label == _SINCE_START and 0 < requests <= _FEW:
        texts.append(f"Only {pluralize(requests, 'request')} since the start: the first executions take longer")
    if figures.failed:
        texts.append(f"{figures.failed:.0f} requests failed beside {figures.requests or 0:.0f} that succeeded")
    if figures.steps:
        for step in figures.steps:
            texts.append(
                f"Step '{step.model}': batching: {batches.batching(step, step.config)}; queue: "
                f"{batches.queue(step, step.config)}"
            )
    else:
        texts.append(f"**Does batching work?** {batches.batching(figures, config)}")
        texts.append(f"**Queue time**: {batches.queue(figures, config)}")
        texts += filter(None, [batches.copies(figures)])
    answer.sections.append((title, texts))
    if any(words in one for one in found for words in ("do not fit", "are more than", "were to be sent")):
        answer.sections.append(("What changes would give", ["Not simulated, because the figures contradict"]))
    else:
        answer.sections.append(("What changes would give", effects(highest, config)))
    answer.sections.append(("What to measure next", [_next(highest, config, model)]))


def _load(figures: Figures) -> tuple[float, float]:
    return figures.clients or figures.offered or 0, figures.rate or 0


def _importance(figures: Figures) -> tuple[bool, float, float]:
    """The highest load tells the limit, but little without the part of the server, as where a report is cut off."""
    return figures.queue_ms is not None, *_load(figures)


def _same_runs(measured: Sequence[Figures]) -> list[Figures]:
    """Combine the files of one run: the same load, and the same rate."""
    found: list[Figures] = []
    for figures in measured:
        for place, other in enumerate(found):
            is_same_load = figures.label == other.label and figures.request_rows in (None, other.request_rows)
            if is_same_load and abs((figures.rate or 0) - (other.rate or 0)) <= _SAME_RATE * (other.rate or 0):
                found[place] = other.completed(figures)
                break
        else:
            found.append(figures)
    return found


def _next(figures: Figures | None, config: pb.ModelConfig | None, model: str = "") -> str:
    """Return the most useful next measurement with its command."""
    name = model or "MODEL"
    load = f"`perf_analyzer -m {name} --concurrency-range 1:64:2 --measurement-interval 5000`"
    if figures is None:
        return f"Rate, queue and compute at several loads: {load}"
    if config is None:
        return f"The configuration that runs: `curl -s localhost:8000/v2/models/{name}/config > config.json`"
    if figures.rate is None:
        command = f"curl -s localhost:8000/v2/models/{name}/stats > after.json"
        return f"Statistics a second time under the same load give the rate: `sleep 10; {command}`"
    if figures.queue_ms is None or figures.executions is None:
        return (
            f"The server's counts under this load, twice: `curl -s localhost:8000/v2/models/{name}/stats > before.json"
            f"; sleep 10; curl -s localhost:8000/v2/models/{name}/stats > after.json`"
        )
    if figures.source == TRACE:
        return "What any change gives to these requests: `tnb.Recording.from_trace(FILES, CONFIG).what_if(…)`"
    return (
        "Averages do not show single batches; a trace does: `tritonserver … --trace-config mode=triton --trace-config "
        "triton,file=trace.json --trace-config rate=1 --trace-config level=TIMESTAMPS`, then `tritonnb explain "
        "config.pbtxt trace.json`"
    )
