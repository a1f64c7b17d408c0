"""Responses in the order in which their requests were placed (``preserve_ordering``).

Batches may finish in any order on several instances; a response then waits here until every
request placed before its own has had its final response. The request at the head may stream.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


class ResponseOrder:
    """Holds responses back until it is their turn.

    Requests are compared by identity; responses need an attribute ``final``.
    """

    def __init__(self) -> None:
        self._parked: OrderedDict[Any, list[Any]] = OrderedDict()

    def __len__(self) -> int:
        """Requests placed whose final response has not left."""
        return len(self._parked)

    def add_request(self, request: Any) -> None:
        """A request goes to an instance; its responses follow those of all placed before it."""
        self._parked[request] = []

    def add_response(self, request: Any, response: Any) -> list[tuple[Any, Any]]:
        """A response has come; returns the ``(request, response)`` pairs that may leave now, in order.

        Responses of a request that was never placed leave at once.
        """
        parked = self._parked.get(request)
        if parked is None:
            return [(request, response)]
        parked.append(response)
        leaving: list[tuple[Any, Any]] = []
        while self._parked:
            head = next(iter(self._parked))
            answers = self._parked[head]
            leaving += [(head, answer) for answer in answers]
            if not (answers and answers[-1].final):
                answers.clear()
                break
            del self._parked[head]
        return leaving
