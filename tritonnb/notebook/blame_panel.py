"""The panel of a batch view that splits the latency of one request: what the kernel computes for it.

The browser names a request by its batch and its label. The parts are sent at once; the remedies follow, because the
simulations that find them take longer.
"""

from __future__ import annotations

from collections.abc import Callable

from tritonnb.core.errors import TritonError
from tritonnb.core.json_types import Json
from tritonnb.recording.recording import Recording


def answer_request(
    rec: Recording | None,
    batch: int,
    label: str,
    show: Callable[[Json], None],
    search: Callable[[Callable[[], Json]], None] | None = None,
) -> None:
    """Split the latency of the request that a user selected, and show it, first without and then with remedies.

    Parameters
    ----------
    rec : Recording or None
    batch : int
    label : str
    show : callable
        Gets a dict: ``batch`` and ``request`` identify the request; it has a ``title`` and ``parts``, the rows of
        `Blame.rows`, or an ``error``.
    search : callable, optional
        Gets the call that returns the dict with remedies, and shows its result; by default at once.
    """
    report: Json = {"batch": batch, "request": label}
    requests = () if rec is None else rec.requests
    request = next((request for request in requests if request.batch == batch and request.label == label), None)
    if rec is None or request is None:
        show(report | {"error": f"Request {label} is not in the events that are kept any more, or has not ended."})
        return
    try:
        blame = rec.blame(request)
    except TritonError as error:
        show(report | {"error": error.message})
        return

    def answer(with_remedies: bool) -> Json:
        try:
            rows = blame.rows(with_remedies=with_remedies)
        except TritonError as error:
            return report | {"error": error.message}
        return {**report, "title": blame.title, "parts": [list(row) for row in rows]}

    show(answer(False))
    if search is None:
        show(answer(True))
    else:
        search(lambda: answer(True))
