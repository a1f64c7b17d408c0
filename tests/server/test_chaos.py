"""Crashes at random moments under load: a short run of `benchmarks.chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import EXPECTED_ERRORS, chaos, resources, write_models
from tritonnb.server.server import Server


@pytest.mark.slow
def test_crash_costs_one_batch_and_the_sequences_of_one_instance(tmp_path: Path) -> None:
    repository = write_models(tmp_path)
    with Server(repository, port=None, allow_http=False) as server:
        chaos(server, crashes=1, seed=0)  # opens what all servers of a process share
    before = resources()
    with Server(repository, port=None, allow_http=False) as server:
        outcome = chaos(server, crashes=6, seed=1)
    after = resources()
    assert outcome.wrong == 0
    assert outcome.right > 0
    assert outcome.errors.keys() <= EXPECTED_ERRORS
    assert outcome.unexplained == []
    assert after["regions"] == before["regions"]
    # A process of an earlier test may have ended meanwhile.
    assert after["processes"] <= before["processes"]
    assert after["descriptors"] <= before["descriptors"]
