"""Tiles, list, charts, headers, cards, static twin and exported page show the numbers of the recording."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.notebook.view_page import ViewPage, deliveries
from tests.server.test_sequences import ITERATIVE
from tritonnb.core.events import BatchExecuted, BatchSent, EnsembleExecuted, Event, RequestArrived, RequestRefused
from tritonnb.notebook.activity import RECENT
from tritonnb.notebook.server_monitor import ServerMonitor
from tritonnb.recording.batches import Batch
from tritonnb.recording.recording import Recording
from tritonnb.server.server import Server

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
STEP = """model_name: "direct" model_version: -1
    input_map { key: "X" value: "%s" } output_map { key: "OUTPUT" value: "%s" }"""
CONFIGS = {
    "iterative": f'backend: "python" max_batch_size: 4 {TENSORS} sequence_batching {{ iterative_sequence: true }}',
    "ensemble": f"""platform: "ensemble" max_batch_size: 8 {TENSORS}
        ensemble_scheduling {{ step {{ {STEP % ("X", "B")} }} step {{ {STEP % ("B", "Y")} }} }}""",
}
SLOTS = {"max_batch_size": 4, "sequence_batching": {"direct": {}}}
OLDEST = {"max_batch_size": 4, "sequence_batching": {"oldest": {"max_candidate_sequences": 4}}}
FULL = {"max_batch_size": 2, "dynamic_batching": {"default_queue_policy": {"max_queue_size": 2}}}
#: The functions that are served: their configurations, and the load of each of them and of the models above.
FUNCTIONS: dict[str, dict[str, Any]] = {
    "direct": {"max_batch_size": 8}, "dynamic": {"max_batch_size": 8, "dynamic_batching": {}},
    "fast": {"max_batch_size": 8, "dynamic_batching": {}, "count": 2}, "full": FULL, "slots": SLOTS, "oldest": OLDEST,
}  # fmt: skip
LOADS: dict[str, dict[str, Any]] = {
    "direct": {"rate": 5}, "dynamic": {"rate": 500, "arrivals": "poisson"}, "fast": {"clients": 8},
    "full": {"rate": 300, "arrivals": "burst", "burst": 20},
    "slots": {"rate": 100, "sequence_length": 5, "sequences": 6}, "oldest": {"rate": 100, "sequence_length": 5},
    "ensemble": {"rate": 50}, "iterative": {"rate": 20, "inputs": {"X": [[4.0]]}, "sequence_length": 0},
}  # fmt: skip
SECONDS = 0.7
pytestmark = pytest.mark.browser  # all tests share the traffic


@dataclass
class Truth:
    """The numbers of a model, counted from the events."""

    requests: int = 0
    batches: int = 0
    rows: int = 0
    nulls: int = 0
    refused: int = 0
    failed: int = 0
    busy_ns: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return (self.rows - self.nulls) / self.batches if self.batches else 0.0

    def percentile(self, q: float) -> float:
        return float(np.percentile(self.latencies_ms, q))


def truth_of(events: list[Event], model: str) -> Truth:
    truth, arrived = Truth(), set()
    for event in events:
        if event.model != model:
            continue
        if isinstance(event, RequestArrived):
            arrived.add(event.serial)
            truth.requests += 1
        elif isinstance(event, RequestRefused):
            truth.refused += 1
            truth.requests += event.serial not in arrived
        elif isinstance(event, BatchSent):
            truth.batches += 1
            truth.rows += event.size
            truth.nulls += event.members.count(None)
        elif isinstance(event, BatchExecuted):
            truth.busy_ns += event.exec_end_ns - event.exec_start_ns
            for _, _, received_ns, _, failed in event.requests:
                truth.failed += bool(failed)
                if not failed:
                    truth.latencies_ms.append((event.exec_end_ns - received_ns) / 1e6)
        elif isinstance(event, EnsembleExecuted):
            truth.requests += 1
            truth.failed += bool(event.failed)
            if not event.failed:
                truth.latencies_ms.append((event.time_ns - event.received_ns) / 1e6)
    return truth


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    (repository / "iterative" / "1" / "model.py").write_text(ITERATIVE)
    with Server(repository, port=0, model_control_mode="explicit") as server:

        def run(X: tnb.FP32[1]) -> tnb.FP32[1]:
            if np.min(X) < -0.999:
                raise ValueError("no luck")
            return X

        for name, fields in FUNCTIONS.items():
            server.model(run, name=name, **fields)
        for name in CONFIGS:
            server.load(name)
        yield server


@dataclass
class Traffic:
    """The recording of some traffic, and what dashboard and live views showed at its end, by model."""

    rec: Recording
    entries: dict[str, Any]
    tiles: dict[str, dict[str, Any]]
    series: dict[str, Any]
    histories: dict[str, Any]
    deliveries: dict[str, Any]


@pytest.fixture(scope="module")
def traffic(server: Server) -> Traffic:
    names = [*FUNCTIONS, *CONFIGS]
    monitor = ServerMonitor(server)
    views = {name: server[name].watch() for name in names if name != "ensemble"}
    while not monitor.update():  # the traffic begins with an interval, and so is within the last few
        pass
    with server.record() as rec:
        loads = [tnb.load(server[name], duration=SECONDS, **options) for name, options in LOADS.items()]
        for value in (1.0, -1.0, -1.0):
            with suppress(tnb.TritonError):
                server["dynamic"](X=[[value]])
        for name in ("dynamic", "ensemble", "slots"):
            with suppress(tnb.TritonError):
                server[name](X=[[1.0, 2.0]])  # is invalid
        for load in loads:
            with suppress(tnb.TritonError):
                load.wait()
    monitor.update()
    for _ in range(2):  # an interval counts as over a little later: the first one may be that before the last responses
        while not monitor.update():
            pass
    entries = {entry["name"]: entry for entry in monitor.models()}
    tiles = {name: {tile["label"]: tile for tile in monitor.tiles(name)} for name in names}
    series = {name: monitor.series(name) for name in names}
    sent = {name: {"recent": view._recent_numbers()} for name, view in views.items()}
    for view in views.values():
        view.close()
    monitor.close()
    histories = {name: view.history for name, view in views.items()}
    return Traffic(rec, entries, tiles, series, histories, sent)


def test_traffic_includes_every_kind_of_event(traffic: Traffic) -> None:
    counted = {name: truth_of(traffic.rec.events, name) for name in LOADS}
    assert all(truth.requests for truth in counted.values())
    assert counted["full"].refused > 10
    assert counted["dynamic"].failed >= 2
    assert [counted[name].refused for name in ("dynamic", "ensemble")] == [1, 1]
    assert counted["slots"].nulls
    assert len(traffic.rec.generations) == counted["iterative"].requests


@pytest.mark.parametrize("name", LOADS)
def test_tiles_list_and_charts_have_the_numbers_of_the_recording(traffic: Traffic, name: str) -> None:
    truth = truth_of(traffic.rec.events, name)
    tiles = {label: tile["value"].replace(",", "") for label, tile in traffic.tiles[name].items()}
    instances = FUNCTIONS.get(name, {}).get("count", 1)
    lost, answered = truth.failed + truth.refused, len(truth.latencies_ms)
    expected = {"throughput": answered / RECENT, "errors": lost / RECENT}
    if name != "iterative":
        expected |= {"latency p50": truth.percentile(50), "latency p99": truth.percentile(99)}
    if name != "ensemble":
        expected |= {"utilization": truth.busy_ns / RECENT / 1e7 / instances, "mean batch": truth.mean}
    wrong = {
        label: (tiles[label], value)
        for label, value in expected.items()
        if float(tiles[label]) != pytest.approx(value, rel=0.01, abs=0.51 if label in WHOLE else 0.005)
    }
    assert wrong == {}
    series, entry = traffic.series[name], traffic.entries[name]
    assert (sum(series["rate"]), sum(series["errors"]), sum(series["n"])) == (answered, lost, answered)
    assert (entry["rate"], entry["errors"]) == (answered / RECENT, lost / RECENT)
    assert (entry["problem"] != "") == (lost > 0)


#: What is shown without decimal places.
WHOLE = {"throughput", "utilization"}


def header_of(view: ViewPage) -> dict[str, str]:
    """The facts of a view's header by their labels."""
    facts = view.page.locator(".tnb-fact").all_inner_texts()
    return {label.removesuffix("s"): value for value, label in (fact.split(" ", 1) for fact in facts)}


