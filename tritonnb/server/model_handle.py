"""``server["digits"]``: one model of a server, as a user holds it."""

from __future__ import annotations

import operator
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError, UnavailableError
from tritonnb.core.failures import shorten_traceback, with_short_traceback
from tritonnb.inprocess import inference
from tritonnb.inprocess.array_requests import REQUEST_OPTIONS, checked_options, make_request
from tritonnb.inprocess.inference import Outputs
from tritonnb.runtime.models.served_base import Served
from tritonnb.server.config_handle import ConfigHandle

if TYPE_CHECKING:
    from tritonnb.core.messages import InferRequest
    from tritonnb.figures.statistics import StatisticsPlot
    from tritonnb.notebook.batch_view import LiveBatchView
    from tritonnb.notebook.config_editor import ConfigEditor
    from tritonnb.notebook.traffic import Traffic
    from tritonnb.server.server import Server


class ModelHandle:
    """A model of a running server.

    Calling it runs one inference in process, NumPy in and NumPy out.

    Parameters
    ----------
    server : Server
    name : str
    version : int, optional
        -1, the default, is the newest version that is ready, at every call.

    Examples
    --------
    >>> server["digits"](image=images)["scores"]  # doctest: +SKIP
    >>> server["digits", 1](image=images)["scores"]  # doctest: +SKIP
    """

    def __init__(self, server: Server, name: str, version: int = -1) -> None:
        self._server = server
        self.name = name
        self.version = version

    @property
    def server(self) -> Server:
        """The server that it belongs to."""
        return self._server

    def __call__(self, inputs: Mapping[str, npt.ArrayLike] | None = None, /, **options: Any) -> Outputs:
        """Run one inference; see `infer`."""
        try:
            return self.infer(inputs, **options)
        except TritonError as error:
            shorten_traceback(error)
            raise

    def infer(self, inputs: Mapping[str, npt.ArrayLike] | None = None, /, **options: Any) -> Outputs:
        """Run one inference and wait for it.

        Parameters
        ----------
        inputs : mapping of str to array, optional
            Input tensors by name, batch dimension included where the model batches. Arrays must be
            of the input's datatype; lists are converted.
        **options
            More inputs by name, and: ``id`` (str), ``outputs`` (names to compute; default all),
            ``parameters`` (dict), ``priority`` (int), ``timeout_us`` (int, microseconds),
            ``sequence_id`` (int or str), ``sequence_start``, ``sequence_end`` (bool), ``copy`` (bool).
            A tensor that has one of these names goes into ``inputs``.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs by name; they may be written to.

        Raises
        ------
        TritonError
            As Triton would answer.

        Notes
        -----
        As over the wire, arrays are copied: when the call is made, the request takes a copy of its
        inputs, and the answer shares no memory with inputs, with other answers, or with the model.

        With ``copy=False`` the request reads C-ordered arrays of the input's datatype where they are, which
        saves the copy of large ones. The caller must not change them until the answer has come, nor after
        a cancelled call until the model is done with it. A Python model or a function gets them read-only
        and fails if it writes to them; everything else is copied as usual.
        """
        try:
            return self._single(inference.infer(self._server.submitter, self._request(inputs, options)))
        except TritonError as error:
            shorten_traceback(error)
            raise

    def infer_async(
        self, inputs: Mapping[str, npt.ArrayLike] | None = None, /, **options: Any
    ) -> Coroutine[Any, Any, Outputs]:
        """Like `infer`, for any running event loop.

        Returns
        -------
        coroutine
            Submits the request when it is awaited or becomes a task, and gives the outputs. The inputs have been
            copied by the call itself, so the arrays may change at once; with ``copy=False``, when it is done.
        """
        try:
            request = self._request(inputs, options)
        except TritonError as error:
            shorten_traceback(error)
            return _raise(error)
        return self._infer_async(request)

    async def _infer_async(self, request: InferRequest) -> Outputs:
        try:
            return self._single(await inference.infer_async(self._server.submitter, request))
        except TritonError as error:
            shorten_traceback(error)
            raise

    def infer_all(self, inputs: Mapping[str, npt.ArrayLike] | None = None, /, **options: Any) -> list[Outputs]:
        """Like `infer`, ``copy=False`` included, giving every response of a decoupled model."""
        try:
            return inference.infer(self._server.submitter, self._request(inputs, options))
        except TritonError as error:
            shorten_traceback(error)
            raise

    @property
    def ready(self) -> bool:
        """Whether the model answers requests."""
        return self._server.call(self._server.engine.model_ready, self.name, self.version)

    @with_short_traceback
    def metadata(self) -> dict[str, Any]:
        """Model metadata, as the v2 protocol gives it."""
        return self._server.call(self._server.engine.model_metadata, self.name, self.version)

    @with_short_traceback
    def stats(self) -> dict[str, Any]:
        """The statistics extension's entry of this model (the newest version's by default)."""
        found = self._server.call(self._server.engine.statistics, self.name, self.version)
        entry: dict[str, Any] = found["model_stats"][-1]
        return entry

    @property
    def plot(self) -> StatisticsPlot:
        """Figures of the statistics: ``plot.batch_sizes()``, ``plot.parts()``, each also ``since`` earlier ones."""
        from tritonnb.figures.statistics import StatisticsPlot  # matplotlib takes a while to import

        return StatisticsPlot(self.stats())

    @property
    def config(self) -> ConfigHandle:
        """The model's configuration, which all of its versions share, to read, change, and apply."""
        return ConfigHandle(self._server, self.name)

    def traffic(self, **options: Any) -> Traffic:
        """A panel that starts and stops traffic on the model; the same one as long as it is not closed.

        Parameters
        ----------
        **options
            Of `tritonnb.load`, such as ``inputs`` and ``shapes``; they hold from the next start on.
        """
        from tritonnb.notebook.traffic import open_traffic

        return open_traffic(self, **options)

    def edit(self) -> ConfigEditor:
        """A live editor of the configuration: text and form, checked while one types.

        Returns
        -------
        ConfigEditor
            A widget; until it is closed, the same one for every call.
        """
        from tritonnb.notebook.config_editor import edit_config

        return edit_config(self)

    def watch(self) -> LiveBatchView:
        """A live view of batches as they form; of slots, for a stateful model.

        Returns
        -------
        LiveBatchView
            A widget; until it is closed, the same one for every call.
        """
        from tritonnb.notebook.batch_view import watch

        return watch(self)

    @with_short_traceback
    def reload(self) -> None:
        """Load the model anew from its files; the old one answers until the new one is ready."""
        self._server.load(self.name, force=True)

    @with_short_traceback
    def unload(self) -> None:
        """Stop taking requests for the model, and free it when the accepted ones are answered."""
        self._server.unload(self.name)

    @property
    def served(self) -> Served:
        """The model version in the engine, to read from.

        Raises
        ------
        NotFoundError, UnavailableError
            If it is not ready.
        """
        # The one thing read off the loop: every lookup of `ModelTable.get` is atomic, and what it
        # finds does not change. Asking the loop would cost as much as a whole inference.
        try:
            return self._server.engine.model(self.name, self.version)
        except NotFoundError:
            if self._server.alive:
                raise
            raise UnavailableError(self._server.stopped_text) from None

    def _request(self, inputs: Mapping[str, npt.ArrayLike] | None, options: dict[str, Any]) -> InferRequest:
        if not isinstance(inputs, Mapping | None):
            known = ", ".join(f"{name}=" for name in self.served.spec.inputs)
            raise InvalidArgumentError(
                f"inputs of model '{self.name}' are given by name ({known}), got {type(inputs).__name__}"
            )
        chosen = {key: options.pop(key) for key in REQUEST_OPTIONS.keys() & options.keys()}
        if chosen:
            chosen = checked_options(self.name, chosen)
        return make_request(self.served.spec, self.version, {**(inputs or {}), **options}, **chosen)

    def _single(self, responses: Sequence[Outputs]) -> Outputs:
        if len(responses) != 1:
            raise InvalidArgumentError(
                f"model '{self.name}' gave {len(responses)} responses: use infer_all for a decoupled model"
            )
        return responses[0]

    def __repr__(self) -> str:
        return "\n".join([self._title(), *(f"  {line}" for line in self._lines())])

    def _repr_html_(self) -> str:
        from tritonnb.notebook.cards import model_card

        return model_card(self)

    def _title(self) -> str:
        if not self._server.alive:
            return f"model '{self.name}' ({self._server.stopped_text})"
        versions = self._server.call(self._server.engine.ready_versions, self.name)
        if self.version != -1:
            versions = [each for each in versions if each == self.version]
        state = f"version {', '.join(map(str, versions))}, READY" if versions else f"not ready: {self._reason()}"
        return f"model '{self.name}' ({state})"

    def _reason(self) -> str:
        """Why the model is not ready: why it could not be loaded, or the states of its versions."""
        if failure := self._server.call(self._server.engine.failure, self.name):
            return failure.rstrip(";\n")
        rows = [row for row in self._server.index() if row["name"] == self.name]
        return ", ".join(row.get("reason") or row.get("state", "not loaded") for row in rows) or "not found"

    def _lines(self) -> list[str]:
        if not self._server.alive or not self.ready:
            return []
        found = self.metadata()
        stats = self.stats()
        tensors = [
            f"{kind} {each['name']}: {each['datatype']} {each['shape']}"
            for kind, key in (("input", "inputs"), ("output", "outputs"))
            for each in found[key]
        ]
        return [
            f"platform {found['platform']}",
            *tensors,
            f"{stats['inference_count']} rows in {stats['execution_count']} executions",
        ]


async def _raise(error: TritonError) -> Outputs:
    raise error


def read_key(key: object) -> tuple[str, int]:
    """The name and the version of ``server[key]``; version -1 where only a name is given.

    Raises
    ------
    InvalidArgumentError
        If the name is not a string, or the version not a number from 1 on.
    """
    if not isinstance(key, tuple) or len(key) != 2:
        return require_name(key), -1
    name, version = require_name(key[0]), key[1]
    if isinstance(version, bool) or not isinstance(version, SupportsIndex) or operator.index(version) < 1:
        raise InvalidArgumentError(f"model '{name}': a version must be a whole number from 1 on, got {version!r}")
    return name, operator.index(version)


def require_name(name: object) -> str:
    """The name of a model, which is a string.

    Raises
    ------
    InvalidArgumentError
        If it is not.
    """
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a model is asked for by its name, a text, got {name!r}")
    return name
