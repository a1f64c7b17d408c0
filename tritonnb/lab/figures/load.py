"""The figures of a load: the latency of each request over its intended send time, and the times of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.lab.figures.palette import COMPUTE, GREY, INK, QUEUE, REFUSAL, series
from tritonnb.lab.figures.picture import axes_for, figure_of
from tritonnb.lab.figures.scale import draw_cumulative, duration, label_axes, label_log_axis
from tritonnb.lab.load.result import COMPLETED, ERROR, INTENDED, SENT, LoadResult

#: Maximum number of requests drawn; of more requests every k-th is drawn.
_DOTS = 4000
#: If the load generator lagged by more than this share of the latency, the latency since sending is also drawn.
_LATE = 0.05


def draw(result: LoadResult, ax: Axes | None = None) -> Figure:
    """Draw the latency of each request over time, into ``ax`` or a new figure.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=4)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     result = tnb.load(server["double"], clients=2, requests=40).wait()
    >>> result.plot().alt.startswith("Latency")
    True
    """
    ax = axes_for(ax, 3.2, f"Latency of each request over time. {result.verdict()}")
    table = result.responses[:: len(result.responses) // _DOTS + 1]
    table = table[np.argsort(table[:, INTENDED])]
    begin = result.responses[:, INTENDED].min() if result.requests else 0
    succeeded = table[table[:, ERROR] == 0]
    failed = table[table[:, ERROR] != 0]

    def draw_latencies(requests: npt.NDArray[np.int64], since: int, marker: str, **style: Any) -> None:
        seconds = (requests[:, INTENDED] - begin) / 1e9
        ax.plot(seconds, (requests[:, COMPLETED] - requests[:, since]) / 1e6, marker, **style)

    draw_latencies(succeeded, INTENDED, ".", ms=3, color=series(0), label="since intended send time")
    lag_ms = result.summary()["scheduling_lag_p99_ms"]
    if lag_ms is not None and lag_ms > _LATE * result.percentile(99):
        draw_latencies(succeeded, SENT, ".", ms=3, color=series(2), label="since actual send time")
    if len(failed):
        draw_latencies(failed, INTENDED, "x", color=REFUSAL, label="failed")
    count = f"n = {len(succeeded):,}"
    for name, color, line in ((50, INK, "-"), (99, GREY, "--")) if len(succeeded) else ():
        value = result.percentile(name)
        ax.axhline(value, color=color, linestyle=line, linewidth=1.2, label=f"p{name} {value:.2f} ms, {count}")
    ax.set_ylim(bottom=0)
    label_axes(ax, "time (s)", "latency (ms)")
    ax.legend(fontsize=8, loc="upper left", frameon=False, ncols=5, bbox_to_anchor=(0, 1.14))
    return figure_of(ax)


@with_short_traceback
def draw_tokens(result: LoadResult, ax: Axes | None = None) -> Figure:
    """Draw the cumulative distributions of the time to the first token and of the time per output token.

    Raises
    ------
    InvalidArgumentError
        If no request was answered by several tokens.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import tritonnb as tnb
    >>> model = Path(tempfile.mkdtemp()) / "count"
    >>> (model / "1").mkdir(parents=True)
    >>> _ = (model / "config.pbtxt").write_text('''backend: "python"
    ... input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
    ... model_transaction_policy { decoupled: true }''')
    >>> _ = (model / "1" / "model.py").write_text('''
    ... import triton_python_backend_utils as pb_utils
    ... class TritonPythonModel:
    ...     def execute(self, requests):
    ...         for request in requests:
    ...             x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
    ...             sender = request.get_response_sender()
    ...             for number in range(4):
    ...                 sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + number)]))
    ...             sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    ... ''')
    >>> with tnb.Server(model.parent, port=0) as server:
    ...     result = tnb.load(server["count"], clients=1, requests=3).wait()
    >>> result.plot_tokens().alt[:54]
    'Cumulative distributions of the times of 3 generations'
    """
    times = result.token_times
    if not times.count:
        raise InvalidArgumentError("figure of token times expected requests with several tokens, got none")
    ax = axes_for(ax, 3.2, f"Cumulative distributions of the times of {times.count:,} generations: {times.verdict()}")
    curves = (
        ("time to first token", times.to_first_ms, QUEUE, "-"),
        ("time per output token", times.per_token_ms, COMPUTE, "--"),
    )
    for name, values, colour, style in curves:
        label = f"{name}, p50 {duration(np.median(values) * 1e6)}"
        draw_cumulative(ax, values, color=colour, linestyle=style, label=label)
    ax.set_xscale("log")
    label_log_axis(ax.xaxis)
    label_axes(ax, f"time (ms, logarithmic), n = {times.count:,} generations", "generations (%)")
    ax.legend(fontsize=8, frameon=False, loc="best")
    return figure_of(ax)
