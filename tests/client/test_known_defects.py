"""Known defects of releases of Triton: their conditions, and where a connection says them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.client.known_defects import DEFECTS, known_defects
from tritonnb.client.v2_client import V2Client
from tritonnb.core.version import TRITON_VERSION
from tritonnb.model_config.parse import parse_text

DRIFTS = (
    "dynamic_batching { max_queue_delay_microseconds: 500 default_queue_policy { default_timeout_microseconds: 9000 } }"
    " instance_group { count: 2 kind: KIND_CPU }"
)
LATE = "late_timeouts"
HELD_BACK = "cached_answer_holds_back_others"


@pytest.mark.parametrize(
    ("version", "config", "names"),
    [
        ("2.37.0", DRIFTS, ["waiting_consumer_drift", LATE]),
        ("2.71.0", DRIFTS, ["waiting_consumer_drift", LATE]),
        ("2.36.0", DRIFTS, [LATE]),
        ("2.72.0", DRIFTS, [LATE]),
        ("2.51.0", DRIFTS.replace("count: 2", "count: 1"), [LATE]),
        ("2.51.0", DRIFTS.replace("kind: KIND_CPU", "kind: KIND_GPU gpus: [0, 1]"), ["waiting_consumer_drift", LATE]),
        ("2.51.0", DRIFTS.replace("default_timeout_microseconds: 9000", ""), []),
        ("2.51.0", DRIFTS.replace("max_queue_delay_microseconds: 500", ""), [LATE]),
        ("2.60.0", "dynamic_batching { preserve_ordering: true }", []),
        ("2.61.0", "dynamic_batching { preserve_ordering: true } response_cache { enable: true }", ["lost_order"]),
        ("2.72.0", "dynamic_batching { preserve_ordering: true } response_cache { enable: true }", [HELD_BACK]),
        ("2.69.0", 'platform: "torch_aoti"', ["swapped_statistics"]),
        ("2.68.0", 'platform: "torch_aoti"', []),
        ("2.74.0", "model_transaction_policy { decoupled: true }", ["silent_stream_cancellation"]),
        ("2.75.0", "model_transaction_policy { decoupled: true }", []),
        ("2025.3", DRIFTS, []),  # another server of the protocol
        ("", DRIFTS, ["waiting_consumer_drift", LATE]),
    ],
)
def test_model_meets_the_defects_of_its_release_and_configuration(version: str, config: str, names: list[str]) -> None:
    found = known_defects(parse_text(config).config, version)
    assert [defect.name for defect in found] == names
    assert all(defect.releases in str(defect) and defect.source in str(defect) for defect in found)


def test_release_that_this_server_reports_has_none_of_the_defects() -> None:
    assert [defect.name for defect in DEFECTS if defect.concerns(TRITON_VERSION)] == []


@pytest.fixture
def server() -> Iterator[tnb.Server]:
    policy = {"default_timeout_microseconds": 9000}
    batching = {"max_queue_delay_microseconds": 500, "default_queue_policy": policy}
    with tnb.Server(port=0) as server:

        @server.model(max_batch_size=4, dynamic_batching=batching, count=2)
        def drifting(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X

        yield server


def test_connection_says_the_defects_of_an_older_triton(server: tnb.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with tnb.connect(server.url) as remote:
        assert remote.check() == []  # and no warning
    metadata = V2Client.metadata

    def of_2_51(client: V2Client) -> dict[str, Any]:
        return metadata(client) | {"version": "2.51.0"}

    monkeypatch.setattr(V2Client, "metadata", of_2_51)
    with pytest.warns(UserWarning, match="'drifting', known defect of Triton 2.51.0: the throughput decays") as warned:
        remote = tnb.connect(server.url)
    with remote:
        (found,) = remote.check()
        assert "server #8870" in found
        assert "server #7512" in found
        assert found in repr(remote)
        assert found in str(warned[0].message)
        assert remote.restore() == []
