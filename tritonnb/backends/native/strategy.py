"""Custom batching by a library of Triton's interface: which requests may share a batch."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from pathlib import Path
from typing import Any

from tritonnb.backends.contract import ModelContext
from tritonnb.backends.native import library
from tritonnb.backends.native.backend import NativeModel, log_error, log_messages
from tritonnb.backends.native.batch import write_request
from tritonnb.model_config.schema import ModelSpec


def open_strategy(path: Path, context: ModelContext) -> NativeStrategy | None:
    """Load a batching library, and call its ``TRITONBACKEND_ModelBatcherInitialize``.

    Returns
    -------
    NativeStrategy or None
        None if the library defines none of the functions: Triton then batches as without it.

    Raises
    ------
    TritonError
        If it cannot be loaded, or does not define all functions.
    """
    shim = library.load_shim()
    with contextlib.ExitStack() as cleanup:
        log_messages.acquire()
        cleanup.callback(log_messages.release)
        model = NativeModel(context, None)
        cleanup.callback(model.finalize)
        handle = library.created(shim.tnb_strategy_open, library.unique_path(path).encode(), model.handle)
        # `pop_all` hands the cleanup over: until here, every error undoes what was opened.
        return None if handle is None else NativeStrategy(handle, model.handle, context, cleanup.pop_all())


class NativeStrategy:
    """A `tritonnb.scheduling.batch_pass.BatchingStrategy` that a library implements.

    It is used on the server's event loop. Errors of the library are logged, as on Triton; the request is then excluded.
    """

    def __init__(self, handle: int, model: int, context: ModelContext, cleanup: contextlib.ExitStack) -> None:
        self._handle = handle
        self._model = model
        self._spec = ModelSpec.from_config(context.config)
        self._cleanup = cleanup
        self._library = library.load_shim()
        # Far from the tokens of batches, so that an event of one kind cannot be taken for the other.
        self._tokens = itertools.count(1 << 63)

    def begin_batch(self) -> object:
        """Begin a batch."""
        batch = ctypes.c_void_p()
        self._log("initialization", self._library.tnb_strategy_batch_new(self._handle, ctypes.byref(batch)))
        return batch.value

    def include(self, request: Any, batch: object) -> bool:
        """Return whether a request may join."""
        answer, outcome = ctypes.c_bool(False), library.Outcome()
        # `_memory` looks unused but keeps the inputs alive during the call.
        handle, _memory = write_request(self._model, self._spec, request, next(self._tokens))
        self._log("include", self._library.tnb_strategy_include(self._handle, handle, batch, ctypes.byref(answer)))
        self._library.tnb_request_collect(handle, True, ctypes.byref(outcome))  # the server's again
        self._library.tnb_request_finish(handle)
        # False unless the library says otherwise: after an error, the request is excluded as on Triton.
        return answer.value

    def end_batch(self, batch: object) -> None:
        """End a batch."""
        self._log("finalization", self._library.tnb_strategy_batch_end(self._handle, batch))

    def close(self) -> None:
        """Call ``TRITONBACKEND_ModelBatcherFinalize``."""
        self._log("finalization", self._library.tnb_strategy_close(self._handle))
        self._cleanup.close()

    def _log(self, function: str, error: int | None) -> None:
        log_error(error, f"custom batching {function} function failed for model {self._spec.name}")
