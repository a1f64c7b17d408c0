"""`sweep`: which configuration serves a model best, in virtual time from measured service times, or live."""

from __future__ import annotations

import asyncio
import html
import math
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.edits import edited
from tritonnb.model_config.validate import validate
from tritonnb.profile import trial
from tritonnb.profile.constraint import Constraint
from tritonnb.profile.examples import Inputs, Shapes
from tritonnb.profile.progress import wait
from tritonnb.profile.service_times import measure
from tritonnb.profile.sweep_result import SweepResult, rank_by, told
from tritonnb.profile.trial import Stopped, Trial
from tritonnb.profile.workload import workload
from tritonnb.simulation.arrivals import Arrival, Arrivals, ClosedLoop
from tritonnb.simulation.service import Service, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tritonnb.model_handle import ModelHandle

Way = Callable[[dict[str, Any], pb.ModelConfig], Trial]


def sweep(
    model: ModelHandle,
    *,
    constraint: str | None = None,
    rate: float | None = None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None = None,
    clients: int | None = None,
    requests: int = 4000,
    size: int | None = None,
    sequence_length: int = 0,
    sequences: int = 4,
    service: Service | None = None,
    live: bool = False,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    seed: int = 0,
    **fields: Any,
) -> Sweep:
    """Try configurations of a model in the background, and say which is best.

    With a workload (``rate``, ``clients`` or ``arrivals``) every configuration meets the same one: the best
    of those that obey the constraint answers soonest (an open loop: lowest p99) or most (a closed one).
    With a constraint alone, the best is the one that obeys it at the highest rate of Poisson arrivals.

    Virtual time does not know that instances slow each other down where they share cores: look at the best
    ones again with ``live=True``.

    Parameters
    ----------
    model : ModelHandle
    constraint : str, optional
        Such as ``"p99 < 50 ms"``; see `Constraint`.
    rate, arrivals, clients, size, sequence_length, sequences, inputs, shapes, seed
        As for `load`, but ``arrivals`` goes to ``"poisson"`` where only a rate is given, and of a stateful model
        ``sequence_length`` must be said: what is best depends on it.
    requests : int, optional
        For each configuration.
    service : Service, optional
        By default measured, as by `service_times`.
    live : bool, optional
        Apply each configuration to the running model and send real traffic; the model ends as it was.
    **fields
        Fields of the configuration, as for `Recording.what_if`, each with a list of values:
        ``max_queue_delay_microseconds=[0, 1000]``, ``count=[1, 2]``, ``preferred_batch_size=[[4], [4, 8]]``.

    Returns
    -------
    Sweep
        At once; it has begun.

    Raises
    ------
    InvalidArgumentError
        If arguments contradict each other, a field does not exist, or a configuration is refused.

    Examples
    --------
    >>> found = tnb.sweep(server["digits"], count=[1, 2], constraint="p99 < 50 ms").wait()  # doctest: +SKIP
    >>> found.apply()  # doctest: +SKIP
    """
    bound = None if constraint is None else Constraint.parse(constraint)
    if arrivals is not None and not isinstance(arrivals, (str, ClosedLoop)):
        arrivals = list(arrivals)  # every configuration meets them
    open_loop = clients is None and not isinstance(arrivals, ClosedLoop)
    traffic = {
        "rate": rate,
        "arrivals": "poisson" if open_loop and arrivals is None else arrivals,
        "clients": clients,
        "duration": None,
        "requests": requests,
        "size": size,
        "burst": 8,
        "sequence_length": sequence_length,
        "sequences": sequences,
        "seed": seed,
    }
    grid = _grid(model, fields)
    running = grid[0][1]
    if running.HasField("sequence_batching") and not sequence_length and not isinstance(arrivals, list):
        raise InvalidArgumentError(f"model '{model.name}' is stateful: say sequence_length=, or list the arrivals")
    searching = open_loop and rate is None and (arrivals is None or isinstance(arrivals, str))
    if searching and (bound is None or live):
        hint = "" if live else ", or what must hold (constraint='p99 < 50 ms')"
        raise InvalidArgumentError(f"say what traffic to expect (rate=, clients= or arrivals=){hint}")
    arriving = partial(_virtual, traffic)
    wanted = None if live or searching else arriving(rate)  # a mistake is told before anything is measured

    def begin(stopping: Event) -> tuple[Way, float]:
        if live:
            return partial(trial.live, model, traffic | {"inputs": inputs, "shapes": shapes}, bound, stopping), math.inf
        times, most = service, math.inf
        if times is None:
            measured = measure(model, size=size or 1, inputs=inputs, shapes=shapes, seed=seed, stopping=stopping)
            times, most = table(measured.times), measured.most
        if wanted is not None:
            return partial(trial.simulated, wanted, times, bound, seed), most
        assert bound is not None
        return partial(trial.highest_rate, arriving, times, bound, seed, size or 1, most, stopping), most

    by_rate = searching or not open_loop

    def found(running: Trial, trials: list[Trial], most: float) -> SweepResult:
        return SweepResult(model, running, sorted(trials, key=rank_by(by_rate)), bound, by_rate, searching, most)

    return Sweep(grid, begin, found, partial(trial.apply, model, running) if live else None)


