"""`sweep`: which configuration serves a model best, in virtual time from measured service times, or live."""

from __future__ import annotations

import asyncio
import html
import math
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.field_overrides import with_overrides
from tritonnb.model_config.validate import validate
from tritonnb.profile import trial
from tritonnb.profile.constraint import Constraint
from tritonnb.profile.examples import Inputs, Shapes
from tritonnb.profile.find_model import config_of, find_model
from tritonnb.profile.notebook_wait import wait
from tritonnb.profile.remote import RemoteModel
from tritonnb.profile.service_times import measure_for
from tritonnb.profile.sweep_result import SweepResult, noise_of, rank_by, told
from tritonnb.profile.trial import KnownService, StoppedError, Trial
from tritonnb.profile.workload import workload
from tritonnb.simulation.arrivals import Arrival, Arrivals, ClosedLoop
from tritonnb.simulation.service import Service, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tritonnb.server.model_handle import ModelHandle
    from tritonnb.server.server import Server

Way = Callable[[dict[str, Any], pb.ModelConfig], Trial]


def sweep(
    model: ModelHandle | Server | RemoteModel | str,
    name: str | None = None,
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

    The running configuration is measured repeatedly: nothing is the best that is not better than it beyond the
    difference between its measurements (`SweepResult.noise`).

    Virtual time does not know that instances slow each other down where they share cores: look at the best
    ones again with ``live=True``.

    Parameters
    ----------
    model, name
        As for `load`; what is found for a URL cannot be applied or exported from here.
    constraint : str, optional
        Such as ``"p99 < 50 ms"``; see `Constraint`.
    rate, arrivals, clients, size, sequence_length, sequences, inputs, shapes, seed
        As for `load`, but ``arrivals`` goes to ``"poisson"`` where only a rate is given, and of a stateful model
        ``sequence_length`` must be said: what is best depends on it.
    requests : int, optional
        For each configuration.
    service : Service, optional
        By default measured, as by `service_times`, at the batch sizes that the configurations can form. Where they
        allow larger batches than the running model, it runs with the largest ``max_batch_size`` meanwhile. Where
        that is not possible, times are extrapolated, and such configurations are never the best.
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
    UnavailableError
        If no server answers at a URL.

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
    swept = find_model(model, name)
    if live and isinstance(swept, RemoteModel):
        raise InvalidArgumentError(
            f"live=True expected a model of this process, as server['NAME'], got {swept.url}: without live it is "
            "simulated from measured service times"
        )
    grid = _grid(swept, fields)
    running = grid[0][1]
    if running.HasField("sequence_batching") and not sequence_length and not isinstance(arrivals, list):
        raise InvalidArgumentError(f"model '{swept.name}' is stateful: say sequence_length=, or list the arrivals")
    searching = open_loop and rate is None and (arrivals is None or isinstance(arrivals, str))
    if searching and (bound is None or live):
        hint = "" if live else ", or what must hold (constraint='p99 < 50 ms')"
        raise InvalidArgumentError(f"say what traffic to expect (rate=, clients= or arrivals=){hint}")
    arriving = partial(_virtual, traffic)
    wanted = None if live or searching else arriving(rate)  # a mistake is told before anything is measured

    by_rate = searching or not open_loop

    def begin(stopping: Event) -> Plan:
        if live:
            assert not isinstance(swept, RemoteModel)
            way = partial(trial.live, swept, traffic | {"inputs": inputs, "shapes": shapes}, bound, stopping)
            return Plan([way, way])
        if service is not None:
            return Plan([way_of(KnownService(service), math.inf, stopping)])
        of_requests = {"inputs": inputs, "shapes": shapes, "seed": seed}
        found = measure_for(swept, [config for _, config in grid], size or 1, of_requests, stopping)
        known = [KnownService(table(times), max(times)) for times in (found.times, *found.rounds)]
        return Plan([way_of(each, found.most, stopping) for each in known], found.most, found.times)

    def way_of(known: KnownService, most: float, stopping: Event) -> Way:
        if wanted is not None:
            return partial(trial.simulated, wanted, known, bound, seed)
        assert bound is not None
        return partial(trial.highest_rate, arriving, known, bound, seed, size or 1, most, stopping)

    def result(repeated: list[Trial], trials: list[Trial], plan: Plan) -> SweepResult:
        ranked = sorted(trials, key=rank_by(by_rate))
        noise = noise_of(repeated, by_rate)
        sent = traffic | {"inputs": inputs, "shapes": shapes}
        return SweepResult(
            swept, repeated[0], ranked, bound, by_rate, searching, plan.most, noise, plan.service_times, sent
        )

    restore = partial(trial.apply, swept, running) if live and not isinstance(swept, RemoteModel) else None
    return Sweep(grid, begin, result, restore)


@dataclass(frozen=True)
class Plan:
    """How the configurations are tried.

    Attributes
    ----------
    ways : list of callable
        The first one tries every configuration; the others repeat the running one, to show how sure it is.
    most, service_times
        As of a `SweepResult`.
    """

    ways: list[Way]
    most: float = math.inf
    service_times: dict[int, float] = field(default_factory=dict)


def _grid(model: ModelHandle | RemoteModel, fields: dict[str, Any]) -> list[tuple[dict[str, Any], pb.ModelConfig]]:
    """The running configuration, and those with every combination of the fields' values."""
    served = config_of(model)
    if served.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(f"model '{model.name}' is an ensemble, which runs nothing itself: sweep its steps")
    if not fields:
        raise InvalidArgumentError("name the fields to try, each with its values: count=[1, 2]")
    for name, values in fields.items():
        if not isinstance(values, (list, tuple, range)) or not values:
            raise InvalidArgumentError(f"{name} needs a list of values to try, got {values!r}")
    combined = [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]
    running = with_overrides(served, {})
    grid = [({}, running), *((edits, with_overrides(running, edits)) for edits in combined)]
    for _, config in grid:
        with ProblemContext(config):
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
        begin: Callable[[Event], Plan],
        found: Callable[[list[Trial], list[Trial], Plan], SweepResult],
        restore: Callable[[], object] | None,
    ) -> None:
        self.total = len(grid)
        self._grid = grid  # the running configuration first
        self._begin = begin
        self._found = found
        self._restore = restore
        self._trials: list[Trial] = []
        self._repeated: list[Trial] = []
        self._plan = Plan([])
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
        return self._found([trials[0], *self._repeated], trials[1:], self._plan)

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
        return wait(self._finished, timeout, lambda: f"sweep: {self._told()}", self.stop)

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
            self._plan = self._begin(self._stopping)
            way, *repeating = self._plan.ways
            for edits, config in self._grid:
                if self._stopping.is_set():
                    return
                self._trials.append(way(edits, config))
                while repeating and not self._stopping.is_set():  # the first one is the running configuration
                    self._repeated.append(repeating.pop()(edits, config))
        except StoppedError:
            return
        finally:
            if self._restore is not None:
                self._restore()
