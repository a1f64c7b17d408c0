"""Custom batching: code of a model decides which requests share a batch.

The dynamic batcher asks it before it adds a request to the batch that is being formed; sizes, delays and priorities
are those of the configuration. The functions are those of Triton's batching libraries (*tritonbackend.h*).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tritonnb.scheduling.decisions import Schedulable


class BatchingStrategy(Protocol):
    """The custom batching of a model."""

    def begin_batch(self) -> object:
        """A batch is being formed: its state (``TRITONBACKEND_ModelBatchInitialize``)."""

    def include(self, request: Schedulable, batch: object) -> bool:
        """Whether a request may join a batch (``TRITONBACKEND_ModelBatchIncludeRequest``)."""

    def end_batch(self, batch: object) -> None:
        """Nothing more will join the batch (``TRITONBACKEND_ModelBatchFinalize``)."""

    def close(self) -> None:
        """The model is being unloaded (``TRITONBACKEND_ModelBatcherFinalize``)."""


class StrategyBatch:
    """The batch that is being formed, as a strategy knows it.

    Attributes
    ----------
    size : int
        Number of requests that were included.
    """

    def __init__(self, strategy: BatchingStrategy) -> None:
        self.size = 0
        self._strategy = strategy
        self._state: object = None
        self._is_open = False

    def restart(self, members: Iterable[Schedulable]) -> None:
        """Begin again with requests that are in the batch already."""
        self.end()
        for member in members:
            self.admits(member)
            self.size += 1

    def admits(self, request: Schedulable) -> bool:
        """Whether a request may join the batch. The first one always may, since it could never be executed otherwise.

        A request that joins is counted by the caller.
        """
        if not self._is_open:
            self._state, self._is_open = self._strategy.begin_batch(), True
        return self._strategy.include(request, self._state) or self.size == 0

    def end(self) -> None:
        """End the batch, if it has begun."""
        if self._is_open:
            self._strategy.end_batch(self._state)
            self._state, self._is_open = None, False
        self.size = 0
