"""Responses in the order in which their requests were batched (``preserve_ordering``).

Batches may finish in any order on several instances; a response waits here until every request before its own has had
its final response. Responses of the first request are sent immediately.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


class ResponseOrder:
    """Delays responses until those of all previous requests were sent.

    Requests are dict keys; responses have an attribute ``final``.
    """

    def __init__(self) -> None:
        self._delayed: OrderedDict[Any, list[Any]] = OrderedDict()

    def __len__(self) -> int:
        """Number of requests whose final response was not sent."""
        return len(self._delayed)

    def add_request(self, request: Any) -> None:
        """Add a request that is sent to an instance, after all previous ones."""
        self._delayed[request] = []

    def add_response(self, request: Any, response: Any) -> list[tuple[Any, Any]]:
        """Add a response; returns the ``(request, response)`` pairs to send now, in order.

        Responses of a request that was not added are sent immediately.
        """
        delayed = self._delayed.get(request)
        if delayed is None:
            return [(request, response)]
        delayed.append(response)
        ready: list[tuple[Any, Any]] = []
        while self._delayed:
            head = next(iter(self._delayed))
            responses = self._delayed[head]
            ready += [(head, response) for response in responses]
            if not (responses and responses[-1].final):
                responses.clear()
                break
            del self._delayed[head]
        return ready
