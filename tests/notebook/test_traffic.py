"""The traffic panel, controlled by the values of its widgets as a browser does."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import tritonnb as tnb
from tests.lab.conftest import gate as gate
from tests.lab.conftest import server as server
from tritonnb.notebook.traffic import Traffic, measure, parse_shapes
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


def test_traffic_is_started_and_stopped(panel: Traffic, server: Server) -> None:
    panel.sending = True
    load = answered(panel.load, server)
    panel.sending = False
    assert load.wait(60).requests == load.sent == measure(load)["sent"]


def test_unrelated_setting_does_not_restart_the_load(panel: Traffic, server: Server) -> None:
    panel.sending = True
    load = panel.load
    panel.change(clients=3)  # of a closed loop
    assert panel.load is load
    panel.change(rate=150.0)
    assert panel.load is not load


def test_setting_takes_effect_while_traffic_runs(panel: Traffic, server: Server) -> None:
    panel.sending = True
    first = panel.load
    panel.change(loop="closed loop")
    second = answered(panel.load, server)
    assert first is not None
    assert first.wait(60).requests == first.sent
    assert "closed loop, 8 clients" in repr(second)
    panel.change(http=True)
    assert answered(panel.load, server) is not second


def test_limits_of_a_model_are_read_from_its_configuration(panel: Traffic, server: Server) -> None:
    assert panel.limits == {"sequences": False, "remote": False, "max_rows": 8, "variable_inputs": []}
    assert server["accumulate"].traffic().limits["sequences"]


def test_numbers_are_updated_by_themselves(panel: Traffic) -> None:
    seen = threading.Event()
    panel.observe(lambda change: change["new"].get("latency") and seen.set(), "status")  # type: ignore[func-returns-value]
    panel.sending = True
    assert seen.wait(60)


def test_last_numbers_wait_for_a_pending_click(panel: Traffic, server: Server) -> None:
    """Handling a click reads the status and writes it again: what was written in between would be lost."""
    panel.sending = True
    load = answered(panel.load, server)
    (follower,) = [thread for thread in threading.enumerate() if thread.name == "tritonnb traffic"]
    with panel._following:
        panel.sending = False
        load.wait(60)
        follower.join(0.2)
        assert follower.is_alive()
        assert "Last:" not in panel.status["outcome"]
    follower.join(60)
    assert "Last:" in panel.status["outcome"]


def test_last_values_are_shown_after_the_load(panel: Traffic, server: Server) -> None:
    over = threading.Event()
    panel.observe(lambda change: "Last:" in change["new"]["outcome"] and over.set(), "status")  # type: ignore[func-returns-value]
    panel.sending = True
    answered(panel.load, server)
    panel.sending = False
    assert over.wait(60)


@pytest.mark.parametrize(
    ("dims", "text", "shape"),
    [([-1], "3", [3]), ([-1, 4], "[2, 4]", [2, 4]), ([-1, -1, 3], "64 x 32 x 3", [64, 32, 3])],
)
def test_shape_is_read_in_common_notations(dims: list[int], text: str, shape: list[int]) -> None:
    assert parse_shapes([{"name": "X", "dims": dims}], {"X": text}) == {"X": shape}


@pytest.mark.parametrize("text", ["", "a", "0", "-1", "1, 2"])
def test_invalid_shape_is_rejected(text: str) -> None:
    with pytest.raises(tnb.TritonError, match=r"input 'X' has variable dimensions \[-1\]: expected 1 positive"):
        parse_shapes([{"name": "X", "dims": [-1]}], {"X": text})


def test_variable_dimensions_are_entered(server: Server) -> None:
    @server.model(max_batch_size=4)
    def words(X: tnb.FP32[-1]) -> tnb.FP32[-1]:
        return X

    panel = server["words"].traffic()
    assert panel.limits["variable_inputs"] == [{"name": "X", "dims": [-1]}]
    panel.sending = True
    assert not panel.sending
    assert "variable dimensions" in panel.status["outcome"]
    assert server["words"].traffic(shapes={"X": [3]}) is panel
    assert panel.settings["shapes"] == {"X": "3"}
    panel.sending = True
    assert answered(panel.load, server).failed == 0
    panel.close()


def test_traffic_that_fails_shows_the_error_and_can_be_restarted(
    panel: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(load: tnb.Load, options: object) -> None:
        raise ValueError("<no luck>")

    over = threading.Event()
    panel.observe(lambda change: "The traffic ended" in change["new"]["outcome"] and over.set(), "status")  # type: ignore[func-returns-value]
    monkeypatch.setattr(tnb.Load, "_open_loop", break_off)
    panel.sending = True
    assert over.wait(60)
    assert "<no luck>" in panel.status["outcome"]
    assert "&lt;no luck&gt;" in panel.last_state()
    assert not panel.sending
    monkeypatch.undo()
    panel.sending = True
    assert panel.load is not None


def test_sequences_are_sent_to_a_stateful_model(server: Server) -> None:
    panel = server["accumulate"].traffic()
    panel.sending = True
    assert answered(panel.load, server).failed == 0
    panel.close()


def test_closed_panel_sends_nothing(panel: Traffic, server: Server) -> None:
    panel.sending = True
    load = answered(panel.load, server)
    panel.close()
    assert load.wait(60).requests == load.sent


def test_model_has_one_panel_until_it_is_closed(panel: Traffic, server: Server) -> None:
    assert server["held"].traffic() is panel
    panel.close()
    assert server["held"].traffic() is not panel
    server["held"].traffic().close()


def test_last_numbers_are_kept_as_plain_html(panel: Traffic) -> None:
    assert "Traffic on 'held'" in panel.last_state()
    assert "This panel sends no requests." in panel.last_state()


def test_traffic_ends_when_its_server_stops(panel: Traffic, server: Server) -> None:
    panel.sending = True
    load = answered(panel.load, server)
    server.stop()
    load.wait(60)
