"""The panel of a batch view that splits the latency of one request: what the kernel computes for it.

The browser names a request by its batch and its label. The parts are sent at once; the remedies follow, because the
simulations that find them take longer.
"""

from __future__ import annotations

from collections.abc import Callable

from tritonnb.core.errors import TritonError
from tritonnb.core.json_types import Json
from tritonnb.recording.blame import Blame
from tritonnb.recording.recording import Recording


def describe_blame(blame: Blame, *, with_remedies: bool) -> Json:
    """Describe a request for the panel.

    Parameters
    ----------
    blame : Blame
    with_remedies : bool
        As for `Blame.rows`.

    Returns
    -------
    dict
        ``batch``, ``request`` and ``title`` identify the request; ``parts`` are the rows.
    """
    return {
        "batch": blame.request.batch,
        "request": blame.request.label,
        "title": blame.title,
        "parts": [list(row) for row in blame.rows(with_remedies=with_remedies)],
    }


def answer_request(rec: Recording | None, batch: int, label: str, show: Callable[[Json], None]) -> None:
    """Split the latency of the request that a user selected, and show it, first without and then with remedies."""
    name: Json = {"batch": batch, "request": label}
    matches = [request for request in rec.requests if request.batch == batch] if rec else []
    request = next((request for request in matches if request.label == label), None)
    if rec is None or request is None:
        show(name | {"error": f"Request {label} is not in the events that are kept any more, or has not ended."})
        return
    try:
        blame = rec.blame(request)
        show(describe_blame(blame, with_remedies=False))
        show(describe_blame(blame, with_remedies=True))
    except TritonError as error:
        show(name | {"error": error.message})
