"""The section of a page about each pipeline of a recording: its steps, its slowest requests, and their causes."""

from __future__ import annotations

import html

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.analysis.pipeline_blame import blame_pipeline
from tritonnb.recording.pipelines import Pipeline
from tritonnb.recording.recording import Recording

#: Requests with a waterfall, the slowest first.
_WATERFALLS = 3
#: The percentile from which on the requests are split into causes together.
_TAIL = 90


def pipeline_sections(rec: Recording) -> list[str]:
    """Return a section for each pipeline, as HTML; none for recordings of models that call no others.

    Parameters
    ----------
    rec : Recording
    """
    return [_section(rec, pipeline) for pipeline in rec.pipelines.values()]


def _section(rec: Recording, pipeline: Pipeline) -> str:
    config = rec.configs.get(pipeline.model)
    figures = []
    if config is not None and config.HasField("ensemble_scheduling"):
        figures.append(Recording(rec.events, {pipeline.model: config}).plot.graph())  # of this ensemble
    slowest = sorted(pipeline.requests, key=lambda request: -request.latency_ns)[:_WATERFALLS]
    figures += [rec.plot.waterfall(request) for request in slowest]
    pictures = "\n".join(figure._repr_mimebundle_()["text/html"] for figure in figures)
    try:
        causes = blame_pipeline(rec, pipeline.requests, percentile=_TAIL)._repr_html_()
    except InvalidArgumentError:  # the configuration of a model is not known
        causes = ""
    label = html.escape(f"pipeline {pipeline.model}")
    return f'<section aria-label="{label}">\n{pipeline._repr_html_()}\n{pictures}\n{causes}\n</section>'
