"""A running sweep: tries configurations on its own thread."""

from __future__ import annotations

import asyncio
import atexit
import html
import math
import os
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from tritonnb.core.copies import OfThisProcess
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.forks import call_in_children
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.load.notebook_wait import failed_future, time_left, wait
from tritonnb.lab.load.sweep_result import SweepResult, trial_text
from tritonnb.lab.load.trial import StoppedError, Stopping, Trial

if TYPE_CHECKING:
    from IPython.display import DisplayHandle
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A live sweep measures every eighth configuration, and at least two; it predicts the others.
_MEASURED, _LEAST = 8, 2
#: Configurations by model: of a single model, or of an ensemble after the models of its steps.
Configs = dict[str, pb.ModelConfig]
RunTrial = Callable[[dict[str, object], Configs], Trial]
#: Edits, and the configurations with them.
Grid = list[tuple[dict[str, object], Configs]]


@dataclass(frozen=True)
class SweepPlan:
    """How the configurations of a sweep are tried.

    Attributes
    ----------
    runners : list of callable
        The first runs the trial of each configuration; the others repeat the running configuration, for the noise.
    max_rate, service_times
        As for `SweepResult`.
    rank : callable or None
        Predicts the configurations that were not tried from those that were, the best first; None to try all.
    """

    runners: list[RunTrial]
    max_rate: float = math.inf
    service_times: dict[int, float] = field(default_factory=dict)
    rank: Callable[[list[Trial]], list[Trial]] | None = None


