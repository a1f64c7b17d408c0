"""The batch view without a browser: what the kernel sends, and when the view ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.core.events import RequestArrived
from tritonnb.notebook import live_batch_view
from tritonnb.notebook.batch_tracker import BURST, MOST_BATCHES
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.live_batch_view import LiveBatchView
from tritonnb.notebook.view_encoding import TICKS
from tritonnb.notebook.view_session import ViewSession
from tritonnb.server.server import Server
from tritonnb.telemetry.stream import EventHistory

WHOLE = {"sequence_start": True, "sequence_end": True}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(port=0) as server:

        @server.model(max_batch_size=8, dynamic_batching={})
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        yield server


@pytest.fixture
def watched(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LiveBatchView, list[Any]]]:
    """A view, and what it sends to the browser."""
    sent: list[Any] = []
    monkeypatch.setattr(LiveBatchView, "send", lambda self, content, buffers=None: sent.append(content))
    view = server["double"].watch()
    yield view, sent
    if view.live:
        view.close()


def views() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tritonnb view")]


def test_interrupted_creation_detaches_from_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: ViewSession, events: object) -> None:
        raise KeyboardInterrupt

    before = server.call(lambda: server.engine.stream._sinks)
    monkeypatch.setattr(ViewSession, "replay", interrupt)
    with pytest.raises(KeyboardInterrupt):
        server["double"].watch()
    assert server.call(lambda: server.engine.stream._sinks) == before


def test_live_view_receives_batches(server: Server, watched: tuple[LiveBatchView, list[Any]]) -> None:
    view, sent = watched
    for value in range(5):
        server["double"](X=[[value]])
    view.close()
    batches = [delivery["batches"] for delivery in sent if delivery["batches"]]
    assert [rows for columns in batches for rows in columns["rows"]] == [1] * 5
    assert all(why for columns in batches for why in columns["why"])
    assert sent[-1]["counts"]["requests"] == 5
    assert view.history["counts"]["requests"] == 5
    assert len(view.history["batches"]["n"]) == 5


@pytest.mark.parametrize("remembered", [10_000, 256], ids=["every event", "the newest events"])
def test_view_shows_the_servers_recent_events(server: Server, monkeypatch: pytest.MonkeyPatch, remembered: int) -> None:
    monkeypatch.setattr(server.engine.stream, "recent", EventHistory(remembered))
    tnb.load(server["double"], clients=4, requests=300).wait()
    view = server["double"].watch()
    view.close()
    arrived = [event for event in server.recent().events if isinstance(event, RequestArrived)]
    counts = view.history["counts"]
    assert counts["requests"] == 300 if remembered > 1000 else 0 < counts["requests"] <= len(arrived)
    assert view.history["depth"] == 0
    assert all(depth >= 0 for _, depth in view.history["depths"])
    assert max(view.history["batches"]["n"]) == server.recent().batches[-1].number


def test_view_without_requests_can_send_some(server: Server, watched: tuple[LiveBatchView, list[Any]]) -> None:
    view, sent = watched
    view._handle_custom_msg({"try": True}, [])
    while not sent or sent[-1]["counts"]["requests"] < 20:
        pass
    assert view.notice == ""


def test_watching_again_shows_the_same_view_until_it_is_closed(
    server: Server, watched: tuple[LiveBatchView, list[Any]]
) -> None:
    view, _ = watched
    assert server["double"].watch() is view
    view.close()
    again = server["double"].watch()
    assert again is not view
    again.close()


def test_closed_view_releases_its_resources(server: Server, watched: tuple[LiveBatchView, list[Any]]) -> None:
    view, _ = watched
    view.close()
    assert views() == []
    assert server.call(lambda: server.engine.stream._sinks) == ()


def test_view_ends_with_its_server(server: Server, watched: tuple[LiveBatchView, list[Any]]) -> None:
    view, _ = watched
    server["double"](X=[[1]])
    server.stop()
    assert view.ended.wait(60)
    view.stop()  # waits for its thread
    assert not view.live
    assert view.history["counts"]["requests"] == 1
    assert type(view.recording().events[-1]).__name__ == "BatchExecuted"  # the figure does not last until the stop
    assert views() == []


def test_open_view_sends_nothing_at_exit(
    server: Server, watched: tuple[LiveBatchView, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sockets of a kernel that exits are closed: what is sent then ends in tracebacks of pyzmq."""
    view, _ = watched
    shown: list[Any] = []
    monkeypatch.setattr(view, "_display_id", "displayed")
    monkeypatch.setattr(view, "_show", lambda data, **how: shown.append(data))
    server["double"](X=[[1]])
    view._thread._exit()
    assert view.ended.is_set()
    assert (shown, views()) == ([], [])


