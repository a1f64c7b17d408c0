"""``remote["dense"].config``: the configuration of a model of another server, to change, apply and restore.

A connection restores the configurations that were changed through it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Protocol, Self

from tritonnb.client.address import ModelAddress
from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import problem_context
from tritonnb.model_config.diff import require_tensors
from tritonnb.model_config.editable_config import EditableConfig
from tritonnb.model_config.validate import validate


class OpenConnection(Protocol):
    """What a configuration needs of its connection, a `Remote`."""

    @property
    def changed_configs(self) -> ChangedConfigs:
        """The models whose configurations were changed."""

    def require_open(self) -> None:
        """Raise UnavailableError if the connection has been closed."""


class ChangedConfigs:
    """The models whose configurations were changed, and how to restore them."""

    def __init__(self) -> None:
        self._restorations: dict[str, Callable[[], object]] = {}

    def add(self, name: str, restore: Callable[[], object]) -> bool:
        """Store a function that restores a model's configuration, and return True; later calls return False."""
        return self._restorations.setdefault(name, restore) is restore

    def keep(self, name: str) -> None:
        """Forget a model: its configuration stays."""
        self._restorations.pop(name, None)

    def restore(self, name: str) -> None:
        """Restore the configuration of a model, if it was changed.

        Raises
        ------
        UnavailableError
            If that failed.
        """
        restore = self._restorations.pop(name, None)
        try:
            if restore is not None:
                restore()
        except TritonError as error:
            raise UnavailableError(f"model '{name}': its configuration was not restored: {error.message}") from None

    def restore_all(self) -> list[TritonError]:
        """Restore all configurations; return the errors."""
        failures: list[TritonError] = []
        for name in list(self._restorations):
            try:
                self.restore(name)
            except TritonError as error:
                failures.append(error)
        return failures


def checked_config(config: pb.ModelConfig, running: pb.ModelConfig, text: str | None = None) -> pb.ModelConfig:
    """Return a configuration for a model of another server, checked without the server.

    Parameters
    ----------
    config : ModelConfig
    running : ModelConfig
        Of the model; it has the name and the backend, if ``config`` lacks them.
    text : str, optional
        The text of ``config``, for the lines of problems.

    Raises
    ------
    TritonError
        If the configuration is invalid, or omits the inputs or outputs of the model.
    """
    checked = copy.deepcopy(config)
    checked.name = checked.name or running.name
    if not (checked.backend or checked.platform):
        checked.backend, checked.platform = running.backend, running.platform
    with problem_context(checked, text):
        require_tensors(checked, running)
        validate(checked)
    return checked


@with_short_tracebacks
class RemoteConfig(EditableConfig):
    """An editable copy of the configuration of a model on another server.

    The attributes are the fields of ``inference.ModelConfig``. `apply` loads the model with the changed configuration,
    through the load API; the original is restored by `restore`, at the end of a ``with`` block, and when the connection
    is closed. The changed configuration has the previous one in a parameter, ``tritonnb.configuration_before``, so that
    any connection can restore it.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0, model_control_mode="explicit") as server, tnb.connect(server.url) as remote:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     with remote["double"].config as config:
    ...         config.max_batch_size = 4
    ...         print([line for line in config.diff().splitlines()[2:] if line[0] in "+-"])
    ...         print(config.apply(), remote["double"].config.max_batch_size)
    ...     print(remote["double"].config.max_batch_size)
    ['-max_batch_size: 8', '+max_batch_size: 4']
    reloaded 4
    8
    """

    _remote: OpenConnection
    _address: ModelAddress

    def __init__(self, remote: OpenConnection, address: ModelAddress) -> None:
        object.__setattr__(self, "_remote", remote)
        object.__setattr__(self, "_address", address)
        super().__init__()

    def apply(self, *, keep: bool = False) -> str:
        """Load the model with this configuration, in place of the configuration in the server's repository.

        Parameters
        ----------
        keep : bool, optional
            Keep it on the server when the connection is closed; `restore` can still load the previous configuration.

        Returns
        -------
        str
            ``"unchanged"``, or ``"reloaded"``.

        Raises
        ------
        UnsupportedError
            If the server was not started with explicit model control.
        TritonError
            If the configuration is invalid; the model continues unchanged.
        """
        running = self._running()
        config = checked_config(self.edited(), running, self.text)
        changed = self._remote.changed_configs
        is_first = changed.add(self._address.name, partial(self._address.apply, running))
        try:
            outcome = self._address.apply(config)
        except BaseException:
            if is_first and self._running() == running:
                changed.keep(self._address.name)
            raise
        if keep:
            changed.keep(self._address.name)
        return outcome

    def restore(self, *, from_repository: bool = False) -> str:
        """Load the model with the configuration that it had before another was applied.

        The process that applied the other configuration may have been killed: the server keeps the previous one. If the
        configuration was changed by other means than this package, the previous one is only in the server's repository.

        Parameters
        ----------
        from_repository : bool, optional
            Unload the model, and load it with the configuration in the repository of the server. Requests that come in
            between are refused. A load alone does not do it: Triton loads a model again only if its files are newer.

        Returns
        -------
        str
            ``"unchanged"`` if no other configuration was applied, or ``"reloaded"``.

        Raises
        ------
        TritonError
            If the server does not accept it.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0, model_control_mode="explicit") as server, tnb.connect(server.url) as remote:
        ...     @server.model(max_batch_size=8)
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     config = remote["double"].config
        ...     config.max_batch_size = 4
        ...     _ = config.apply(keep=True)
        ...     print(config.restore(), config.max_batch_size)
        reloaded 8
        """
        self._remote.changed_configs.keep(self._address.name)
        if from_repository:
            self._address.reload()
        outcome = "reloaded" if from_repository else self._address.restore()
        self.revert()
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._remote.changed_configs.restore(self._address.name)

    def _running(self) -> pb.ModelConfig:
        self._remote.require_open()
        return self._address.config()
