"""The model objects of the shim."""

from __future__ import annotations

import logging

from tritonnb.backends.contract import ModelContext
from tritonnb.backends.native import library
from tritonnb.model_config.to_json import config_to_json

logger = logging.getLogger("tritonnb.native")


class NativeModelObject:
    """A ``TRITONBACKEND_Model`` of the shim.

    Parameters
    ----------
    backend : int or None
        The handle of the backend; None for a model that only a batching library sees.
    context : ModelContext
    auto_complete : bool, optional
        Whether the backend may change the configuration.

    Attributes
    ----------
    handle : int
    """

    def __init__(self, backend: int | None, context: ModelContext, auto_complete: bool = False) -> None:
        self._library = library.load_shim()
        self._name = context.name
        self._initialized = False
        config = context.config
        self.handle: int = self._library.tnb_model_new(
            backend,
            context.name.encode(),
            context.version,
            str(context.directory).encode(),
            config_to_json(config).encode(),
            auto_complete,
            config.model_transaction_policy.decoupled,
        )
        for state in config.sequence_batching.state:
            self._library.tnb_model_add_state(self.handle, state.output_name.encode())

    def initialize(self) -> None:
        """Call ``TRITONBACKEND_ModelInitialize``."""
        library.check(self._library.tnb_model_initialize(self.handle))
        self._initialized = True

    def config(self) -> str:
        """The configuration as JSON, with what the backend changed."""
        text: bytes = self._library.tnb_model_config(self.handle)
        return text.decode(errors="surrogateescape")

    def finalize(self) -> None:
        """Call ``TRITONBACKEND_ModelFinalize``, if the model was initialised, and free the object."""
        error = self._library.tnb_model_finalize(self.handle, self._initialized)
        log_error(error, f"finalizing model '{self._name}' failed")


def log_error(error: int | None, what: str) -> None:
    """Log the error that a function of the shim has returned, if it has; the error is deleted."""
    if error is not None:
        logger.error("%s: %s", what, library.take_error(error).message)
