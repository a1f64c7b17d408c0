"""The waterfall of a request of a pipeline."""

from __future__ import annotations

import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from tests.recording.test_pipelines import Events
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import BLS_REQUEST

MS = 1_000_000


def test_bars_and_critical_path_of_the_slowest_request() -> None:
    events = Events()
    for end in (20 * MS, 30 * MS):
        root = events.execution(0, end, "caller")
        events.step(root, events.execution(MS, end - 5 * MS), rule=BLS_REQUEST, model="caller")
        events.step(root, events.execution(MS, end - 9 * MS), rule=BLS_REQUEST, model="caller")
    rec = Recording(events.events)
    figure = rec.plot.waterfall()
    assert figure.alt == (
        "Waterfall of request 4 of caller: 30.0 ms, 2 requests below it. "
        "Critical path: caller itself 6.0 ms, m 24.0 ms."
    )
    [ax] = figure.axes
    assert [tick.get_text().strip() for tick in ax.get_yticklabels()] == ["caller", "m", "m"]
    widths = {round(bar.get_width(), 6) for bar in ax.patches if isinstance(bar, Rectangle)}
    assert widths == {30, 24, 20}
    paths = [line.get_segments()[0][:, 0].tolist() for line in ax.collections if isinstance(line, LineCollection)]
    assert paths == [[0, 1], [1, 25], [25, 30]]
    first = rec.pipelines["caller"].requests[0]
    assert rec.plot.waterfall(first).alt.startswith("Waterfall of request 1 of caller: 20.0 ms")


def test_recording_without_a_pipeline_has_no_waterfall() -> None:
    with pytest.raises(InvalidArgumentError, match="expected a recording of a pipeline"):
        Recording().plot.waterfall()
