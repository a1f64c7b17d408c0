"""A recording as text and as HTML: its verdict, its batches by size, and its diagnoses."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

_VIRTUAL = "Simulated: times and rates are virtual, not measured."


def as_text(recording: Recording) -> str:
    """The recording in a few lines."""
    remarks = [f"  {remark}" for remark in recording.remarks()]
    if recording.source is not None and recording.source.sampled:
        return "\n".join([recording.verdict(), *remarks])
    lines = [recording.verdict()]
    for size, count in recording.batch_sizes().items():
        lines.append(f"  batch size {size:>4}: {count:>5} x {recording.median_ms(size):8.2f} ms (median)")
    return "\n".join([*lines, *remarks, *(f"  ! {diagnosis}" for diagnosis in recording.diagnoses())])


def remarks_of(recording: Recording) -> list[str]:
    """How the numbers are to be read."""
    remarks = [_VIRTUAL] if recording.simulated else []
    if recording.source is not None:
        remarks += [f"From a trace: {text}." for text in recording.source.remarks()]
    return remarks


def as_html(recording: Recording) -> str:
    """The recording as HTML, as a notebook shows it."""
    verdict = f"<p><b>{html.escape(recording.verdict())}</b></p>"
    remarks = "".join(f"<p><i>{html.escape(remark)}</i></p>" for remark in recording.remarks())
    if recording.source is not None and recording.source.sampled:
        return verdict + remarks
    rows = "".join(
        f"<tr><td>{size}</td><td>{count}</td><td>{recording.median_ms(size):.2f}</td></tr>"
        for size, count in recording.batch_sizes().items()
    )
    table = (
        "<table><thead><tr><th>batch size (rows)</th><th>batches</th><th>compute, median (ms)</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
    findings = "".join(f"<li>{html.escape(str(diagnosis))}</li>" for diagnosis in recording.diagnoses())
    return verdict + (table if rows else "") + (f"<ul>{findings}</ul>" if findings else "") + remarks
