"""Views where no figure can be drawn, as in a browser: their saved state is a text."""

from __future__ import annotations

import sys

import pytest

import tritonnb as tnb


@pytest.mark.parametrize("comparison", [False, True], ids=["recording", "comparison"])
def test_saved_state_describes_what_cannot_be_drawn(comparison: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rec = tnb.simulate("max_batch_size: 4 dynamic_batching { }", tnb.poisson(100, 1, seed=1), tnb.fixed(20))
    shown = rec.what_if(max_queue_delay_microseconds=5000) if comparison else rec
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = shown.difference() if comparison else shown.verdict()
    assert text in shown.view().last_data()["text/plain"]
