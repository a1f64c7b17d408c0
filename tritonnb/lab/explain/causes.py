"""What limits a model's rate, and which figures contradict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.execution_diagnoses import SLOWED, drift_defect, reload_text
from tritonnb.lab.explain.batches import (
    BATCHES,
    BUSY,
    HARDLY,
    MOST,
    NOT_BUSY,
    batches,
    instances_of,
    is_mostly_unknown,
    waits_for_delay,
)
from tritonnb.lab.explain.figures import Figures
from tritonnb.scheduling.from_config import queue_delay_ns
from tritonnb.scheduling.reasons import pluralize

#: A rate of which this share is answered is met.
_MET = 0.95
#: Batches are full from this share of max_batch_size on.
_FULL = 0.9
#: Each batch takes all requests that wait, if these are on average at most this multiple of a batch.
_TAKES_ALL = 1.3
#: More executions than this multiple of the instances overlap, or the number of instances is wrong.
_OVERLAPS = 1.3
#: A model that a request calls more often is not one step of an ensemble.
_CALLED_ONCE = 1.1
#: All clients are in the same batch, up to this multiple of a batch.
_ONE_BATCH = 1.1
#: A level within this share of the highest rate is at the maximum.
_AT_MAXIMUM = 0.93
#: A rate grows as the clients, from this share of their growth on.
_GROWS = 0.8
#: Half of the last digit of a rate with two.
_ROUNDED = 0.005
#: Figures that differ by more than this share contradict: averages over different windows differ somewhat.
_TOLERANCE = 0.15
#: Waits that are this multiple of earlier waits, and of an execution, show a server that degrades.
_LONGER = 3.0
#: Waits of this share of an execution are not those of the server's own work.
_WAITS = 0.3
#: Executions are alone, or beside others, with up to, or from, this number of them at the same time, in batches of the
#: same size within a share.
_ALONE, _BESIDE, _SAME_SIZE = 1.1, 1.7, 0.1

Cause = tuple[str, str]


def limit(figures: Figures, config: pb.ModelConfig | None, others: Sequence[Figures] = ()) -> Cause:
    """Return what limits the rate: a name, and a sentence with the figures; the name is empty if nothing follows.

    Parameters
    ----------
    figures : Figures
        The measurement with the highest load.
    config : ModelConfig or None
    others : sequence of Figures
        Measurements with other loads.
    """
    for rule in (
        _of_client,
        _of_ensemble,
        _of_instances,
        _of_offered,
        _of_levels,
        _of_overhead,
        _of_delay,
        _of_few_clients,
    ):
        if found := rule(figures, config, others):
            return found
    return _of_totals(figures, config)


def _of_ensemble(figures: Figures, config: pb.ModelConfig | None, others: Sequence[Figures]) -> Cause | None:
    times = [(step, *_of_step(step, figures)) for step in figures.steps if step.server_ms]
    if not times:
        return None
    slowest, calls, taken = max(times, key=itemgetter(2))
    whole = figures.server_ms or figures.latency_ms or taken
    name, text = limit(slowest, slowest.config)
    often = f" in {calls:.1f} calls" if calls > _CALLED_ONCE else ""
    together = sum(one for _, _, one in times)
    if together < MOST * whole:
        return (
            "overhead",
            f"the model itself: all models that it calls take {together:.1f} of "
            f"{whole:.1f} ms (the longest, '{slowest.model}', {taken:.1f} ms{often}); the rest is its own code"
            + ("" if figures.clients == 1 else ", or its requests wait for its instances"),
        )
    share = min(1.0, taken / whole) if whole else 1.0
    return (
        f"step:{name}",
        f"the step '{slowest.model}' takes {taken:.1f} ms of {whole:.1f} ms ({share:.0%}){often}: {text}",
    )


def _of_step(step: Figures, figures: Figures) -> tuple[float, float]:
    """Return how often a request calls a step, and how long that takes in ms."""
    calls = step.rate / figures.rate if step.rate and figures.rate else 1.0
    return calls, max(1.0, calls) * (step.server_ms or 0.0)


def _of_client(figures: Figures, config: pb.ModelConfig | None, others: Sequence[Figures]) -> Cause | None:
    if not figures.latency_ms or figures.server_ms is None:
        return None
    outside = figures.latency_ms - figures.server_ms
    if outside < MOST * figures.latency_ms:
        return None
    return (
        "outside_server",
        f"{outside:.2f} of {figures.latency_ms:.2f} ms are outside of the server's measurement: client, network, and "
        f"reading requests. The model is not the limit: send large tensors binary or in shared memory, use more client "
        f"processes, or run the client near the server",
    )


def _of_instances(figures: Figures, config: pb.ModelConfig | None, others: Sequence[Figures]) -> Cause | None:
    busy, execution = _at_work(figures, instances_of(config))
    alone = config is not None and (config.max_batch_size <= 1 or not config.WhichOneof("scheduling_choice"))
    if busy is None and alone and figures.rate and execution:
        busy = figures.rate * execution / 1e3
    if busy is None or execution is None:
        return None
    count = instances_of(config)
    # Without their number, only requests that wait longer than they run show that instances are scarce.
    if not count and ((figures.queue_ms or 0) < execution or busy < 0.5):
        return None
    known = count or max(1, round(busy))
    if busy < BUSY * known:
        return None
    assumed = "" if count else f" (assumed, because the number of instances was not given: {known})"
    at_work = f"on average {busy:.1f} executions of {execution:.2f} ms run at the same time on " \
              f"{pluralize(known, 'instance')}{assumed}"  # fmt: skip
    room = _room(figures, config)
    if figures.offered and figures.rate and figures.rate >= _MET * figures.offered:
        rest = f"batches have room ({room})" if room else "they can hardly take more"
        return (
            "load",
            f"the load: {figures.offered:g} requests/s are sent, and all are answered. The instances execute nearly "
            f"all the time ({at_work}); {rest}",
        )
    if room:
        return (
            "batches_not_full",
            f"the clients and the instances: {at_work}, but batches have room ({room}), and each takes all requests "
            f"that wait. More clients fill the batches; the rate grows as far as a larger batch takes less than "
            f"proportionally longer",
        )
    queue = f"; requests wait {figures.queue_ms:.1f} ms for them" if figures.queue_ms is not None else ""
    full = "" if config is not None or (figures.mean_requests or 1) < BATCHES else (
        ", unless batches have room: max_batch_size was not given"
    )  # fmt: skip
    return (
        "instances_busy",
        f"the instances are at their capacity: {at_work}{queue}. More clients add waiting time, not throughput{full}",
    )


def _at_work(figures: Figures, count: int) -> tuple[float | None, float | None]:
    """Return the mean number of executions at the same time, and their time in ms.

    Some backends copy the tensors of one execution during another, so that executions with their copies can be more
    than the instances.
    """
    busy, execution, infer = figures.busy, figures.execution_ms, figures.infer_ms
    if not count or not busy or not infer or not execution or busy <= _OVERLAPS * count:
        return busy, execution
    alone = busy * infer / execution
    return (alone, infer) if alone <= _OVERLAPS * count else (busy, execution)


def _room(figures: Figures, config: pb.ModelConfig | None) -> str:
    """Return the rows of a mean batch and the most, if batches have room and take all that wait; otherwise nothing."""
    rows, requests = figures.mean_rows, figures.mean_requests
    if config is None or not rows or not requests or not batches(config) or rows >= _FULL * config.max_batch_size:
        return ""
    waiting = (figures.rate or 0.0) * (figures.queue_ms or 0.0) / 1e3
    # If more wait than a batch takes, something beside their number keeps them apart.
    if waiting > max(1.0, _TAKES_ALL * requests) or rows + rows / requests > config.max_batch_size:
        return ""
    return f"{rows:.1f} of {config.max_batch_size} rows"


def _of_offered(figures: Figures, config: pb.ModelConfig | None, others: Sequence[Figures]) -> Cause | None:
    if not figures.offered or not figures.rate or figures.rate >= figures.offered * (1 - _TOLERANCE):
        return None
    if figures.queue_ms is None or not figures.compute_ms or figures.queue_ms > HARDLY * figures.compute_ms:
        return None
    on_the_way = (
        f"; {figures.rate * figures.latency_ms / 1e3:.1f} are on the way on average" if figures.latency_ms else ""
    )
    return (
        "load_generator",
        f"the load generator: {figures.offered:g} requests/s were to be sent and {figures.rate:.1f} were answered, "
        f"while requests hardly wait in the server ({figures.queue_ms:.2f} ms){on_the_way}: use more threads or "
        f"processes for it",
    )


def _of_levels(figures: Figures, config: pb.ModelConfig | None, others: Sequence[Figures]) -> Cause | None:
    """Several levels show by themselves at which load the rate stops to grow, or that it still grows."""
    levels = sorted(
        ((level.clients, _rate_of_level(level), level) for level in (*others, figures) if level.clients and level.rate),
        key=itemgetter(0, 1),
    )  # fmt: skip
    if len({clients for clients, _, _ in levels}) < 2:
        return None
    most = max(rate for _, rate, _ in levels)
    clients, _, level = next(one for one in levels if one[1] >= _AT_MAXIMUM * most)
    (fewest, least, lowest), (last, final, highest) = levels[0], levels[-1]
    if last >= 1.5 * clients:
        return (
            "saturated",
            f"the rate stops growing at concurrency {clients:g}: {level.rate:.4g} requests/s there, {highest.rate:.4g} "
            f"at concurrency {last:g}{_latencies(level, highest)}. Something is at its capacity of about {most:.3g} "
            f"requests/s; a figure of the server (queue, compute) tells whether it is the instances",
        )
    if figures is highest and figures.queue_ms is not None:
        return None
    grown = f"from {lowest.rate:.4g} to {highest.rate:.4g} requests/s{_latencies(lowest, highest)}"
    if final / least >= _GROWS * last / fewest:
        return (
            "few_clients",
            f"the clients: from concurrency {fewest:g} to {last:g}, the rate grows nearly as much as their number, "
            f"{grown}: raise the concurrency",
        )
    return (
        "",
        f"the figures do not tell it: from concurrency {fewest:g} to {last:g}, the rate grows only {final / least:.2f} "
        f"times, {grown}, so something is near its capacity. The server's queue and compute times at concurrency "
        f"{last:g} are needed",
    )


def _rate_of_level(figures: Figures) -> float:
    """Return the rate; GenAI-Perf writes two digits, of which low rates have more by Little's law."""
    rate = figures.rate or 0.0
    by_latency = 0.0 if not figures.latency_ms or not figures.clients else figures.clients / figures.latency_ms * 1e3
    return max(rate, min(by_latency, rate + _ROUNDED))