def test_view_ends_in_the_cell_that_stops_its_server(server: Server, watched: tuple[LiveBatchView, list[Any]]) -> None:
    view, _ = watched
    server.stop()
    view.keep_at_end_of_cell()
    assert view.ended.is_set()


def test_view_ends_with_its_model(server: Server, watched: tuple[LiveBatchView, list[Any]]) -> None:
    view, _ = watched
    server.unload("double")
    assert view.ended.wait(60)
    assert not view.live
    assert server.call(lambda: server.engine.stream._sinks) == ()


def test_hidden_view_receives_one_delivery_per_second(watched: tuple[LiveBatchView, list[Any]]) -> None:
    view, _ = watched
    assert view._tick_s == 0.1
    view._handle_custom_msg({"view": "one", "in_sight": False}, [])
    assert view._tick_s == 1
    view._handle_custom_msg({"view": "another", "in_sight": True}, [])
    assert view._tick_s == 0.1


def test_overloaded_view_receives_fewer_deliveries(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, rare = [], threading.Event()

    def send(view: LiveBatchView, content: dict[str, Any], buffers: object = None) -> None:
        sent.append(content)
        if view._tick_s == 0.4:
            rare.set()

    @server.model(max_batch_size=1)  # a batch for each request, even on a slow machine
    def same(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    monkeypatch.setattr(LiveBatchView, "send", send)
    view = server["same"].watch()
    load = tnb.load(server["same"], clients=8)
    assert rare.wait(60)
    load.stop()
    load.wait(60)
    view.close()
    assert max(len(delivery["batches"].get("n", ())) for delivery in sent) <= BURST * MOST_BATCHES
    assert sent[-1]["counts"]["requests"] == server["same"].stats()["inference_count"]


def test_view_follows_the_model_to_another_scheduler(server: Server, watched: tuple[LiveBatchView, list[Any]]) -> None:
    view, _ = watched
    config = server["double"].config
    config.ClearField("dynamic_batching")
    assert config.apply() == "in place"
    server["double"](X=[[1]])
    view.close()
    assert view.history["meta"]["batcher"] == "none"


def test_view_gets_the_start_of_a_long_backlog_and_counts_the_rest(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_batch_view, "MOST_PENDING", 1)

    @server.model(max_batch_size=1, sequence_batching={"direct": {}, "max_sequence_idle_microseconds": 60_000_000})
    def remembers(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    def send(sequence: int, **flags: Any) -> None:
        server["remembers"](X=[[1]], sequence_id=sequence, **flags)

    def slot_state() -> dict[str, Any]:
        return server.call(view._read_state)["slot_state"]

    send(1, sequence_start=True)
    view = server["remembers"].watch()
    one, other = (threading.Thread(target=send, args=[sequence], kwargs=WHOLE) for sequence in (2, 3))
    one.start()
    while not slot_state()["backlog"]:
        pass
    other.start()
    while not slot_state()["omitted"]:
        pass
    assert (slot_state()["backlog"], slot_state()["omitted"]) == ([2], 1)
    send(1, sequence_end=True)
    one.join()
    other.join()
    assert (slot_state()["backlog"], slot_state()["omitted"]) == ([], 0)
    view.close()


def test_recording_opens_in_the_same_view() -> None:
    rec = tnb.simulate('name: "m" max_batch_size: 8 dynamic_batching { }', [(0, 4), (1, 2), (2, 2)], tnb.fixed(5))
    view = rec.view()
    assert isinstance(view, BatchView)
    assert not view.live
    assert view.history["batches"]["rows"] == [4, 4]
    assert view.svg().startswith("<svg role=")
    assert rec.plot.alt("timeline") in view.svg()
    assert view.last_state().startswith(f'<img alt="{rec.plot.alt("timeline")}"')
    assert rec.view() is view
    view.close()
    assert rec.view() is not view


def test_view_without_an_output_sends_nothing_until_it_is_displayed_again(
    server: Server, watched: tuple[LiveBatchView, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    view, sent = watched
    monkeypatch.setattr(live_batch_view, "_ABSENT_S", 0.01)
    for in_sight in (True, None):
        view._handle_custom_msg({"view": "one", "in_sight": in_sight}, [])
    server["double"](X=[[1]])
    while not view._session.tracker.quiet:
        pass
    assert not view.refresh_last_state()
    assert all(delivery["counts"]["requests"] == 0 for delivery in sent)
    view._handle_custom_msg({"view": "another", "in_sight": True}, [])
    assert view.history["counts"]["requests"] == 1


def test_recording_shows_everything_that_was_refused() -> None:
    config = 'name: "m" max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 2 } }'
    rec = tnb.simulate(config, [(at, 1) for at in range(300)], tnb.fixed(10))
    assert len(rec.view().history["refused"]) == len(rec.refused) > 200


def test_view_shows_one_model() -> None:
    one, two = (tnb.simulate(f'name: "{name}"', [(0, 1)], tnb.fixed(1)) for name in "ab")
    both = tnb.Recording([*one.events, *two.events], one.configs | two.configs)
    with pytest.raises(tnb.TritonError, match=r"expected a recording of one model, got a, b; select one with"):
        both.view()
    assert both.for_model("a").view().history["meta"]["model"] == "a"
    with pytest.raises(tnb.TritonError, match="expected a recording of one model, got none"):
        tnb.Recording().view()


def test_static_figure_of_a_stateful_recording_shows_its_slots() -> None:
    config = 'name: "m" max_batch_size: 2 sequence_batching { direct { } }'
    rec = tnb.simulate(config, tnb.sequences([2, 2, 2], every_ms=9, stagger_ms=0.1), tnb.fixed(1))
    assert "3 sequences in 2 slots" in rec.view().svg()
    assert rec.view().history["meta"]["strategy"] == "direct"


def test_comparison_shows_both_runs_with_a_common_time_axis() -> None:
    config = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }'
    rec = tnb.simulate(config, [(0, 4), (9000, 4), (9000, 2)], tnb.fixed(50))
    changed = rec.what_if(max_queue_delay_microseconds=0)
    card, _, before, title, after = changed.view().children
    assert changed.verdict() in card.value.replace("&gt;", ">")
    assert "batch 1 differs" in title.value
    assert before.history["now"] == after.history["now"] == 109 * TICKS
    assert len(before.history["batches"]["n"]) == len(changed.before.batches)
    for view, numbers in zip((before, after), changed.changed_batches(), strict=True):
        batches = view.history["batches"]
        assert {n for n, differs in zip(batches["n"], batches["differs"], strict=True) if differs} == numbers != set()


def test_history_holds_events_at_the_end_of_a_cell_unless_a_browser_shows_the_view(
    server: Server, watched: tuple[LiveBatchView, list[Any]]
) -> None:
    view, _ = watched
    server["double"](X=[[1]])
    assert view.refresh_last_state()
    assert len(view.history["batches"]["n"]) == 1
    assert not view.refresh_last_state()  # no request since
    server["double"](X=[[1]])
    view._handle_custom_msg({"view": "one", "in_sight": True}, [])
    assert not view.refresh_last_state()
