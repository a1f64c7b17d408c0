"""``server["digits"].config``: the configuration of a model, to change and apply."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import problem_context
from tritonnb.model_config.editable_config import EditableConfig
from tritonnb.runtime.load_errors import raised_here

if TYPE_CHECKING:
    from tritonnb.server.server import Server


@with_short_tracebacks
class ConfigHandle(EditableConfig):
    """An editable copy of a model's configuration, or of its file if the model failed to load.

    The attributes are the fields of ``inference.ModelConfig``. Changes take effect with `apply`.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     config = server["double"].config
    ...     config.dynamic_batching.max_queue_delay_microseconds = 5000
    ...     _ = config.apply()
    ...     print(server["double"].config.dynamic_batching.max_queue_delay_microseconds)
    5000
    """

    _server: Server
    _name: str
    _message: pb.ModelConfig

    def __init__(self, server: Server, name: str) -> None:
        object.__setattr__(self, "_server", server)
        object.__setattr__(self, "_name", name)
        super().__init__()

    def apply(self) -> str:
        """Apply this configuration to the running model; no accepted request is lost.

        Returns
        -------
        str
            ``"unchanged"``; ``"in place"`` if only the scheduling changed, so that the model was not loaded again;
            ``"reloaded"`` if a new copy of the model replaced it; ``"loaded"`` if it had failed to load before.

        Raises
        ------
        TritonError
            If the configuration is invalid; the model continues unchanged. The `problems` of the error have lines of
            `text`.
        """
        config = self.edited()
        with problem_context(config, self.text), raised_here():
            outcome: str = self._server.run(self._server.engine.apply(self._name, config))
        return outcome

    def _running(self) -> pb.ModelConfig:
        return copy.deepcopy(self._server.call(self._server.engine.reconfiguration.config, self._name))