def _latencies(first: Figures, last: Figures) -> str:
    if not first.latency_ms or not last.latency_ms:
        return ""
    return f", while the latency goes from {first.latency_ms:.2f} to {last.latency_ms:.2f} ms"


def _of_overhead(figures: Figures, config: pb.ModelConfig | None, others: Sequence[Figures]) -> Cause | None:
    if not is_mostly_unknown(figures):
        return None
    whole = figures.server_ms or 0.0
    rest = whole - (figures.queue_ms or 0.0) - (figures.compute_ms or 0.0)
    return (
        "overhead",
        f"{rest:.2f} of {whole:.2f} ms in the server are neither queue nor compute: responses that are "
        f"sent late, decoupled or calling models, or steps of an ensemble, whose own figures tell",
    )


def _of_delay(figures: Figures, config: pb.ModelConfig | None, others: Sequence[Figures]) -> Cause | None:
    if config is None or figures.busy is None or not waits_for_delay(figures, config):
        return None
    if (figures.queue_ms or 0.0) < HARDLY * (figures.server_ms or figures.latency_ms or 0.0):
        return None
    return (
        "queue_delay",
        f"the queue time of {figures.queue_ms:.2f} ms is max_queue_delay ({queue_delay_ns(config) / 1e6:g} ms): "
        f"requests wait for others, while only {figures.busy:.2f} {_known_instances(config)}. The batches do not fill "
        f"in that time",
    )


