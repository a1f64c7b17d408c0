"""`Twin.verify`: compare a prediction with what a server does under the predicted configuration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tritonnb.client.model import Model
from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.html_table import html_report
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.load.examples import Inputs, Shapes
from tritonnb.lab.load.load import config_of, find_model, load, step_of
from tritonnb.lab.load.notebook_wait import wait
from tritonnb.lab.load.trial import StoppedError, Stopping, Trial, apply_config, restored, run_live_trial, wait_for_load
from tritonnb.lab.load.workload import LoadOptions
from tritonnb.lab.prediction.prediction import SHARE, Figures, Prediction, figure_names
from tritonnb.lab.prediction.timed_models import EditsByModel, TimedModels, recorded_latencies
from tritonnb.lab.prediction.twin import Twin
from tritonnb.lab.simulation.arrivals import as_arrivals
from tritonnb.model_config.diff import replaced
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.recording import Recording
from tritonnb.server.model_handle import ModelHandle

#: Requests for each instance before the measurement, since the first executions of an instance take longer.
_WARM_UP = 4
#: The figures that a server is compared in.
COMPARED = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "throughput", "mean_batch_size")
#: A smaller relative difference of the execution times is no remark.
_SAME_SPEED = 0.05
#: The fields of a configuration that a twin simulates.
_SIMULATED = {"max_batch_size", "dynamic_batching", "sequence_batching", "instance_group"}


@extensible
@dataclass(frozen=True)
class Verification:
    """A prediction beside what the server did; see `Twin.verify`.

    Attributes
    ----------
    edits : dict
        The edited fields of the configuration; of a pipeline by model.
    prediction : Prediction
    measured : dict of str to float
        By the names of the prediction's figures.
    trial : Trial
        The load: its latencies at the client, failed requests, and the recording.
    recording : Recording or None
        The server's recording, with the measured latencies, as in the twin's. Without a recording, they are the
        client's and contain the way to the server.
    arrived : Prediction or None
        The prediction for the requests as they reached the server, which may be later than planned on a busy
        machine. None without a recording of the server, or if it was interrupted.
    relative_duration : float or None
        The median time of an execution relative to the predicted time: 1.1 if the machine was 10 % slower than in the
        twin's recording. None without a recording of the server.
    unsent : int
        The requests that were not sent because of an interrupt; they are part of the prediction.

    Examples
    --------
    >>> from tritonnb import FP32, Server, fixed, poisson, simulate
    >>> twin = simulate("max_batch_size: 4 dynamic_batching { }", poisson(500, 0.1, seed=1), fixed(1)).twin()
    >>> with Server(port=0) as server:
    ...     @server.model(max_batch_size=4, dynamic_batching={})
    ...     def double(X: FP32[1]) -> FP32[1]:
    ...         return X * 2
    ...     result = twin.verify(server["double"])
    >>> "of 5 figures within the range" in result.verdict()
    True
    """

    plot: ClassVar[Callable[..., Any]]

    edits: dict[str, Any]
    prediction: Prediction
    measured: dict[str, float]
    trial: Trial
    recording: Recording | None
    arrived: Prediction | None
    relative_duration: float | None
    unsent: int = 0

    @property
    def by_server(self) -> bool:
        """True if the latencies are those of `recording`."""
        return self.recording is not None

    @property
    def errors(self) -> dict[str, float]:
        """The relative error of each predicted value: 0.1 if it is 10 % too high."""
        return self._errors_of(self.prediction)

    def _errors_of(self, prediction: Prediction) -> dict[str, float]:
        return {name: prediction.ranges[name].value / value - 1 for name, value in self.measured.items() if value}

    @property
    def outside(self) -> list[str]:
        """The figures that lie outside their range."""
        return self._outside_of(self.prediction)

    @property
    def outside_arrived(self) -> list[str]:
        """The figures that lie outside the range for the requests as they reached the server, if it is known."""
        return self._outside_of(self.arrived or self.prediction)

    def _outside_of(self, prediction: Prediction) -> list[str]:
        return [name for name, value in self.measured.items() if value not in prediction.ranges[name]]

    def verdict(self) -> str:
        """Summarize the comparison in one sentence."""
        inside = len(self.measured) - len(self.outside)
        text = f"{inside} of {len(self.measured)} figures within the range; largest error {_largest(self.errors)}."
        failed = f" {self.trial.refused} requests failed." if self.trial.refused else ""
        unsent = f" Interrupted: {self.unsent} requests were predicted, but not sent." if self.unsent else ""
        client = "" if self.by_server else " Measured by the client, with the way to the server."
        return text + self._remark_on_arrivals() + self._remark_on_duration() + failed + client + unsent

    def _remark_on_arrivals(self) -> str:
        if self.arrived is None:
            return ""
        inside = len(self.measured) - len(self.outside_arrived)
        error = _largest(self._errors_of(self.arrived))
        return f" For the requests as they reached the server: {inside} within the range, largest error {error}."

    def _remark_on_duration(self) -> str:
        if self.relative_duration is None or abs(self.relative_duration - 1) < _SAME_SPEED:
            return ""
        change = f"{abs(self.relative_duration - 1):.0%} {'more' if self.relative_duration > 1 else 'less'} time"
        return f" Executions took {change} than in the twin's recording."

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        outside, errors = self.outside, self.errors
        return [
            (name, str(self.prediction.ranges[name]), f"{value:.2f}", f"{errors.get(name, np.nan):+.0%}",
             "outside" if name in outside else "within")
            for name, value in self.measured.items()
        ]  # fmt: skip

    def __repr__(self) -> str:
        head = ("", f"predicted ({SHARE:.0%} range)", "measured", "error", "range")
        width = max(16, *map(len, self.measured))
        lines = [f"{a:<{width}}  {b:>34}  {c:>10}  {d:>6}  {e}" for a, b, c, d, e in (head, *self._rows())]
        return "\n".join([self.verdict(), *lines, *self.prediction.remarks])

    def _repr_html_(self) -> str:
        head = ("", "predicted", "measured", "error", "range")
        return html_report(self.verdict(), head, self._rows(), self.prediction.remarks)


@with_short_traceback
@with_checked_types
def verify(
    twin: Twin,
    model: Model | str,
    models: EditsByModel | None = None,
    *,
    rate: float | None = None,
    arrivals: Iterable[Arrival | tuple[float, int]] | None = None,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    seed: int = 0,
    **edits: Any,
) -> Verification:
    """Apply a configuration to a running model, send it the recorded arrivals, and compare with the prediction.

    The configuration that the model has now is restored at the end, even after an error or an interrupt, after which
    the requests that have run are compared. The model runs
    with the scheduling, the instances and the batch size that were predicted; all else stays as it is. Of a pipeline,
    this holds for the models of all steps.

    Parameters
    ----------
    model : ModelHandle, RemoteModelHandle or str
        ``server["NAME"]``, ``tnb.connect(URL)["NAME"]``, or a URL as for `load`. Another server must have been started
        with explicit model control. Its latencies are read from its traces, if this process can read those, and
        otherwise measured by the client.
    models
        Of a pipeline, the edits by model, as for `Twin.predict`.
    rate, arrivals, seed
        As for `Twin.predict`; by default the recorded arrivals.
    inputs, shapes
        As for `load`.
    **edits
        As for `Twin.predict`.

    Returns
    -------
    Verification

    Raises
    ------
    InvalidArgumentError
        As of `Twin.predict`, or if no request succeeds.
    UnsupportedError
        If another server does not accept configurations.

    Examples
    --------
    >>> import time, tritonnb as tnb
    >>> server = tnb.serve(port=0)
    >>> @server.model(max_batch_size=4, dynamic_batching={})
    ... def sleeps(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...     time.sleep(0.002)
    ...     return X
    >>> recording = tnb.load(server["sleeps"], rate=200, arrivals="poisson", requests=60).wait().recording
    >>> result = recording.twin().verify(server["sleeps"], max_queue_delay_microseconds=2000)
    >>> sorted(result.measured)
    ['latency_p50_ms', 'latency_p95_ms', 'latency_p99_ms', 'mean_batch_size', 'throughput']
    >>> server["sleeps"].config.dynamic_batching.max_queue_delay_microseconds
    0
    >>> server.stop()
    """
    sent = twin.arrivals(rate) if arrivals is None else list(as_arrivals(arrivals))
    prediction = twin.predict(models, rate=rate, arrivals=None if arrivals is None else sent, seed=seed, **edits)
    if prediction.interrupted:  # nothing has been measured yet
        raise KeyboardInterrupt
    target, stopping = find_model(model), Stopping()
    others = sorted(twin.models.sent.keys() - {twin.models.model})
    if others:
        raise InvalidArgumentError(
            f"verify expected a recording in which clients call '{twin.models.model}' only, got requests to "
            f"'{others[0]}' as well"
        )
    predicted = twin.edited(edits, models)
    options: LoadOptions = {"inputs": inputs, "shapes": shapes, "seed": seed}
    said: dict[str, Any] = dict(models or edits)

    def measure() -> tuple[Trial, Recording | None]:
        # The name of a recorded single model may differ from the name of the model that is changed.
        names = predicted.executed if predicted.is_pipeline else []
        steps = [(step_of(target, name), name) for name in names] or [(target, predicted.model)]
        applied: dict[str, pb.ModelConfig] = {}
        with restored(target, names):
            for step, name in steps:
                applied[step.name] = replaced(config_of(step), predicted.configs[name], _SIMULATED)
                apply_config(step, applied[step.name])
            instances = predicted.instances
            warm_up: LoadOptions = {**options, "clients": instances, "requests": _WARM_UP * instances}
            wait_for_load(load(target, **warm_up), stopping)
            traffic: LoadOptions = {**options, "arrivals": sent}
            run = partial(run_live_trial, target, traffic, None, stopping, said, applied, keeps_part=True)
            return _recorded_trial(model, run, len({arrival.rows for arrival in sent}) > 1, predicted.is_pipeline)

    begun_s, span_s = time.monotonic(), sent[-1].time_us / 1e6

    def progress() -> str:
        left_s = max(0.0, begun_s + span_s - time.monotonic())
        return f"verify: {len(sent)} requests in {span_s:.0f} s, about {left_s:.0f} s left"

    # An interrupt stops the load. Leaving the block waits for the thread, which restores the configuration.
    with ThreadPoolExecutor(1, "tritonnb-verify") as worker:
        measuring = worker.submit(measure)
        try:
            trial, recording = wait(measuring, None, progress, stopping.set)
        except KeyboardInterrupt:
            try:
                trial, recording = measuring.result()  # the requests until then
            except StoppedError:
                raise KeyboardInterrupt from None
    if not len(trial.latencies_ms):
        raise InvalidArgumentError(f"model '{target.name}': verify expected requests that succeed, but all failed")
    known, measured = None, _client_figures(trial, predicted)
    if recording is not None:
        known = TimedModels.of(recording, "verify")
        measured = _server_figures(recording, known)
    arrived = None
    with suppress(KeyboardInterrupt):  # what was measured is not lost
        arrived = (
            None
            if known is None or stopping.is_set()
            else twin.predict(models, arrivals=known.arrivals, seed=seed, **edits)
        )
    relative = None if known is None else predicted.relative_duration(known)
    unsent = len(sent) - len(trial.latencies_ms) - trial.refused if stopping.is_set() else 0
    return Verification(said, prediction, measured, trial, recording, arrived, relative, unsent)


def _largest(errors: dict[str, float]) -> str:
    name, error = max(errors.items(), key=lambda item: abs(item[1]))
    return f"{error:+.0%} ({name})"


def _recorded_trial(
    model: Model | str, run: Callable[[], Trial], rows: bool, is_pipeline: bool
) -> tuple[Trial, Recording | None]:
    """Run a trial; return it, and the recording of another server if this process can read its traces."""
    traced, tracing = None, ExitStack()
    if not isinstance(model, str | ModelHandle):
        with suppress(TritonError):
            traced = tracing.enter_context(model.server.record(None if is_pipeline else model.name, rows=rows))
    try:
        trial = run()
    finally:
        with suppress(TritonError):  # only the error of reading the traces
            tracing.close()
    recording = trial.recording or traced
    return trial, recording if recording is not None and recording.requests else None


def _server_figures(recording: Recording, models: TimedModels) -> dict[str, float]:
    figures = Figures.from_latencies(recorded_latencies(recording, models), models.instances_of(1))
    return {name: figures.value(name) for name in _compared(models)}


def _compared(models: TimedModels) -> list[str]:
    """Return the figures that a server is compared in; of a pipeline, the mean batch of each step."""
    if len(models.executed) == 1:
        return list(COMPARED)
    return [*COMPARED[:-1], *(name for name in figure_names(models.executed) if name.endswith(f": {COMPARED[-1]}"))]


def _client_figures(trial: Trial, models: TimedModels) -> dict[str, float]:
    p50_ms, p95_ms, p99_ms = map(float, np.quantile(trial.latencies_ms, [0.5, 0.95, 0.99]))
    values = (p50_ms, p95_ms, p99_ms, trial.rate, trial.mean_batch_size)
    measured = dict(zip(COMPARED, values, strict=True))
    if models.is_pipeline:  # the client does not see the batches of steps
        del measured["mean_batch_size"]
    return measured
