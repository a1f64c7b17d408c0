"""Key figures of a recording, and its one-sentence summary."""

from __future__ import annotations

from tritonnb.core.failures import with_short_traceback
from tritonnb.lab.analysis.blame import blame_request
from tritonnb.lab.analysis.latency_split import CAUSES, QUEUE_DELAY, WAITS
from tritonnb.lab.simulation.engine import Columns
from tritonnb.recording.batches import latencies_ms
from tritonnb.recording.generations import idle_share, token_times_of
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.from_config import queue_delay_ns
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.quantiles import quantile


def columns_of(recording: Recording) -> Columns:
    """Return the times of the requests in a recording."""
    columns = Columns()
    columns.refused = len(recording.refused)
    for batch, requests in recording.executed:
        for request in requests:
            columns.add_request(request.serial, request.size, request.received_ns, request.queued_ns)
        null_rows = batch.size - sum(request.size for request in requests)
        columns.add_batch(batch.exec_start_ns, batch.exec_end_ns, len(requests), null_rows)
    return columns


@with_short_traceback
def summary(recording: Recording) -> dict[str, float]:
    """Return the key figures of the recording.

    Returns
    -------
    dict
        ``requests``, ``rows``, ``batches`` : int
            What ran. A request that runs several times (iterative sequences) counts each time.
        ``rate`` : float
            Requests per second, from the first reception to the end of the last execution; virtual in a simulation.
        ``refused``, ``failed`` : int
            Requests that did not run, and requests that ran with an error.
        ``mean_batch_size`` : float
            Rows per batch.
        ``rows_batched`` : float
            Share (0 to 1) of the rows that ran in a batch with rows of another request.
        ``null_rows`` : int
            Null requests, the padding of the direct strategy of the sequence batcher.
        ``longest_queue_ms`` : float
            Longest time of a request in the queue, in milliseconds.
        ``latency_p50_ms``, ``latency_p99_ms`` : float
            Quantiles of the time from reception to the end of the execution, or to a later last response of a
            decoupled model, in milliseconds.
        ``tokens``, ``tokens_per_second``, ``time_to_first_token_p50_ms``, ``time_to_first_token_p99_ms``, \
        ``time_per_output_token_p50_ms``, ``time_per_output_token_p99_ms``, ``idle_slots`` : float
            Only with `generations`: what was computed when, without the way to the client; and the share (0 to 1)
            of the time in slots, or in places of static batches, after the end of a generation.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> rec = simulate("max_batch_size: 2 dynamic_batching { }", [(0, 2)] * 2, fixed(5))
    >>> rec.summary()["mean_batch_size"], rec.summary()["latency_p50_ms"]
    (2.0, 7.5)
    """
    columns = columns_of(recording)
    columns.failed = sum(1 for request in recording.requests if request.failed)
    figures = columns.summary()
    if any(request.responded_ns for request in recording.requests):  # columns have only the ends of executions
        latencies = latencies_ms(recording.requests)
        figures |= {f"latency_p{percent}_ms": quantile(latencies, percent / 100) for percent in (50, 99)}
    if recording.generations:
        figures |= token_times_of(recording.generations).summary()
        figures["idle_slots"] = idle_share(recording.generations)
    return figures


@with_short_traceback
def verdict(recording: Recording) -> str:
    """Summarize a recording in one sentence."""
    if not recording.batches:
        refused = recording.refused
        cause = f": {len(refused)} refused, the first with '{refused[0].message}'" if refused else ""
        return f"Nothing was executed{cause}."
    figures = summary(recording)
    if recording.source is not None and recording.source.sampled:
        p50_ms, p99_ms = figures["latency_p50_ms"], figures["latency_p99_ms"]
        count = pluralize(len(recording.requests), "traced request")
        return f"Sample of {count}: latency p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms; batches are not complete."
    wait = _wait_text(recording, figures["longest_queue_ms"])
    sentence = (
        f"{pluralize(int(figures['requests']), 'request')} ran in "
        f"{pluralize(len(recording.batches), 'batch', 'batches')}: "
        f"mean batch size {_mean_text(recording, figures['mean_batch_size'])}; {figures['rows_batched']:.0%} of the "
        f"{recording.unit} shared a batch; longest time in the queue {wait}"
    )
    if figures["null_rows"]:
        sentence += f"; batches also had {pluralize(int(figures['null_rows']), 'null row')}, which their sizes include"
    times = token_times_of(recording.generations)
    if times.count:
        sentence += f"; {times.verdict().removesuffix('.')}"
    for name in ("refused", "failed"):
        sentence += f"; {figures[name]} {name}" if figures[name] else ""
    return f"{sentence}."


def _mean_text(recording: Recording, mean: float) -> str:
    """Return the mean batch size with its unit, and the mean in rows that the server counted."""
    counted = sum(recording.source.unknown_rows.values()) if recording.source is not None else 0
    rows = f" ({counted / len(recording.batches):.1f} rows, as the server counted)" if counted else ""
    return f"{mean:.1f} {recording.unit}{rows}"


def _wait_text(recording: Recording, longest_ms: float) -> str:
    """Return the longest queue time, compared with the configured maximum delay if there is one."""
    models = {batch.model for batch in recording.batches}
    configs = [config for name, config in recording.configs.items() if name in models]
    allowed = queue_delay_ns(configs[0]) / 1e6 if len(models) == len(configs) == 1 else 0
    if not allowed:
        return f"{longest_ms:.1f} ms"
    if longest_ms <= 1.05 * allowed:
        return f"{longest_ms:.1f} ms (max_queue_delay {allowed:g} ms)"
    longest = max(recording.requests, key=lambda request: request.queue_ns)
    waits = {cause: ns for cause, ns in blame_request(recording, longest).parts.items() if cause in WAITS}
    waits[QUEUE_DELAY] = waits.get(QUEUE_DELAY, 0) - round(allowed * 1e6)
    cause = max(waits, key=waits.__getitem__)
    return f"{longest_ms:.1f} ms (max_queue_delay {allowed:g} ms; for {waits[cause] / 1e6:.1f} ms {CAUSES[cause]})"