def _known_instances(config: pb.ModelConfig | None) -> str:
    count = instances_of(config)
    return f"of {pluralize(count, 'instance')} execute" if count else "execute, of an unknown number"


def _of_few_clients(figures: Figures, config: pb.ModelConfig | None, others: Sequence[Figures]) -> Cause | None:
    queue, whole = figures.queue_ms, figures.server_ms or figures.latency_ms
    if figures.clients is None:
        return None
    if figures.clients == 1 and figures.latency_ms and figures.server_ms is None and queue is None:
        return (
            "few_clients",
            f"the client: at concurrency 1 there is one request at a time, so 1 / {figures.latency_ms:.2f} ms is the "
            f"rate, whatever the server could do: raise the concurrency",
        )
    if figures.mean_requests and 1 < figures.clients <= _ONE_BATCH * figures.mean_requests:
        return (
            "few_clients",
            f"the clients: all {figures.clients:g} are in the same batch ({figures.mean_requests:.2f} requests), and "
            f"the next batch begins when they have sent again: raise the concurrency",
        )
    if queue is None or not whole or queue > HARDLY * whole:
        return None
    # What is neither queue nor compute may be at its own limit.
    if figures.compute_ms is not None and queue + figures.compute_ms < MOST * whole:
        return None
    if figures.busy is None:
        more = "A higher concurrency tells whether the server can take more"
    elif instances_of(config):
        more = "The server can take more: raise the concurrency"
    else:
        more = f"On average {figures.busy:.2f} instances execute: raise the concurrency, if there are more of them"
    who = "one client waits" if figures.clients == 1 else f"{figures.clients:g} of them wait"
    return (
        "few_clients",
        f"the clients: {who} for each response before sending the next request, so {figures.clients:g} / "
        f"{figures.latency_ms or whole:.2f} ms is the rate, and the queue is nearly empty ({queue:.2f} ms). {more}",
    )