@with_short_tracebacks
class Sweep(OfThisProcess):
    """A running or finished sweep.

    Use ``sweep.wait()`` in a cell, ``await sweep`` in an event loop, and ``sweep.stop()`` to end it with the trials so
    far. `result` can be read at any time; `apply`, `plot` and `export` wait for the end and do the same as those of
    `SweepResult`.

    Attributes
    ----------
    tried, total : int
        Configurations tried so far, and in total.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     sweep = tnb.sweep(server["double"], count=[1, 2], rate=100, requests=200, service=tnb.fixed(8))
    ...     _ = sweep.wait()
    >>> sweep.tried == sweep.total
    True
    >>> sweep.stop()
    >>> len(sweep.plot().axes), len(sweep.plot_pareto().axes)
    (1, 1)
    """

    def __init__(
        self,
        grid: Grid,
        begin: Callable[[Stopping], SweepPlan],
        make_result: Callable[[list[Trial], list[Trial], SweepPlan], SweepResult],
        restored: Callable[[], AbstractContextManager[None]] | None,
    ) -> None:
        self.total = len(grid)
        self._grid = grid  # the running configuration first
        self._begin = begin
        self._make_result = make_result
        self._restored = restored or nullcontext
        self._began_s = time.monotonic()
        self._runs = 0  # trials that will be run, once that is known
        self._trials: list[Trial] = []
        self._repeated: list[Trial] = []
        self._plan = SweepPlan([])
        self._stopping = Stopping()
        self._outputs: list[DisplayHandle] = []
        self._finished: Future[SweepResult] = Future()
        self._finished.set_running_or_notify_cancel()  # so that waiting code cannot cancel it
        self._thread = Thread(target=self._run, name="tritonnb-sweep", daemon=True)
        call_in_children(self._forked)
        if restored is not None:
            atexit.register(self._stop_at_exit)
        self._thread.start()

    def _not_copied(self) -> tuple[str, str]:
        return "sweep", "wait for its end, and copy its result (sweep.wait())"

    def _forked(self) -> None:
        """Fail a running sweep in a forked child, where its thread does not exist."""
        self._stopping = Stopping()
        if not self.done:
            self._finished = failed_future("sweep")

    @property
    def tried(self) -> int:
        """Configurations tried so far."""
        return len(self._trials)

    @property
    def done(self) -> bool:
        """True if the sweep has finished."""
        return self._finished.done()

    @property
    def result(self) -> SweepResult:
        """The result so far.

        Raises
        ------
        InvalidArgumentError
            If no other configuration than the running one has been tried yet.
        """
        trials = list(self._trials)
        if len(trials) < 2:
            raise InvalidArgumentError(
                "result expected at least one tried configuration, got none yet: wait for the sweep"
            )
        return self._make_result([trials[0], *self._repeated], trials[1:], self._plan)

    def wait(self, timeout: float | None = None) -> SweepResult:
        """Wait until the sweep has finished; a notebook shows its progress.

        ``KeyboardInterrupt`` stops the sweep; the trials so far stay in `result`.

        Parameters
        ----------
        timeout : float, optional
            Seconds.

        Raises
        ------
        TimeoutError
            If it has not finished by then; it keeps running.
        """
        return wait(self._finished, timeout, lambda: f"sweep: {self._progress()}", self.stop)

    def __await__(self) -> Generator[object, None, SweepResult]:
        return asyncio.wrap_future(self._finished).__await__()

    @property
    def best(self) -> Trial:
        """`SweepResult.best`, after waiting for the end."""
        return self.wait().best

    def plot(self, ax: Axes | None = None) -> Figure:
        """`SweepResult.plot`, after waiting for the end.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            To draw into.
        """
        figure: Figure = self.wait().plot(ax)
        return figure

    def plot_pareto(self, ax: Axes | None = None) -> Figure:
        """`SweepResult.plot_pareto`, after waiting for the end.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            To draw into.
        """
        figure: Figure = self.wait().plot_pareto(ax)
        return figure

    def plot_throughput_latency(self, ax: Axes | None = None) -> Figure:
        """`SweepResult.plot_throughput_latency`, after waiting for the end.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            To draw into.
        """
        figure: Figure = self.wait().plot_throughput_latency(ax)
        return figure

    def apply(self) -> str:
        """`SweepResult.apply`, after waiting for the end."""
        return self.wait().apply()

    def export(self, repository: str | os.PathLike[str]) -> Path:
        """`SweepResult.export`, after waiting for the end.

        Parameters
        ----------
        repository : path
            It is created if necessary.
        """
        return self.wait().export(repository)

    def stop(self) -> None:
        """Start no further trials, without waiting for the current one; a second call has no effect."""
        self._stopping.set()

    def _progress(self) -> str:
        run = len(self._trials) + len(self._repeated) + self._stopping.share()
        left = time_left(run, self._runs, time.monotonic() - self._began_s)
        progress = f"{self.tried} of {self.total} configurations tried{left}"
        return f"{progress}; {trial_text(self._trials[-1])}" if self._trials else progress

    def __repr__(self) -> str:
        return repr(self.result) if self.done else f"<Sweep: {self._progress()}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_() if self.done else html.escape(self._progress())

    def _ipython_display_(self) -> None:
        from IPython.display import DisplayHandle

        output = DisplayHandle()
        output.display({"text/html": self._repr_html_(), "text/plain": repr(self)}, raw=True)
        if not self.done:
            self._outputs.append(output)

    def _update_outputs(self, markup: str, text: str) -> None:
        """Replace the contents of the outputs that show the sweep; may be called on any thread."""
        for output in list(self._outputs):
            output.update({"text/html": markup, "text/plain": text}, raw=True)

    def _run(self) -> None:
        try:
            self._try()
            result = self.result
        except BaseException as error:
            self._update_outputs(html.escape(f"sweep failed: {error}"), f"<Sweep: failed: {error}>")
            self._finished.set_exception(error)
        else:
            self._update_outputs(result._repr_html_(), repr(result))
            self._finished.set_result(result)
        finally:
            atexit.unregister(self._stop_at_exit)

    def _try(self) -> None:
        with suppress(StoppedError), self._restored():
            self._plan = self._begin(self._stopping)
            run_trial, *repetitions = self._plan.runners
            running, *others = self._grid
            rank = self._plan.rank if len(others) > _LEAST else None
            least = len(others) if rank is None else max(_LEAST, len(others) // _MEASURED)
            self._began_s, self._runs = time.monotonic(), 1 + len(repetitions) + least
            self._add(run_trial(*running))
            for repeat in repetitions:
                self._repeated.append(repeat(*running))
                self._stopping.end_trial()
            if rank is None:
                for candidate in others:
                    self._add(run_trial(*candidate))
                return
            predicted = rank(self._trials)
            while predicted:
                best, *predicted = predicted
                self._add(run_trial(best.edits, dict(best.configs)))
                if len(self._trials) > least and any(trial.meets for trial in self._trials[1:]):
                    break
                predicted = rank(self._trials)
            self._trials += predicted

    def _add(self, tried: Trial) -> None:
        self._trials.append(tried)
        self._stopping.end_trial()
        self._update_outputs(html.escape(self._progress()), repr(self))
        if self._stopping.is_set():
            raise StoppedError

    def _stop_at_exit(self) -> None:
        """End a sweep, and let it restore the model, before Python exits."""
        self.stop()
        self._thread.join()
