"""The batches of all steps of an ensemble on one time axis, with the way of each request through them."""

from __future__ import annotations

from collections.abc import Iterable

import anywidget
import traitlets

from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, unpack
from tritonnb.notebook.view_encoding import MODEL
from tritonnb.notebook.widget_files import javascript, stylesheet
from tritonnb.recording.batches import Batch
from tritonnb.recording.pipelines import PipelineRequest, step_paths
from tritonnb.recording.recording import Recording

#: The newest requests that are drawn, and the events among which they are looked for.
MOST_REQUESTS, MOST_EVENTS = 20, 1500


class StepBatches(anywidget.AnyWidget):
    """The batches of the steps in lanes; a selected request lights up in them.

    Attributes
    ----------
    picture : dict
        See `picture_of`; empty before the first request.
    lit : dict
        ``steps``: the texts of the steps of the request that is selected, by the names of their models.
    """

    _esm = javascript("step_batches")
    _css = stylesheet("dashboard")
    picture = traitlets.Dict().tag(sync=True)
    lit = traitlets.Dict().tag(sync=True)


def newest_requests(events: Iterable[Packed], ensemble: str, models: Iterable[str]) -> Json:
    """Return the picture of the newest requests of an ensemble; empty if none is complete.

    Parameters
    ----------
    events : iterable of tuple
        Packed, in the order of time.
    ensemble : str
    models : iterable of str
        All models of its steps.
    """
    names = {ensemble, *models}
    rec = Recording(unpack(packed) for packed in events if packed[MODEL] in names)
    pipeline = rec.pipelines.get(ensemble)
    return picture_of(rec, pipeline.requests[-MOST_REQUESTS:]) if pipeline else {}


def picture_of(rec: Recording, roots: Iterable[PipelineRequest]) -> Json:
    """Return lanes, batches and requests, with times in ms after the first of the requests.

    Parameters
    ----------
    rec : Recording
    roots : iterable of PipelineRequest
    """
    roots = sorted(roots, key=lambda root: root.received_ns)
    begin_ns, end_ns = roots[0].received_ns, max(root.ended_ns for root in roots)
    executed = [[one for one in root.walk() if one.record is not None] for root in roots]
    models = list(dict.fromkeys(one.model for steps in executed for one in steps))
    members: dict[int, list[int]] = {}
    for number, steps in enumerate(executed):
        for one in steps:
            if one.record is not None:
                members.setdefault(one.record.batch, []).append(number)

    def ms(time_ns: int) -> float:
        return round((time_ns - begin_ns) / 1e6, 3)

    def request(root: PipelineRequest) -> Json:
        steps = []
        for one, path in step_paths(root).values():
            record = one.record
            if record is not None:
                waited_ms = (record.exec_start_ns - one.received_ns) / 1e6
                ran_ms = (record.exec_end_ns - record.exec_start_ns) / 1e6
                steps.append(
                    {
                        "model": one.model,
                        "name": " / ".join(path) or one.model,
                        "text": f"waited {waited_ms:.1f} ms, ran {ran_ms:.1f} ms",
                        "begin": ms(one.received_ns),
                        "start": ms(record.exec_start_ns),
                        "batch": places[record.batch],
                    }
                )
        times = {"begin": ms(root.received_ns), "end": ms(root.ended_ns)}
        return {"label": root.label, **times, "failed": root.failed, "steps": steps}

    def is_drawn(batch: Batch) -> bool:
        return batch.model in models and batch.exec_start_ns < end_ns and batch.exec_end_ns > begin_ns

    batches = sorted(filter(is_drawn, rec.batches), key=lambda batch: (models.index(batch.model), batch.instance))
    places = {batch.number: place for place, batch in enumerate(batches)}
    instances = list(dict.fromkeys(batch.instance for batch in batches))
    return {
        "span": ms(end_ns),
        "lanes": instances,
        "batches": [
            {
                "lane": instances.index(batch.instance),
                "model": batch.model,
                "begin": ms(batch.exec_start_ns),
                "end": ms(batch.exec_end_ns),
                "rows": batch.size,
                "requests": members.get(batch.number, []),
            }
            for batch in batches
        ],
        "requests": [request(root) for root in roots],
    }