def _of_totals(figures: Figures, config: pb.ModelConfig | None) -> Cause:
    """Without a rate, only the shares of the time are known; nothing is said with certainty."""
    queue, compute = figures.queue_ms, figures.compute_ms
    if queue is None or not compute:
        return "", "the figures do not tell it: the server's queue and compute times are needed"
    full = config is not None and config.max_batch_size > 1 and (figures.mean_rows or 0) >= 0.9 * config.max_batch_size
    delay_ms = 0.0 if config is None else queue_delay_ns(config) / 1e6
    busy, count = figures.busy, max(1, instances_of(config))
    idle = busy is not None and busy < NOT_BUSY * count
    if full and queue > compute and not idle:
        return (
            "instances_busy",
            f"probably the instances: batches are full ({figures.mean_rows:.1f} rows) and requests still wait "
            f"{queue:.1f} ms, {queue / compute:.1f} times an execution",
        )
    if queue <= HARDLY * compute:
        return "load", f"the load: requests hardly wait ({queue:.2f} ms; an execution takes {compute:.2f} ms)"
    if idle:
        when = "if the load was there all the time between both (otherwise give its seconds), " \
            if figures.is_time_estimated else ""  # fmt: skip
        return (
            "",
            f"{when}instances idle (on average {busy:.2f} {_known_instances(config)}), and yet requests wait "
            f"{queue:.1f} ms: averages do not tell why. Requests that arrive in bursts do that, requests of more rows "
            f"or other shapes than fit together, a queue delay, or executions that at times stall",
        )
    words = f"max_queue_delay is {delay_ms:g} ms; " if delay_ms else ""
    if busy is None:
        words += "bursts, or instances at their capacity, do that. The rate is needed to tell"
    elif instances_of(config):
        words += f"on average {busy:.2f} of {pluralize(count, 'instance')} execute, which is near their capacity"
    else:
        words += f"on average {busy:.2f} instances execute; how many there are was not given"
    waits = f"requests wait {queue:.2f} ms, {queue / compute:.1f} times an execution ({compute:.2f} ms)"
    return "", f"not certain: {waits}; {words}"