def check_header(view: ViewPage, truth: Truth) -> None:
    facts = header_of(view)
    counts = {"request": truth.requests, "batche": truth.batches, "waiting": 0}
    counts |= {name: value for name, value in (("refused", truth.refused), ("failed", truth.failed)) if value}
    assert {name: int(facts[name]) for name in counts} == counts
    assert float(facts["rows in a batch (mean)"]) == pytest.approx(truth.mean, abs=0.006)
    assert {"refused", "failed"} & facts.keys() == {"refused", "failed"} & counts.keys()


@pytest.mark.parametrize("name", [name for name in LOADS if name != "ensemble"])
def test_live_view_numbers_equal_the_recording_and_the_tiles(traffic: Traffic, view: ViewPage, name: str) -> None:
    truth, tiles = truth_of(traffic.rec.events, name), traffic.tiles[name]
    view.open(traffic.histories[name] | traffic.deliveries[name])
    view.settle()
    check_header(view, truth)
    recent = view.page.locator(".tnb-recent").inner_text()
    (rate,) = re.findall(r"([\d.]+) (?:requests|steps)/s", recent)
    assert float(rate) == pytest.approx(len(truth.latencies_ms) / RECENT, abs=0.51)
    lost = re.findall(r"([\d.]+) lost/s", recent)
    assert [float(value) for value in lost] == pytest.approx([float(tiles["errors"]["value"])] * len(lost), abs=0.51)
    assert bool(lost) == (tiles["errors"]["level"] == "error")
    assert tiles["throughput"]["unit"].split("/")[0] in recent
    for q in (50, 99):
        for value, unit in re.findall(rf"p{q} ([\d.]+) (ms|s)\b", recent):
            assert float(value) * (1 if unit == "ms" else 1000) == pytest.approx(truth.percentile(q), rel=0.06)
    if truth.failed or truth.refused:
        assert tiles["errors"]["note"] in recent


