"""`Recording.to_html`: a web page with the views of a recording that needs neither a kernel nor a network.

A recording may come from a stranger, so everything in it is treated as data: text is escaped, the views get JSON in
which no tag can begin, and the page's content security policy allows only the page's own script, by its hash, and no
network.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchSent, EnsembleExecuted, RequestArrived, StepSent
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.json_types import Json
from tritonnb.core.option_types import with_checked_types
from tritonnb.lab.analysis.blame import Blame, blame_slowest
from tritonnb.lab.analysis.latency_split import CAUSES
from tritonnb.lab.figures.palette import style_sheet
from tritonnb.notebook.pipeline_section import pipeline_sections
from tritonnb.notebook.view_session import recorded_history
from tritonnb.notebook.widget_files import STATIC, join_modules
from tritonnb.recording.recording import Recording

#: The number of requests of each model with split latencies.
_MOST_REQUESTS = 2000
_POLICY = (
    "default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


@with_short_traceback
@with_checked_types
def to_html(rec: Recording, path: str | os.PathLike[str], *, title: str = "", remedies: int = 3) -> None:
    """Write the recording as one web page with its views, which needs neither a kernel nor a network.

    The page is for people who have neither the recording nor Python. The contents of the recording are shown as text
    only: the page's security policy allows only its own script. The views of several models show the same time. The
    models of an ensemble are in the order of its steps, below its graph.

    Parameters
    ----------
    path : path
        File to write (HTML).
    title : str, optional
        Title of the page; by default the names of the models.
    remedies : int, optional
        For how many of the slowest requests of each model the page includes remedies (see `blame`), which are found
        by simulation. Their latencies are split for the 2,000 slowest requests.

    Raises
    ------
    InvalidArgumentError
        If the recording has no events of a model, or was made from a sampled trace.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10))
    >>> with TemporaryDirectory() as directory:
    ...     recording.to_html(f"{directory}/recording.html", title="Two requests")
    """
    rec.require_every_request("to_html()")
    Path(path).write_text(_page(rec, title, remedies), encoding="utf-8")


def _page(rec: Recording, title: str, remedies: int) -> str:
    models = sorted({event.model for event in rec.events if isinstance(event, RequestArrived | BatchSent)})
    if not models:
        raise InvalidArgumentError("to_html expected a recording with events of a model, got none")
    ensembles = sorted({event.model for event in rec.events if isinstance(event, EnsembleExecuted)})
    heading = html.escape(title or f"Recording of {', '.join(ensembles or models)}")
    steps = list(dict.fromkeys(event.step_model for event in rec.events if isinstance(event, StepSent)))
    models.sort(key=lambda name: steps.index(name) if name in steps else len(steps))
    views = (_section(rec.for_model(name), name, remedies, rec.span_ns) for name in models)
    sections = "\n".join([*pipeline_sections(rec), *views])
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(digest=digest)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{heading}</title>
<style>{_styles()}</style>
</head>
<body>
<main>
<h1>{heading}</h1>
<noscript><p>The views on this page need JavaScript.</p></noscript>
{sections}
</main>
<script type="module">{script}</script>
</body>
</html>
"""


def _section(rec: Recording, model: str, remedies: int, span_ns: tuple[int, int]) -> str:
    """Return the view of one model, and below it the summary and the configuration."""
    config = rec.configs.get(model)
    text = "" if config is None else text_format.MessageToString(config)
    data = _as_data(_data(rec, model, remedies, span_ns))
    return f"""<section aria-label="{html.escape(model)}">
<div class="tnb-page-view"></div><script type="application/json">{data}</script>
{rec._repr_html_()}
<details><summary>Configuration of {html.escape(model)}</summary><pre>{html.escape(text)}</pre></details>
</section>"""


def _data(rec: Recording, model: str, remedies: int, span_ns: tuple[int, int]) -> Json:
    config = rec.configs.get(model)
    blames = [] if config is None else blame_slowest(rec, config, _MOST_REQUESTS)
    latencies = {
        f"{blame.request.batch} {blame.request.label}": _latency(blame, with_remedies=place < remedies)
        for place, blame in enumerate(blames)
    }
    return {"history": recorded_history(rec, span_ns), "latencies": latencies, "meanings": dict(CAUSES)}


def _latency(blame: Blame, *, with_remedies: bool) -> Json:
    return {
        "title": blame.title,
        "parts": [[cause, ns / 1e6] for cause, ns in blame.parts.items()],
        "meanings": {cause: blame.meaning_of(cause) for cause in blame.outliers},
        "remedies": {cause: str(remedy) for cause, remedy in blame.remedies.items()} if with_remedies else None,
    }


def _as_data(value: Any) -> str:
    r"""Encode as JSON in which no tag, comment or entity can begin.

    Examples
    --------
    >>> _as_data("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _script() -> str:
    source = f"{join_modules(STATIC / 'batch_view' / 'standalone.js')}\nstart();\n"
    return source.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def _styles() -> str:
    files = (STATIC / name for name in ("page.css", "batch_view.css"))
    return style_sheet(".tnb-batch-view") + "".join(file.read_text("utf-8") for file in files)