def contradictions(figures: Figures, config: pb.ModelConfig | None) -> Iterator[str]:
    """Yield what cannot be true together."""
    rate, clients, latency = figures.rate, figures.clients, figures.latency_ms
    if rate and clients and latency:
        needed = rate * latency / 1e3
        if needed > clients * (1 + _TOLERANCE) + 0.5:
            yield (
                f"{rate:,.0f} requests/s with {clients:g} clients and {latency:g} ms do not fit: {clients:g} clients "
                f"that wait for each response reach at most {clients / latency * 1e3:,.0f} requests/s (Little's law). "
                f"Is the rate in rows, are there more clients, or is the latency that of the server?"
            )
        elif needed < clients * (1 - _TOLERANCE) - 0.5:
            yield (
                f"{clients:g} clients with {latency:g} ms would send {clients / latency * 1e3:,.0f} requests/s, but "
                f"{rate:,.0f} were measured: the clients pause between requests (is the load generator at its limit?), "
                f"or failed requests are not counted"
            )
    if figures.offered and rate and rate < figures.offered * (1 - _TOLERANCE):
        yield f"{figures.offered:g} requests/s were to be sent, {rate:.1f} were answered: the queue grows, "\
              f"or the load generator cannot send so many; the latency is that of this duration only"  # fmt: skip
    if latency and figures.server_ms and figures.server_ms > latency * (1 + _TOLERANCE):
        yield (
            f"the server counts {figures.server_ms:.2f} ms for a request, its client only {latency:.2f} ms: the "
            f"statistics contain other requests too"
        )
    if figures.executed and figures.executions and figures.executions > 1.01 * figures.executed:
        yield (
            f"{figures.executions:,.0f} executions are more than the {figures.executed:,.0f} requests: the model is "
            f"sequential or decoupled, failed requests ran, or the counts are of different times"
        )
    size = 0 if config is None else config.max_batch_size
    if size and figures.mean_rows and figures.mean_rows > size * 1.01:
        yield (
            f"{figures.mean_rows:.1f} rows an execution are more than max_batch_size {size}: this is not the "
            f"configuration of these figures"
        )
    count = instances_of(config)
    busy, _ = _at_work(figures, count)
    if count and busy and busy > count * _OVERLAPS:
        yield (
            f"{busy:.1f} executions at the same time do not fit on {pluralize(count, 'instance')}: the time of a "
            f"request is not that of an execution (a decoupled or calling model?), or there are more instances"
        )


def degrades(figures: Figures, config: pb.ModelConfig | None, version: str) -> str:
    """Say that requests wait longer than before beside idle instances, or as with a known defect; empty otherwise.

    Parameters
    ----------
    figures : Figures
    config : ModelConfig or None
    version : str
        Of the server; empty if unknown.
    """
    before, busy, count = figures.before, figures.busy, instances_of(config)
    if config is None or figures.queue_ms is None or busy is None or count < 2 or busy >= NOT_BUSY * count:
        return ""
    waited, execution = figures.queue_ms, figures.execution_ms or 0.0
    earlier = None if before is None else before.queue_ms
    beyond = waited - queue_delay_ns(config) / 1e6
    if before is None or earlier is None or beyond < _LONGER * max(earlier, execution):
        if beyond < _WAITS * execution or drift_defect(config, version) is None:
            return ""
        return (
            f"**Requests wait beside idle instances**: {waited:.1f} ms, while {busy:.2f} of "
            f"{pluralize(count, 'instance')} execute on average (bursts would look the same). "
            f"{reload_text(config, version)}"
        )
    rates = f"{before.rate:,.1f} requests/s before, {figures.rate:,.1f} now; " if before.rate and figures.rate else ""
    return (
        f"**Degrades** since {before.label}: requests wait {waited:.1f} ms, and {earlier:.1f} ms before, while "
        f"{busy:.2f} of {pluralize(count, 'instance')} execute on average ({rates}larger bursts would look the same). "
        f"{reload_text(config, version)}"
    )


def company(measured: Sequence[Figures], config: pb.ModelConfig | None) -> str:
    """Say that instances slow each other down, if measurements at several loads show it; empty otherwise.

    Parameters
    ----------
    measured : sequence of Figures
        With several loads.
    config : ModelConfig or None
    """
    known = [one for one in measured if one.busy and one.infer_ms and one.mean_rows]
    known.sort(key=lambda one: one.busy or 0)
    if len(known) < 2 or (known[0].busy or 0) > _ALONE or (known[-1].busy or 0) < _BESIDE:
        return ""
    alone, beside = known[0], known[-1]
    factor = (beside.infer_ms or 0) / (alone.infer_ms or 1)
    same_size = abs((beside.mean_rows or 1) / (alone.mean_rows or 1) - 1) < _SAME_SIZE
    if factor < SLOWED or not same_size or instances_of(config) == 1:
        return ""
    busy = beside.busy or 1
    return (
        f"**Instances slow each other down**: an execution takes {alone.infer_ms:.2f} ms at {alone.label}, and "
        f"{beside.infer_ms:.2f} ms at {beside.label}, where {busy:.1f} run at the same time: {factor:.1f} times as "
        f"long. They share cores, a device, memory or a lock"
    )