def test_exported_page_and_twin_have_the_numbers_of_the_recording(
    traffic: Traffic, browser: Any, tmp_path: Path
) -> None:
    events = [event for event in traffic.rec.events if event.model != "fast"]  # thousands of requests
    configs = {name: config for name, config in traffic.rec.configs.items() if name != "fast"}
    Recording(events, configs).to_html(tmp_path / "page.html", remedies=0)
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    sections = {node.get_attribute("aria-label"): node for node in page.locator("section").all()}
    assert sections.pop("pipeline ensemble").inner_text()
    assert sections.keys() == LOADS.keys() - {"ensemble", "fast"}
    for name, section in sections.items():
        truth, rec = truth_of(traffic.rec.events, name), traffic.rec.for_model(name)
        facts = section.locator(".tnb-fact").all_inner_texts()
        assert facts[:2] == [f"{truth.requests} requests", f"{truth.batches} batches"]
        refused = [fact for fact in facts if fact.endswith("refused")]
        assert refused == [f"{truth.refused} refused"] * bool(truth.refused)
        figures, words = rec.summary(), rec.verdict()
        assert words in " ".join(section.inner_text().split())
        assert int(words.split(" ")[0]) == figures["requests"] == truth.requests - truth.refused
        assert (figures["refused"], figures["failed"], figures["batches"]) == (
            truth.refused, truth.failed, truth.batches,
        )  # fmt: skip
        assert ("refused" in words, "failed" in words) == (truth.refused > 0, truth.failed > 0)
        if not rec.slot_occupancy:
            assert words in rec.plot.alt("timeline")
    page.close()


def simulated(name: str) -> Callable[[int], Recording]:
    def simulate(rate: int) -> Recording:
        seconds = min(10, 300 / rate)
        arrivals = tnb.poisson(rate=rate, duration=seconds, seed=rate)
        length, count = 5, max(1, round(rate * seconds / 5))
        sequences = tnb.sequences([length] * count, every_ms=40, stagger_ms=1000 * length / rate)
        refused = tnb.Arrival(ms=1, sequence_id=10**6)
        slots = 'name: "m" max_batch_size: 4 instance_group { count: 2 } sequence_batching { %s }'
        return {
            "direct": lambda: tnb.simulate('name: "m" max_batch_size: 8', arrivals, tnb.fixed(1.5)),
            "dynamic": lambda: tnb.simulate(
                """name: "m" max_batch_size: 8 instance_group { count: 2 } dynamic_batching {
                    max_queue_delay_microseconds: 2000 default_queue_policy { max_queue_size: 20 } }""",
                arrivals, tnb.linear(per_row_ms=0.4, base_ms=3),
            ),
            "sequence direct": lambda: tnb.simulate(slots % "direct { }", [refused, *sequences], tnb.fixed(2)),
            "sequence oldest": lambda: tnb.simulate(slots % "oldest { }", [refused, *sequences], tnb.fixed(2)),
            "iterative": lambda: tnb.simulate(
                slots % "iterative_sequence: true oldest { max_candidate_sequences: 4 }",
                [tnb.Arrival(ms=1000 * at / rate, steps=1 + at % 7) for at in range(round(rate * seconds / 4))],
                tnb.fixed(1),
            ),
        }[name]()  # fmt: skip

    return simulate


