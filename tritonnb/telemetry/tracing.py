"""Traces of single requests, in Triton's file format.

The endpoints record when bytes are received and sent; everything in between is taken from the event stream, to which
the tracer is attached only while a request is traced. A trace file is a JSON list of small objects that contain
the id of their trace: its model, its time stamps (nanoseconds of the monotonic clock), and with the level TENSORS its
tensors. In the mode ``opentelemetry`` the same objects become spans when their trace is complete.

Implements the trace extension; the format is the one of Triton's mode ``triton``.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from tritonnb.core.events import BatchExecuted, BatchSent, RequestArrived
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.packed_events import Packed, facts_of, members_of, positions, unpack
from tritonnb.core.paths import working_directory
from tritonnb.telemetry.spans import SpanExporter
from tritonnb.telemetry.stream import EventStream
from tritonnb.telemetry.trace_entry import BATCH_SENT, TraceBatch, TraceEntry, TraceTensor
from tritonnb.telemetry.trace_settings import OPENTELEMETRY, TraceChanges, TraceOptions, TraceSetting, TraceSettings

logger = logging.getLogger(__name__)

_SENT_NS: int = positions(BatchSent).time_ns
_RULE: int = positions(BatchSent).rule


class Trace:
    """A traced request; requests that it causes (steps of an ensemble, BLS calls) have child traces.

    Attributes
    ----------
    id : int
    model : str
    setting : TraceSetting
        The setting that sampled it.
    serials : set of int
        Numbers of the request and of the child traces' requests in the event stream.
    root : Trace
        The trace of the client's request.
    context : opentelemetry.context.Context or None
        The client's, in which the request's span belongs.
    sent : Packed
        The event `BatchSent` of its batch; empty until then.
    """

    def __init__(self, tracer: Tracer, model: str, setting: TraceSetting, context: object | None = None) -> None:
        self.id = next(tracer.ids)
        self.model = model
        self.setting = setting
        self.context = context
        self.root = self
        self.sent: Packed = ()
        self.serials: set[int] = set()
        self._descendants: list[Trace] = []
        self._is_complete = False
        self._parent_id = 0
        self._tracer = tracer
        self._entries: list[TraceEntry] = []
        self._stamps = "TIMESTAMPS" in setting.options.levels
        self._tensors = "TENSORS" in setting.options.levels

    def stamp(self, name: str, ns: int) -> None:
        """Record a time stamp."""
        if self._stamps:
            self._entries.append({"id": self.id, "timestamps": [{"name": name, "ns": ns}]})

    def submit(self, accept: Callable[[InferRequest], None], request: InferRequest) -> None:
        """Record a request while its model accepts it, and its responses from then on.

        Parameters
        ----------
        accept : callable
            Called with the request, as for an untraced one; `ServedModel.submit` calls this method.
        request : InferRequest

        Raises
        ------
        TritonError
            As raised by ``accept``.
        """
        request.trace = self
        request.observe_responses(self._record_response)
        at = len(self._entries)
        outer, self._tracer.submitting = self._tracer.submitting, self
        try:
            accept(request)
        finally:
            self._tracer.submitting = outer
        later, self._entries = self._entries[at:], self._entries[:at]
        described: TraceEntry = {
            "id": self.id,
            "model_name": request.model_name,
            "model_version": request.model_version,
        }
        if request.id:
            described["request_id"] = _valid_utf8(request.id)
        if self._parent_id:
            described["parent_id"] = self._parent_id
        self._entries.append(described)
        self.stamp("REQUEST_START", request.received_ns)
        self.stamp("QUEUE_START", request.queued_ns or request.received_ns)
        for tensor in request.inputs.values():
            self._tensor("TENSOR_QUEUE_INPUT", tensor)
        self._entries += later

    def executed(self, event: BatchExecuted, index: int) -> None:
        """Add an execution of the request, which is number ``index`` of the batch."""
        if self.sent and self._tracer.spans is None:
            self.stamp(BATCH_SENT, self.sent[_SENT_NS])
        elif self.sent:
            self._entries.append({"id": self.id, "batch": _batch_of(event, self.sent, index)})
        self.stamp("COMPUTE_START", event.exec_start_ns)
        self.stamp("COMPUTE_INPUT_END", event.compute_start_ns)
        self.stamp("COMPUTE_OUTPUT_START", event.compute_end_ns)
        self.stamp("COMPUTE_END", event.exec_end_ns)

    def child(self, request: InferRequest) -> Trace | None:
        """Return the trace of a request that this one causes; None if the client has its response already."""
        if self.root._is_complete:
            return None
        child = Trace(self._tracer, request.model_name, self.setting)
        child.root = self.root
        child._parent_id = self.id
        self.root._descendants.append(child)
        return child

    def responded(self, response: InferResponse, ns: int) -> None:
        """Record a response that the model sent at a time."""
        for tensor in response.outputs:
            self._tensor("TENSOR_BACKEND_OUTPUT", tensor)
        if self.root is self and not response.empty:
            self.stamp("INFER_RESPONSE_COMPLETE", ns)
        if response.final:
            self.stamp("REQUEST_END", ns)

    def _record_response(self, request: InferRequest, response: InferResponse) -> None:
        self.responded(response, time.monotonic_ns())

    def finish(self) -> None:
        """End the trace and write it."""
        self._is_complete = True
        self._tracer.write_trace(
            self, [*self._entries, *chain.from_iterable(descendant._entries for descendant in self._descendants)]
        )

    def _tensor(self, activity: str, tensor: Tensor) -> None:
        if self._tensors:
            described: TraceTensor = {
                "name": tensor.name,
                "data": _data(tensor),
                "shape": ",".join(map(str, tensor.array.shape)),
                "dtype": tensor.datatype.name,
            }
            self._entries.append({"id": self.id, "activity": activity, "tensor": described})


class Tracer:
    """A tracer that selects requests and writes their traces; used only on the server's event loop, except `flush`.

    Attributes
    ----------
    settings : TraceSettings
    ids : iterator of int
        The numbers of new traces.
    active : bool
        Whether any request may be traced.
    files : TraceFiles
        Receives the others.
    spans : SpanExporter or None
        Receives the traces in the mode ``opentelemetry``.
    submitting : Trace or None
        The trace whose request is being submitted.
    file_suffix : str
        Appended to the names of trace files, so that servers with the same settings do not write to the same file.
    """

    def __init__(self, stream: EventStream, options: TraceOptions) -> None:
        self.settings = TraceSettings(options, self._retire)
        self.active = bool(options.levels)
        self.submitting: Trace | None = None
        self.file_suffix = ""
        self._stream = stream
        self.ids = itertools.count(1)
        #: Traces by the serials of their requests.
        self._followed: dict[int, Trace] = {}
        self._open = 0
        self.files = TraceFiles()
        self.spans = SpanExporter(options.exporting) if options.mode == OPENTELEMETRY else None

    def update(self, model: str, changes: TraceChanges) -> None:
        """Change settings: `TraceSettings.update`."""
        self.settings.update(model, changes)
        self.active = any(known.options.levels for known in self.settings.all())

    def sample(self, model: str, headers: Mapping[str, str]) -> Trace | None:
        """Start the trace of a request; None if it is not traced."""
        setting = self.settings.for_model(model)
        context = self.spans.context(headers) if self.spans is not None else None
        if not setting.sample(requested=context is not None):
            return None
        self._open += 1
        if self._open == 1:
            self._stream.attach(self._on_event)
        return Trace(self, model, setting, context)

    def write_trace(self, trace: Trace, entries: list[TraceEntry]) -> None:
        """Write a complete trace, or pass it to the exporter."""
        for serial in trace.serials:
            del self._followed[serial]
        self._open -= 1
        if not self._open:
            self._stream.detach(self._on_event)
        setting = trace.setting
        setting.collected += 1
        if self.spans is not None:
            self.spans.export(entries, trace.context)
        elif entries:
            setting.written.append(",".join(map(_json, entries)))
        in_force = any(setting is known for known in self.settings.all())
        if setting.due:
            self._write(setting, numbered=True)
        elif not in_force and setting.collected == setting.sampled:
            self._retire(setting)

    def close(self) -> None:
        """Pass on the traces that have not been written."""
        for setting in self.settings.all():
            self._retire(setting)

    def flush(self) -> None:
        """Wait until what was passed on is written or sent; called after `close`, on a thread that may wait."""
        self.files.close()
        if self.spans is not None:
            self.spans.close()

    def _on_event(self, packed: Packed) -> None:
        kind = packed[0]
        if kind == RequestArrived.__name__:
            trace = self.submitting
            if trace is not None and packed[2] == trace.model:
                self._followed[packed[4]] = trace
                trace.root.serials.add(packed[4])
        elif kind == BatchSent.__name__ and self._followed:
            for member in members_of(packed):
                if member in self._followed:
                    self._followed[member].sent = packed
        elif kind == BatchExecuted.__name__ and self._followed:
            executed = unpack(packed)
            assert isinstance(executed, BatchExecuted)
            for index, (serial, *_) in enumerate(executed.requests):
                if serial in self._followed:
                    self._followed[serial].executed(executed, index)

    def _retire(self, setting: TraceSetting) -> None:
        if setting.written:
            self._write(setting, numbered=setting.options.log_frequency > 0)

    def _write(self, setting: TraceSetting, numbered: bool) -> None:
        entries = ",".join(setting.written)
        setting.written.clear()
        path = setting.options.file + self.file_suffix
        self.files.write(path, entries, numbered)


class TraceFiles:
    """The trace files of a server, written on one thread in the order of the calls: a file system may be slow."""

    def __init__(self) -> None:
        self._files: dict[str, _TraceFile] = {}
        # Clients see the path as it was given, as on Triton; it is the path at the start.
        self._directory = working_directory()
        self._writes: SimpleQueue[tuple[str, str, bool] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None  # only once there is something to write

    def write(self, path: str, entries: str, numbered: bool) -> None:
        """Have entries appended to a file, or written to the next numbered one; an error is logged."""
        self._writes.put((path, entries, numbered))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tritonnb traces", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait until everything is written, and end the thread, which a later call starts again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._writes.put(None)
            thread.join()

    def _run(self) -> None:
        while (item := self._writes.get()) is not None:
            path, entries, numbered = item
            file = self._files.setdefault(path, _TraceFile(self._directory / path))
            try:
                file.write(entries, numbered)
            except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
                logger.error("failed creating trace file: %s", error)


class _TraceFile:
    """A trace file, and the numbered files after it; each is valid JSON at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self._begun = False

    def write(self, entries: str, numbered: bool) -> None:
        if numbered:
            _write_whole(self._path.with_name(f"{self._path.name}.{self._number}"), entries)
            self._number += 1
        elif not self._begun:
            _write_whole(self._path, entries)
            self._begun = True
        else:
            with self._path.open("rb+", buffering=0) as file:
                end = file.seek(-1, 2)  # over the closing bracket
                try:
                    _write_all(file, f",{entries}]".encode())
                except OSError:  # a full disk takes a part
                    file.seek(end)
                    file.write(b"]")
                    file.truncate()
                    raise


