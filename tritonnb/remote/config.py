"""``remote["dense"].config``: the configuration of a model of another server, to change, apply and restore."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from tritonnb.core.failures import with_short_traceback
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.editable_config import EditableConfig, copy_of
from tritonnb.model_config.validate import validate
from tritonnb.profile.remote import RemoteModel

if TYPE_CHECKING:
    from tritonnb.remote.connection import Remote


class RemoteConfig(EditableConfig):
    """An editable copy of the configuration of a model on another server.

    The attributes are the fields of ``inference.ModelConfig``. `apply` loads the model with the changed configuration,
    through the load API; the original is restored by `restore`, at the end of a ``with`` block, and when the connection
    is closed.

    Examples
    --------
    >>> with remote["dense"].config as config:  # doctest: +SKIP
    ...     config.dynamic_batching.max_queue_delay_microseconds = 5000
    ...     print(config.diff())
    ...     config.apply()
    ...     tnb.load(remote["dense"], rate=100, duration=5).wait()
    """

    def __init__(self, remote: Remote, address: RemoteModel) -> None:
        object.__setattr__(self, "_remote", remote)
        object.__setattr__(self, "_address", address)
        super().__init__()

    @with_short_traceback
    def apply(self, *, keep: bool = False) -> str:
        """Load the model with this configuration, in place of the one in the repository of the server.

        Parameters
        ----------
        keep : bool, optional
            Leave it on the server when the connection is closed.

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
        config = copy_of(self._message)
        running = self._running()
        if config == running:
            return "unchanged"
        apply_config(self._remote, self._address, config, running, self.text)
        if keep:
            self._remote.keep(self._address.name)
        return "reloaded"

    @with_short_traceback
    def restore(self) -> None:
        """Load the model with the configuration that it had before it was changed through this connection."""
        self._remote.restore(self._address.name)
        self.revert()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remote.restore(self._address.name)

    def _running(self) -> pb.ModelConfig:
        return self._remote.config_of(self._address.name)


def apply_config(
    remote: Remote, address: RemoteModel, config: pb.ModelConfig, running: pb.ModelConfig, text: str | None = None
) -> None:
    """Load a model with another configuration, and restore the running one when the connection is closed.

    Raises
    ------
    TritonError
        As `RemoteConfig.apply`.
    """
    with ProblemContext(config, text):
        validate(config)
    remote.restore_later(address.name, lambda: address.apply(running))
    try:
        address.apply(config)
    except BaseException:
        if remote.config_of(address.name) == running:
            remote.keep(address.name)
        raise
