"""Helpers of the tests that run the notebooks, and the claims of the lessons that are checked against their outputs."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from nbformat import NotebookNode

#: What `make` installs beside what `pip install "tritonnb[all]"` does.
NEEDED = {"07_ensembles_and_bls": "rapidocr_onnxruntime"}


@dataclass(frozen=True)
class Claim:
    """A sentence of a lesson, and what the output of a cell must contain for it to be true.

    Sentences about what is measured are no claims: the lessons write them from the figures, so that they hold on a
    busy machine.

    Attributes
    ----------
    lesson, sentence : str
        The number of the lesson, and a part of its text.
    cell : str
        A part of the source of the cell.
    shows : str
        A regular expression for its output, descriptions of figures included.
    """

    lesson: str
    sentence: str
    cell: str
    shows: str


#: Sentences about what is the same on every machine.
CLAIMS = [
    Claim("02", "Five executions take 250 ms.", "alone.plot.timeline()", r"Timeline of 250\.0 ms"),
    Claim(
        "02", "150 ms. The first request found an idle instance", "batched.plot.timeline()", r"Timeline of 150\.0 ms"
    ),
    Claim("02", "Two full executions, and the last response arrives 33 ms earlier", "patient.plot()", r"116\.7 ms"),
    Claim("02", "although the first request now waits 16.7 ms", "patient.plot()", r"16\.7 ms"),
    Claim("02", "reach the *smallest* preferred size first", "small = tnb.simulate", r"\[2, 2, 2, 2\]"),
    Claim("02", "there are two, of six rows and of two", "busy = tnb.simulate", r"\[6, 6, 2\]"),
    Claim(
        "02",
        "The idle instance takes the first request at once",
        "beyond = ",
        r"at +5\.0 ms .*would go beyond preferred 4",
    ),
    Claim(
        "02",
        "at 17 and 21 ms form the next batch",
        "expired = ",
        r"at 25\.0 ms .*2 requests that came later were not added",
    ),
    Claim("02", "waits for the instance until 25 ms", "expired = ", r"at 25\.0 ms +2 requests, 4 rows"),
    Claim(
        "03", "counts **rows**: 3 + 4 = 7.", "get_inference_statistics", r"'inference_count': 7, 'execution_count': 4"
    ),
    Claim(
        "03",
        "is executed alone. Meanwhile the other fifteen",
        "sixteen = ",
        r"delay 0 ms, batches by rows: \{1: \d+, 15: \d+\}",
    ),
    Claim(
        "03", "A delay of a millisecond keeps them together.", "sixteen = ", r"delay 1 ms, batches by rows: \{16: 50\}"
    ),
    Claim("03", "Seven requests, twenty-two rows.", "def stateful", r"7 rows requested, 22 computed"),
    Claim(
        "04", "Sequences 0 to 3 each get a slot", "direct = ", r"6 sequences in 4 slots .* 2 sequences waited in the"
    ),
    Claim("04", "When 2 ends, 4 gets its slot at the same", "def controls", r"END \[0, 1\] .*'2'\]\n.*'4'\]\n.*'4'\]"),
    Claim("04", "Every batch but the first and the last is full", "batches by requests", r"\[1, 2, 2, 2, 2, 2, 1\]"),
    Claim("04", "and there are no null requests", "oldest = ", r"0 of 12 rows are null requests"),
    Claim("05", "arrive within the delay of 100 ms are one call", "rows of each call", r"rows of each call: \[1, 4\]"),
    Claim("05", "The crash cost one request", "fragile = ", r"16\.0 4\.0\n-1\.0 .*\n25\.0 5\.0"),
    Claim("06", "there is nothing to batch", "clients=1, requests=20", r"mean batch size 1\.0"),
    Claim("06", "batches of one and of seven alternate", "alternating = ", r"\[1, 7, 1, 7,"),
    Claim("06", "the other seven requests form the next batch", "alternating = ", r"\[1, 7, 1, 7,"),
    Claim("06", "The other four wait *for the instance*", "five = ", r"1 request, 1 row.*\n.*4 requests, 4 rows"),
    Claim(
        "06",
        "without a delay the first is executed alone",
        "def batches_of",
        r"\[8, 4, 4\] +delay +0 us: batches of \[8, 8\]",
    ),
    Claim(
        "06",
        "They form one batch if they are allowed to wait",
        "def batches_of",
        r"\[8, 4, 4\] +delay 1000 us: batches of \[16\]",
    ),
    Claim(
        "06",
        "in `[12, 8, 4]` the 12 rows are executed alone",
        "def batches_of",
        r"\[12, 8, 4\] +delay 1000 us: batches of \[12, 12\]",
    ),
    Claim(
        "06",
        "and every batch has 256 rows",
        "for preferred in",
        r"\[256, 25600, 51200\] +batches by rows: \{256: \d+\}",
    ),
    Claim(
        "06",
        "Without 256 in the list, most have 25600.",
        "for preferred in",
        r"\[25600, 51200\] +batches by rows: \{25600: ",
    ),
    Claim("06", "batches have one row more than the largest preferred size", "crowd = ", r"delay 100000 us: .*33:"),
    Claim("06", "which is a hard limit", "limited = ", r"^(?!.*33)"),
    Claim("06", "1 ms at one request every 0.2 ms is five", "for gap_us in", r"one every 0\.2 ms: \[1, 4, 5, 5, 5,"),
    Claim(
        "06", "executed at once, alone; the other three wait", 'eager = direct("")', r"1 request, 1 row.*\n.*3 requests"
    ),
    Claim("06", "the delay alone has no effect", "delay_alone = ", r"delay alone: .*null rows"),
    Claim("06", "later requests are rejected because they have no START flag", "idle_us=15_000", r"9 refused"),
    Claim("06", "all ten are executed, including the late ones", "idle_us=1_000_000", r"10 requests ran"),
    Claim(
        "06",
        "The latency is half as long again, and the batches are no larger",
        "runs = {",
        r"0\.0 ms: p50 15\.5 ms.*mean batch 3\.97\n.* 0\.1 ms: p50 23\.1 ms.*mean batch 3\.95",
    ),
    Claim("06", "Here, the refusals come at once.", 'for action in ("REJECT"', r"REJECT refused after \[500, 600\] ms"),
    Claim("06", "With `DELAY` nothing is refused", 'for action in ("REJECT"', r"DELAY +refused after \[\] ms"),
    Claim(
        "06",
        "so there is one request at a time",
        "one_by_one = ",
        r"one instance +50 .* net 1\.0, .*\n8 inst.* net 4\.0",
    ),
    Claim("06", "as fast as its slowest model", "ensemble = ", r"48 clients: pre +21\d\d\d/s.* both +21\d\d\d/s"),
    Claim(
        "07", "Loading the ensemble `ocr` also loads the models", 'load_models=["ocr"', r"'ocr_crop', 'ocr_detection'"
    ),
    Claim("09", "`max_candidate_sequences: 8` are the slots.", "config.text", r"max_candidate_sequences: 8\n"),
]


def require_packages(path: Path) -> None:
    """Skip the test of a notebook whose packages are not installed."""
    needed = NEEDED.get(path.stem)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")


def check_outputs(notebook: NotebookNode) -> None:
    """Every cell has run without an error or a warning, and there is a figure."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in cells if cell.execution_count is None] == []
    shown = [output for cell in cells for output in cell.outputs]
    assert [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert any("image/png" in output.get("data", {}) for output in shown)


def check_claims(path: Path, notebook: NotebookNode) -> None:
    """Every claim is a sentence of the lesson, and the output of its cell agrees."""
    text = " ".join(" ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown").split())
    for claim in (claim for claim in CLAIMS if path.stem.startswith(claim.lesson)):
        assert claim.sentence in text, claim
        (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and claim.cell in cell.source]
        assert re.search(claim.shows, output_text(cell)), (claim, output_text(cell))


def output_text(cell: NotebookNode) -> str:
    """What a cell printed and displayed, as text; a figure is its description."""
    data = (output.get("text") or output.get("data", {}).get("text/plain", "") + "\n" for output in cell.outputs)
    return "".join(data)
