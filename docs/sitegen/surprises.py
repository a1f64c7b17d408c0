"""The two consequences of the rules that surprise most users: a picture each, and what the scheduler says about it."""

from __future__ import annotations

from pathlib import Path

from tritonnb.lab.figures.picture import Picture
from tritonnb.lab.teaching.worksheet import Worksheet
from tritonnb.recording.arrivals import Arrival

SURPRISES = {
    "beyond-preferred": Worksheet(
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 20000 }",
        [Arrival(ms=0, rows=2), Arrival(ms=5, rows=4)],
        10,
    ),
    "delay-while-busy": Worksheet(
        "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000 }",
        [Arrival(ms=ms, rows=2) for ms in (0, 7, 10, 17, 21)],
        20,
    ),
}


def write_fragments(directory: Path) -> None:
    """Write a fragment of a page for each: configuration and arrivals, the picture, and the reason of every batch."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, sheet in SURPRISES.items():
        picture = sheet.recording.plot.timeline()
        assert isinstance(picture, Picture)
        (directory / f"{name}.svg").write_text(picture.svg_for_both_themes(), "utf-8")
        (directory / f"{name}.md").write_text(fragment(name, sheet, picture.alt), "utf-8")


def fragment(name: str, sheet: Worksheet, alt: str) -> str:
    """Return the fragment of a page."""
    _, requests = sheet.table()
    arrivals = ", ".join(f"{request} with {rows} rows at {ms} ms" for request, ms, rows in requests)
    reasons = [f"{number + 1}. {sheet.why(number)}." for number in range(len(sheet.batches))]
    return "\n".join(
        [
            f"`{' '.join(sheet.config.split())}`. An execution takes {sheet.execution_ms} ms; {arrivals}:",
            "",
            f"![{alt}]({name}.svg)",
            "",
            *reasons,
            "",
        ]
    )