@pytest.mark.parametrize("name", ["direct", "dynamic", "sequence direct", "sequence oldest", "iterative"])
@pytest.mark.parametrize("rate", [5, 500, 4000])
def test_views_show_every_scheduler_at_every_rate_correctly(view: ViewPage, name: str, rate: int) -> None:
    rec = simulated(name)(rate)
    truth = truth_of(rec.events, "m")
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent)
    view.settle()
    check_header(view, truth)
    view.open(rec.view().history, live=False)
    check_header(view, truth)
    for moment in (0.3, 0.7):
        check_moment(view, rec, moment * (rec.span_ns[1] - rec.span_ns[0]) / 1e6)
    for batch in (rec.batches[0], rec.batches[len(rec.batches) // 2], rec.batches[-1]):
        check_card(view, rec, batch)


def check_moment(view: ViewPage, rec: Recording, time_ms: float) -> None:
    """Compare the slots, the backlog and the waiting requests of a moment."""
    time_ns = rec.span_ns[0] + round(time_ms * 1e6)
    view.run(f"(view.cursor = {time_ms}, view.textUpdatedAt = -1e6, view.draw())")
    held = {
        f"{one.instance} · {one.slot}": (str(one.sequence), sum(batch.sent_ns <= time_ns for batch, _ in one.requests))
        for one in rec.slot_occupancy
        if one.assigned_ns <= time_ns < (one.released_ns or rec.span_ns[1] + 1)
    }
    cards = [
        card.replace("\u200e", "").split("\n") for card in view.page.locator(".tnb-cell.tnb-held").all_inner_texts()
    ]
    assert {name: (sequence, int(run.split(" ")[0])) for name, sequence, run, *_ in cards} == held
    if rec.slot_occupancy:
        backlog = [str(one.sequence) for one in rec.slot_occupancy if one.arrived_ns <= time_ns < one.assigned_ns]
        (shown,) = re.findall(r"backlog: (.*)", view.text("slots"))
        assert sorted(shown.split(", ")) == sorted(backlog or ["empty"])
    waiting = int(view.text("event").split(": ", 1)[1].split(" ")[0])
    assert waiting == waiting_at(rec.events, time_ns)


def check_card(view: ViewPage, rec: Recording, batch: Batch) -> None:
    """Compare the card of a selected batch."""
    view.run(f"(view.selected = {batch.number}, view.textUpdatedAt = -1e6, view.draw())")
    text = view.text("details")
    assert text.startswith(f"Batch {batch.number} on {batch.instance}: {batch.size} of at most")
    waited, ran = (float(value) for value in re.findall(r"waited ([\d.]+) ms.* = ([\d.]+) ms", text)[0])
    arrived = {event.serial: event.time_ns for event in rec.events if isinstance(event, RequestArrived)}
    before = {serial for other in rec.batches if other.sent_ns < batch.sent_ns for serial in other.requests}
    came = [arrived[serial] for serial in batch.requests if serial is not None and serial not in before]
    oldest = min(came, default=batch.sent_ns)  # steps of a generation after the first did not wait
    assert waited == pytest.approx((batch.sent_ns - oldest) / 1e6, rel=0.06, abs=0.006)
    assert ran == pytest.approx((batch.exec_end_ns - batch.exec_start_ns) / 1e6, rel=0.06, abs=0.006)
    assert f"{batch.queue_depth} left waiting" in text
    assert f"Why now? {batch.why}." in text


def waiting_at(events: list[Event], time_ns: int) -> int:
    waiting: set[int | None] = set()
    for event in events:
        if event.time_ns > time_ns:
            break
        if isinstance(event, RequestArrived):
            waiting.add(event.serial)
        elif isinstance(event, RequestRefused):
            waiting.discard(event.serial)
        elif isinstance(event, BatchSent):
            waiting -= set(event.members)
    return len(waiting)