def _grid(model: ModelHandle, fields: dict[str, Any]) -> list[tuple[dict[str, Any], pb.ModelConfig]]:
    """The running configuration, and those with every combination of the fields' values."""
    if model.served.config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(f"model '{model.name}' is an ensemble, which runs nothing itself: sweep its steps")
    if not fields:
        raise InvalidArgumentError("name the fields to try, each with its values: count=[1, 2]")
    for name, values in fields.items():
        if not isinstance(values, (list, tuple, range)) or not values:
            raise InvalidArgumentError(f"{name} needs a list of values to try, got {values!r}")
    combined = [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]
    running = edited(model.served.config, {})
    grid = [({}, running), *((edits, edited(running, edits)) for edits in combined)]
    for _, config in grid:
        validate(config)
    return grid


def _virtual(traffic: dict[str, Any], rate: float | None) -> Arrivals:
    return trial.virtual_arrivals(workload(**traffic | {"rate": rate}))


class Sweep:
    """A sweep that is under way, or over.

    Use ``sweep.wait()`` in a cell, ``await sweep`` in an event loop, ``sweep.stop()`` to end it with what was tried
    so far. `result` can be read at any time; what a `SweepResult` does (`apply`, `plot`, `export`), it does when it
    is over.

    Attributes
    ----------
    tried, total : int
        Configurations so far, and in all.
    """

    def __init__(
        self,
        grid: list[tuple[dict[str, Any], pb.ModelConfig]],
        begin: Callable[[Event], tuple[Way, float]],
        found: Callable[[Trial, list[Trial], float], SweepResult],
        restore: Callable[[], object] | None,
    ) -> None:
        self.total = len(grid)
        self._grid = grid  # the running configuration first
        self._begin = begin
        self._found = found
        self._restore = restore
        self._trials: list[Trial] = []
        self._most = math.inf
        self._stopping = Event()
        self._finished: Future[SweepResult] = Future()
        self._finished.set_running_or_notify_cancel()  # so that nobody who waits for it can cancel it
        Thread(target=self._run, name="tritonnb-sweep", daemon=True).start()

    @property
    def tried(self) -> int:
        """Configurations tried so far."""
        return len(self._trials)

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._finished.done()

    @property
    def result(self) -> SweepResult:
        """What was found so far.

        Raises
        ------
        InvalidArgumentError
            If that is nothing.
        """
        trials = list(self._trials)
        if len(trials) < 2:
            raise InvalidArgumentError("no configuration has been tried yet")
        return self._found(trials[0], trials[1:], self._most)

    def wait(self, timeout: float | None = None) -> SweepResult:
        """Wait until every configuration was tried, or it was stopped; a notebook shows how far it is.

        An interrupt (``KeyboardInterrupt``) stops it; what was found stays in `result`.

        Parameters
        ----------
        timeout : float, optional
            Seconds.

        Raises
        ------
        TimeoutError
            If it is not over by then; it goes on.
        """
        return wait(self._finished, timeout, self._told, self.stop)

    def __await__(self) -> Generator[Any, None, SweepResult]:
        return asyncio.wrap_future(self._finished).__await__()

    @property
    def best(self) -> Trial:
        """`SweepResult.best`, when it is over."""
        return self.wait().best

    def plot(self, ax: Axes | None = None) -> Figure:
        """`SweepResult.plot`, when it is over."""
        return self.wait().plot(ax)

    def apply(self) -> str:
        """`SweepResult.apply`, when it is over."""
        return self.wait().apply()

    def export(self, repository: str | os.PathLike[str]) -> Path:
        """`SweepResult.export`, when it is over."""
        return self.wait().export(repository)

    def stop(self) -> None:
        """Try nothing more; does not wait for what is under way. Harmless twice."""
        self._stopping.set()

    def _told(self) -> str:
        words = f"{self.tried} of {self.total} configurations tried"
        return f"{words}; {told(self._trials[-1])}" if self._trials else words

    def __repr__(self) -> str:
        return repr(self.result) if self.done else f"<Sweep: {self._told()}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_() if self.done else html.escape(self._told())

    def _run(self) -> None:
        try:
            self._try()
            found = self.result
        except BaseException as error:
            self._finished.set_exception(error)
        else:
            self._finished.set_result(found)

    def _try(self) -> None:
        try:
            way, self._most = self._begin(self._stopping)
            for edits, config in self._grid:
                if self._stopping.is_set():
                    return
                self._trials.append(way(edits, config))
        except Stopped:
            return
        finally:
            if self._restore is not None:
                self._restore()
