"""What a batch view shows of a recording: in a widget, in the page of `Recording.to_html`, and in the playground."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import pack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.notebook.feed import INTERVAL_NS, Feed

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

#: The maximum number of batches of a recording that are shown one by one, and the number of its intervals at least.
_MAX_RECORDED, _RECORDED_INTERVALS = 5000, 500


def recorded_history(recording: Recording) -> Json:
    """Return what a view of a recording of one model shows: see `BatchView`."""
    model = recording.events[0].model
    begin, end = recording.span_ns
    config = recording.configs.get(model, pb.ModelConfig())
    interval_ns = INTERVAL_NS
    while (end - begin) // interval_ns < _RECORDED_INTERVALS and interval_ns % 2 == 0:
        interval_ns //= 2
    feed = Feed(
        model, config, begin, keep=_MAX_RECORDED, limited=False,
        interval_ns=interval_ns, keep_intervals=2 * _RECORDED_INTERVALS,
    )  # fmt: skip
    feed.meta["simulated"] = recording.simulated
    feed.fold(map(pack, recording.events))
    feed.flush(end)
    return feed.history(end)
