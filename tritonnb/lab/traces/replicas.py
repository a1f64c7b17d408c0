"""A recording of all replicas of a deployment (`tritonnb.scale`)."""

from __future__ import annotations

import os
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import count
from typing import Any

from tritonnb.client.v2_client import V2Client
from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, StepSent
from tritonnb.core.failures import warn
from tritonnb.core.forks import require_process
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.files import event_of
from tritonnb.recording.instance_names import instance_on
from tritonnb.recording.recording import Recording

#: Seconds between two readings of the events of a recording. A replica that is lost takes its last events with it.
_READ_S = 0.25
#: The fields of events that are points in time; others are durations.
_TIMES = ("time_ns", "received_ns", "queued_ns", "started_ns", "exec_start_ns", "compute_start_ns", "compute_end_ns",
          "exec_end_ns")  # fmt: skip


@contextmanager
def record_replicas(server: V2Client, models: Sequence[str]) -> Iterator[Recording]:
    """Record models on all replicas, those that are added during the block included."""
    configs = configs_with_steps(server, models)
    recording = Recording()
    reader = _Reader(server, sorted(configs))
    try:
        yield recording
    finally:
        try:
            reader.close()
        finally:  # what was read so far is there, even if the deployment has gone
            recording.fill(merge_events(reader.events), configs)
    for replica in reader.lost:
        warn(f"the replica {replica} was lost during the recording: its last events are missing")


def configs_with_steps(server: V2Client, models: Sequence[str]) -> dict[str, pb.ModelConfig]:
    """Return the configurations of models, and of those that are steps of ensembles among them."""
    configs = {name: server.config(name) for name in models}
    steps = {step.model_name for config in configs.values() for step in config.ensemble_scheduling.step}
    return configs | {name: server.config(name) for name in sorted(steps - configs.keys())}


class _Reader:
    """A thread that reads the events of the replicas until it is closed."""

    def __init__(self, server: V2Client, models: Sequence[str]) -> None:
        self._server = server
        self._body = {"recording": uuid.uuid4().hex, "models": list(models)}
        #: What is added to the monotonic clock of each node to get the clock of the first node.
        self._shifts: dict[str, int] = {}
        self._first_offset: int | None = None
        self._last: frozenset[str] = frozenset()
        self.lost: list[str] = []
        self.events: dict[str, list[Event]] = {}
        self._stop = threading.Event()
        self._process = os.getpid()
        self._failure: TritonError | None = None
        self._read("begin")
        self._thread = threading.Thread(target=self._run, name="tritonnb record replicas", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read the last events; raise the error of the thread, if any."""
        require_process(self._process, f"recording of {self._server.url}")
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise UnavailableError(f"the recording of {self._server.url} ended early: {self._failure.message}")
        self._read("end")

    def _run(self) -> None:
        while not self._stop.wait(_READ_S):
            try:
                self._read()
            except TritonError as error:
                self._failure = error
                return

    def _read(self, stage: str = "") -> None:
        url = f"{self._server.url}/v2/replicas/events"
        answered = self._server.access.fetch_json(url, {**self._body, "stage": stage})
        for replica, document in answered.items():
            shift = self._shift(document)
            events = self.events.setdefault(replica, [])
            events += (_shifted(event_of(values), shift) for values in document["events"])
        self.lost += sorted(self._last - answered.keys())
        self._last = frozenset(answered)

    def _shift(self, document: Mapping[str, Any]) -> int:
        """Return the lag of the monotonic clock of a node behind the first node's, by their wall clocks."""
        offset = document["wall_ns"] - document["monotonic_ns"]
        if self._first_offset is None:
            self._first_offset = offset
        return self._shifts.setdefault(document["node"], offset - self._first_offset)


def merge_events(events: Mapping[str, Sequence[Event]]) -> list[Event]:
    """Merge the events of several replicas into events of one server, whose instances have the replica in their names.

    Requests and batches are numbered again, in order of first occurrence.

    Parameters
    ----------
    events : mapping of str to sequence of Event
        By replica.

    Examples
    --------
    >>> from tritonnb.core.events import RequestCancelled
    >>> one, two = (RequestCancelled(time_ns=time_ns, model="m", version=1, serial=1) for time_ns in (20, 10))
    >>> [(event.time_ns, event.serial) for event in merge_events({"a": [one], "b": [two]})]
    [(10, 1), (20, 2)]
    """
    tagged = [(event, replica) for replica, own in events.items() for event in own]
    tagged.sort(key=lambda pair: pair[0].time_ns)
    serials, batches = _Numbers(count(1).__next__), _Numbers(count(1).__next__)
    return [_renumbered(event, replica, serials, batches) for event, replica in tagged]


#: The new number of each request or batch, by replica and number there; the next number for an unknown request.
_Numbers = defaultdict[tuple[str, int], int]


def _renumbered(event: Event, replica: str, serials: _Numbers, batches: _Numbers) -> Event:
    changes: dict[str, Any] = {}
    if hasattr(event, "serial"):
        changes["serial"] = serials[replica, event.serial]
    if hasattr(event, "instance"):
        changes["instance"] = instance_on(replica, event.instance)
    if isinstance(event, StepSent):
        changes["step_serial"] = serials[replica, event.step_serial]
    elif isinstance(event, BatchSent):
        members = (None if serial is None else serials[replica, serial] for serial in event.members)
        changes |= {"batch": batches[replica, event.batch], "members": tuple(members)}
    elif isinstance(event, BatchExecuted):
        requests = tuple((serials[replica, serial], *rest) for serial, *rest in event.requests)
        changes |= {"batch": batches[replica, event.batch], "requests": requests}
    return replace(event, **changes)


def _shifted(event: Event, shift_ns: int) -> Event:
    """Return an event on the clock of another machine."""
    if not shift_ns:
        return event
    names = {field.name for field in fields(event)}.intersection(_TIMES)
    changes: dict[str, Any] = {name: getattr(event, name) + shift_ns for name in names}
    if isinstance(event, BatchExecuted):
        changes["requests"] = tuple(
            (serial, rows, received_ns + shift_ns, queued_ns + shift_ns, failed)
            for serial, rows, received_ns, queued_ns, failed in event.requests
        )
    return replace(event, **changes)