def _write_whole(path: Path, entries: str) -> None:
    try:
        with path.open("wb", buffering=0) as file:
            _write_all(file, f"[{entries}]".encode())
    except OSError:
        if path.is_file():  # no device
            path.unlink()
        raise


def _write_all(file: io.RawIOBase, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) or 0 :]


def _batch_of(event: BatchExecuted, sent: Packed, index: int) -> TraceBatch:
    _, request_size, _, queued_ns, _ = event.requests[index]
    return {
        "id": event.batch,
        "size": event.size,
        "instance": event.instance,
        "sent_ns": sent[_SENT_NS],
        "rule": sent[_RULE],
        "facts": json.dumps(facts_of(sent), separators=(",", ":")),
        "index": index,
        "request_size": request_size,
        "wait_ns": event.exec_start_ns - queued_ns,
    }


def _json(entry: TraceEntry) -> str:
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False)


def _valid_utf8(text: str) -> str:
    """Replace bytes that are not UTF-8, which trace files must be; over HTTP, they arrive as surrogate escapes."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _data(tensor: Tensor) -> str:
    """Return the elements as Triton prints them; it omits elements of FP16 and BF16."""
    form = tensor.datatype.json
    if not form:
        return ""
    flat = tensor.datatype.to_values(np.asarray(tensor.array).reshape(-1))
    if form == "string":
        return ",".join(f'"{bytes(element).decode("utf-8", "replace")}"' for element in flat)
    if form != "number":
        return ",".join(str(int(element)) for element in flat)
    return ",".join(f"{element:g}" for element in flat.tolist())
