"""A deployment as a whole: its recording has a lane for each replica, its dashboard a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.scale.served import Served, served
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestArrived
from tritonnb.lab.traces.replicas import merge_events
from tritonnb.scale.endpoint_settings import EndpointSettings
from tritonnb.server.server import Server

MODELS = Path(__file__).parents[1] / "models"
ONES = np.ones((1, 2), np.float32)


@pytest.fixture
def deployment() -> Iterator[Served]:
    with served(MODELS, ["echo_fp32", "accumulate"], "r1", "r2") as deployment:
        yield deployment


def add(remote: tnb.Remote, sequence: int, **flags: bool) -> Any:
    return remote["accumulate"](INPUT0=[[1]], sequence_id=sequence, **flags)


def test_recording_has_a_lane_for_each_replica_later_ones_included(deployment: Served) -> None:
    with tnb.connect(deployment.url) as remote, remote.record("echo_fp32") as recording:
        model = remote["echo_fp32"]
        for _ in range(4):
            model(INPUT0=ONES)
        deployment.add("r3")
        for _ in range(6):
            model(INPUT0=ONES)
    assert recording.replicas == ["r1", "r2", "r3"]
    assert recording.instances == [f"replica {name}: echo_fp32_0_0" for name in recording.replicas]
    assert len(recording.requests) == 10
    assert sorted(request.serial for request in recording.requests) == list(range(1, 11))
    assert [batch.sent_ns for batch in recording.batches] == sorted(batch.sent_ns for batch in recording.batches)
    assert "echo_fp32" in recording.configs
    again = recording.what_if(max_batch_size=8)
    assert set(again.before.replicas) <= {"1", "2", "3"}
    assert len(again.before.requests) == 10


def test_recording_of_sequences_shows_each_on_one_replica(deployment: Served) -> None:
    with tnb.connect(deployment.url) as remote, remote.record() as recording:
        for sequence in range(1, 5):
            add(remote, sequence, sequence_start=True)
        for sequence in range(1, 5):
            add(remote, sequence, sequence_end=True)
    lanes: dict[int | str, set[str]] = {}
    for occupancy in recording.slot_occupancy:
        lanes.setdefault(occupancy.sequence, set()).add(occupancy.instance)
    assert sorted(map(len, lanes.values())) == [1] * 4
    assert recording.replicas == ["r1", "r2"]


def test_recording_names_a_lost_replica(deployment: Served) -> None:
    with tnb.connect(deployment.url) as remote:
        context = remote.record("echo_fp32")
        recording = context.__enter__()
        deployment.lose("r2")
        remote["echo_fp32"](INPUT0=ONES)
        with pytest.warns(UserWarning, match="the replica r2 was lost during the recording") as warned:
            context.__exit__(None, None, None)
    assert [warning.filename for warning in warned] == [__file__]
    assert recording.replicas == ["r1"]


def test_requests_and_batches_of_replicas_are_numbered_again() -> None:
    def events(time_ns: int) -> list[Event]:
        return [
            RequestArrived(time_ns, "m", 1, 7, 1, 0, 0, "", 0, 0, 0),
            BatchSent(time_ns + 1, "m", 1, 3, "m_0_0", 1, "", 0, (7, None), None, {}),
            BatchExecuted(time_ns + 9, "m", 1, 3, "m_0_0", 1, time_ns + 2, 0, 0, 0, ((7, 1, time_ns, time_ns, ""),)),
        ]

    merged = merge_events({"a": events(100), "b": events(105)})
    arrived = [event.serial for event in merged if isinstance(event, RequestArrived)]
    sent = [(event.batch, event.instance, event.members) for event in merged if isinstance(event, BatchSent)]
    assert arrived == [1, 2]
    assert sent == [(1, "replica a: m_0_0", (1, None)), (2, "replica b: m_0_0", (2, None))]
    executed = [(event.batch, event.requests[0][0]) for event in merged if isinstance(event, BatchExecuted)]
    assert executed == [(1, 1), (2, 2)]


def test_statistics_can_be_summed_or_read_per_replica(deployment: Served) -> None:
    with tnb.connect(deployment.url) as remote:
        model = remote["echo_fp32"]
        for _ in range(6):
            model(INPUT0=ONES)
        assert remote.stats("echo_fp32")["model_stats"][0]["inference_count"] == 6
        counts = {
            name: next(entry["inference_count"] for entry in entries if entry["name"] == "echo_fp32")
            for name, entries in remote.replica_stats().items()
        }
        assert counts == {"r1": 3, "r2": 3}
        url = f"{deployment.url}/v2/models/stats?replica=r9"
        with pytest.raises(InvalidArgumentError, match="expected one of the replicas r1, r2, got 'r9'"):
            remote.server.access.fetch_json(url)


def test_dashboard_shows_requests_queue_batches_and_sequences_of_each_replica(
    deployment: Served,
) -> None:
    with tnb.connect(deployment.url) as remote:
        view = remote.dashboard()
        for sequence in (41, 42, 43):
            add(remote, sequence, sequence_start=True)
        view.refresh()
        rows = [row for row in view.replicas.value.split("<tr>") if "RUNNING" in row]
        assert [name for row in rows for name in ("r1", "r2") if f">{name}<" in row] == ["r1", "r2"]
        assert "1×" in "".join(rows)
        assert "3 live sequences" in view.status.value
        for id in ("41", "42", "43"):
            assert id in view.sequences.value
        assert "accumulate" in view.models.value
        assert view.replicas.value in view.last_state()
        add(remote, 41, sequence_end=True)
        view.refresh()
        assert "41" not in view.sequences.value
        view.close()
        view.close()


def test_single_server_has_no_replicas() -> None:
    with Server(MODELS, port=0, model_control_mode="explicit", load_models=["echo_fp32"]) as server:
        with tnb.connect(server.url) as remote, pytest.raises(InvalidArgumentError, match="/v2/replicas"):
            remote.replicas()


@pytest.mark.parametrize("body", [{}, {"recording": "x", "models": 1, "stage": ""}, []])
def test_incomplete_request_for_events_is_an_error(deployment: Served, body: Any) -> None:
    with tnb.connect(deployment.url) as remote:
        with pytest.raises(InvalidArgumentError, match="expected an object with 'recording', 'models' and 'stage'"):
            remote.server.access.fetch_json(f"{deployment.url}/v2/replicas/events", body)


def test_connections_of_a_scaled_server_have_the_headers_that_restricted_apis_require() -> None:
    apis = ("inference", "statistics", "metadata", "model-repository", "trace")
    http = tnb.HttpOptions(restricted_api=tuple((api, "key", "secret") for api in apis))
    with served(MODELS, ["echo_fp32"], "r1", settings=EndpointSettings(http=http)) as restricted:
        with pytest.raises(InvalidArgumentError, match="expecting header 'key'"):
            tnb.connect(restricted.url)
        port = int(restricted.url.rpartition(":")[2])
        server = tnb.ScaledServer("name", "127.0.0.1", port, None, False, lambda options: None, {"key": "secret"}, 0)
        with server.connect() as remote:
            assert remote["echo_fp32"](INPUT0=ONES)["OUTPUT0"].shape == (1, 2)
            assert remote.stats("echo_fp32")["model_stats"][0]["inference_count"] == 1
            assert remote.metrics()
        assert [replica["replica"] for replica in server.replicas()] == ["r1"]
