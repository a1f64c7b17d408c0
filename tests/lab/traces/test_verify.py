"""Predictions of a twin of another server, which is changed through the load API and restored."""

from __future__ import annotations

import pytest

import tritonnb as tnb
from tests.client.servers import ServerProcess


def test_remote_server_is_verified_by_its_traces_and_restored(remote_server: ServerProcess) -> None:
    with tnb.connect(remote_server.grpc) as remote:
        model = remote["one"]
        with remote.record("one") as recording:
            tnb.load(model, rate=60, arrivals="poisson", requests=80, seed=1).wait(60)
        before = model.running_config()
        result = recording.twin().verify(model, max_queue_delay_microseconds=30_000)
        assert model.running_config() == before
        assert result.by_server
        assert result.measured["mean_batch_size"] > recording.summary()["mean_batch_size"] + 0.5
        assert result.measured["latency_p50_ms"] == pytest.approx(result.prediction.latency_p50_ms.value, rel=0.5)
        assert remote.check() == []
