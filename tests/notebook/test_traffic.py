"""The traffic panel, controlled by the values of its widgets as a browser does."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import tritonnb as tnb
from tests.profile.conftest import gate as gate
from tests.profile.conftest import server as server
from tritonnb.notebook.traffic import Traffic, describe
from tritonnb.server.server import Server


@pytest.fixture
def panel(server: Server) -> Iterator[Traffic]:
    panel = server["held"].traffic()
    yield panel
    panel.close()


def answered(load: tnb.Load | None, server: Server) -> tnb.Load:
    """Return the load after its first response."""
    assert load is not None
    while not load.completed:
        server.call(int)
    return load


def descriptions(panel: Traffic) -> list[str]:
    return [each.description for each in panel.children[1].children]


def test_the_button_starts_and_stops_traffic(panel: Traffic, server: Server) -> None:
    panel.running.value = True
    load = answered(panel.load, server)
    assert panel.running.description == "Stop"
    assert "sent" in describe(load)
    panel.running.value = False
    assert load.wait(60).requests == load.sent
    assert panel.running.description == "Send"


def test_a_setting_takes_effect_while_traffic_runs(panel: Traffic, server: Server) -> None:
    panel.running.value = True
    first = panel.load
    panel.loop.value = "closed loop"
    second = answered(panel.load, server)
    assert first is not None
    assert first.wait(60).requests == first.sent
    assert "closed loop, 8 clients" in repr(second)
    panel.http.value = True
    assert answered(panel.load, server) is not second


def test_only_the_controls_that_apply_are_shown(panel: Traffic, server: Server) -> None:
    assert descriptions(panel) == ["arrivals", "requests/s", "rows per request", "over HTTP"]
    panel.arrivals.value = "burst"
    assert "per burst" in descriptions(panel)
    panel.loop.value = "closed loop"
    assert descriptions(panel) == ["clients", "rows per request", "over HTTP"]
    assert "requests per sequence" in descriptions(server["accumulate"].traffic())


def test_the_numbers_are_updated_by_themselves(panel: Traffic) -> None:
    seen = threading.Event()
    panel.status.observe(lambda change: "responses/s" in change["new"] and seen.set(), "value")  # type: ignore[func-returns-value]
    panel.running.value = True
    assert seen.wait(60)


def test_the_last_numbers_stay(panel: Traffic, server: Server) -> None:
    over = threading.Event()
    panel.status.observe(lambda change: "Last:" in change["new"] and over.set(), "value")  # type: ignore[func-returns-value]
    panel.running.value = True
    answered(panel.load, server)
    panel.running.value = False
    assert over.wait(60)


def test_a_load_that_cannot_be_sent_shows_the_error(server: Server) -> None:
    @server.model(max_batch_size=4)
    def words(X: tnb.FP32[-1]) -> tnb.FP32[-1]:
        return X

    panel = server["words"].traffic()
    panel.running.value = True
    assert not panel.running.value
    assert "variable dimensions" in panel.status.value
    assert server["words"].traffic(shapes={"X": [3]}) is panel
    panel.running.value = True
    answered(panel.load, server)
    panel.close()


def test_traffic_that_fails_shows_the_error_and_can_be_restarted(
    panel: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(load: tnb.Load, options: object) -> None:
        raise ValueError("<no luck>")

    over = threading.Event()
    panel.status.observe(lambda change: "The traffic ended" in change["new"] and over.set(), "value")  # type: ignore[func-returns-value]
    monkeypatch.setattr(tnb.Load, "_open_loop", break_off)
    panel.running.value = True
    assert over.wait(60)
    assert "&lt;no luck&gt;" in panel.status.value
    assert not panel.running.value
    assert panel.running.description == "Send"


def test_sequences_are_sent_to_a_stateful_model(server: Server) -> None:
    panel = server["accumulate"].traffic()
    panel.running.value = True
    assert answered(panel.load, server).failed == 0
    panel.close()


def test_a_closed_panel_sends_nothing(panel: Traffic, server: Server) -> None:
    panel.running.value = True
    load = answered(panel.load, server)
    panel.close()
    assert load.wait(60).requests == load.sent


def test_there_is_one_panel_for_a_model_until_it_is_closed(panel: Traffic, server: Server) -> None:
    assert server["held"].traffic() is panel
    panel.close()
    assert server["held"].traffic() is not panel
    server["held"].traffic().close()


def test_the_last_numbers_are_kept_as_plain_html(panel: Traffic) -> None:
    assert "Traffic on 'held'" in panel.last_state()
    assert "No traffic." in panel.last_state()


def test_traffic_of_a_server_that_stopped_ends(panel: Traffic, server: Server) -> None:
    panel.running.value = True
    load = answered(panel.load, server)
    server.stop()
    load.wait(60)
