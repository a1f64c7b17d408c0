"""Whether requests are batched, and what their queue and their executions consist of."""

from __future__ import annotations

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.explain.figures import Figures
from tritonnb.lab.simulation.run import instance_count
from tritonnb.scheduling.from_config import queue_delay_ns

#: Instances that execute for this share of the time are at their capacity; below the second, they are not.
BUSY, NOT_BUSY = 0.85, 0.7
#: Requests are combined from this mean on.
BATCHES = 1.05
#: Requests hardly wait, up to this share of what they wait for.
HARDLY = 0.25
#: On average up to this number of requests wait, where there is rarely a second one.
_ONE_WAITS = 1.1
#: A part that is this share of a whole explains it.
MOST = 0.5


def instances_of(config: pb.ModelConfig | None) -> int:
    """Return the instances; 0 if the configuration does not say it, because they depend on the GPUs.

    Parameters
    ----------
    config : ModelConfig or None
    """
    if config is None or not config.instance_group:
        return 0
    on_all_gpus = any(
        group.kind in (pb.ModelInstanceGroup.KIND_AUTO, pb.ModelInstanceGroup.KIND_GPU) and not group.gpus
        for group in config.instance_group
    )
    return 0 if on_all_gpus and sum(group.count for group in config.instance_group) == 0 else instance_count(config)


def is_mostly_unknown(figures: Figures) -> bool:
    """Return whether most of the time in the server is neither queue nor compute, as that of an ensemble is.

    Parameters
    ----------
    figures : Figures
    """
    if not figures.server_ms or figures.queue_ms is None or figures.compute_ms is None:
        return False
    return figures.server_ms - figures.queue_ms - figures.compute_ms >= MOST * figures.server_ms


def batches(config: pb.ModelConfig) -> bool:
    """Return whether Triton combines requests of a model.

    Parameters
    ----------
    config : ModelConfig
    """
    return config.max_batch_size > 1 and bool(
        config.HasField("dynamic_batching") or config.HasField("sequence_batching")
    )


def batching(figures: Figures, config: pb.ModelConfig | None) -> str:
    """Say whether requests share executions, and why as many as do.

    Parameters
    ----------
    figures : Figures
    config : ModelConfig or None
    """
    mean, size = figures.mean_requests, 0 if config is None else config.max_batch_size
    if figures.hits and not figures.executions:
        return f"Nothing is executed: the response cache answered all {figures.hits:,.0f} requests"
    shared = "" if mean is None else f"{mean:.2f} requests share an execution"
    if figures.mean_rows and figures.mean_rows != mean:
        shared += f" ({figures.mean_rows:.1f} rows)"
    if config is not None and config.HasField("ensemble_scheduling"):
        return "Not by the ensemble: its steps have their own batches, and their figures tell"
    if config is not None and size <= 1:
        return f"No: max_batch_size is {size}, so each request runs alone" + (f" ({shared})" if shared else "")
    if config is not None and not batches(config):
        return (
            f"No: the configuration has no dynamic_batching, so Triton never combines requests"
            f"{f' ({shared})' if shared else ''}; add dynamic_batching {{ }}"
        )
    if mean is None:
        return "The figures do not tell: the numbers of requests and executions are needed"
    if mean < BATCHES and is_mostly_unknown(figures):
        return f"The figures do not tell: {shared}, as in every ensemble, whose steps have their own batches"
    if mean < BATCHES:
        return f"No, {shared}: {_why_alone(figures, config)}"
    full = size and figures.mean_rows and figures.mean_rows >= 0.95 * size
    why = "batches are full" if full else _why_partly(figures, config)
    return f"Yes, {shared}: {why}"


def _why_alone(figures: Figures, config: pb.ModelConfig | None) -> str:
    size, rows = 0 if config is None else config.max_batch_size, figures.request_rows or figures.mean_rows or 1
    if figures.clients == 1:
        return "concurrency is 1, so there is never a second request to combine with; send several at once"
    if size and 2 * rows > size:
        return f"a request has {rows:g} rows, and two do not fit into max_batch_size {size}"
    if config is not None and waits_for_delay(figures, config):
        return (
            f"each waits {figures.queue_ms:.1f} ms, the max_queue_delay of {queue_delay_ns(config) / 1e6:g} ms, and no "
            f"other request arrives in this time: requests are sent one after another; send several at once"
        )
    if figures.queue_ms is not None and figures.compute_ms and figures.queue_ms > HARDLY * figures.compute_ms:
        waiting = None if figures.rate is None else figures.rate * figures.queue_ms / 1e3
        if waiting is not None and waiting < _ONE_WAITS and config is not None:
            return f"on average only {waiting:.1f} requests wait, so there is rarely a second one to combine with"
        variable = config is not None and any(-1 in tensor.dims for tensor in config.input)
        reason = "their inputs have variable shapes, and only equal shapes are combined (see ragged batches)"
        unknown = "is dynamic_batching configured? " if config is None else ""
        return f"requests do wait ({figures.queue_ms:.1f} ms) and yet run alone: {unknown}" + (
            reason if variable else "they may have different shapes or parameters, or arrive after the batch was sent"
        )
    if figures.queue_ms is None:
        return "the figures do not tell why: requests are combined that wait at the same time for the same instance"
    return "requests find an idle instance when they arrive; batches form while all instances are busy, or in a delay"


def _why_partly(figures: Figures, config: pb.ModelConfig | None) -> str:
    if figures.clients and figures.mean_requests and figures.clients <= 1.5 * figures.mean_requests:
        return f"more than {figures.clients:g} requests are never in the server"
    is_busy = figures.busy is not None and figures.busy >= BUSY * max(1, instances_of(config))
    if config is not None and not is_busy:
        # Triton adds the preferred size max_batch_size to configurations that it returns.
        preferred = [size for size in config.dynamic_batching.preferred_batch_size if size != config.max_batch_size]
        goal = min(preferred, default=config.max_batch_size)
        name = f"preferred_batch_size {preferred}" if preferred else f"max_batch_size {goal}"
        rows, delay_ms = figures.mean_rows or figures.mean_requests or 0, queue_delay_ns(config) / 1e6
        if preferred and rows >= 0.95 * goal:
            return f"{name} sends batches earlier"
        if delay_ms and rows >= 0.7 * goal:
            return f"{name} or max_queue_delay ({delay_ms:g} ms) sends them; averages do not tell which"
        if waits_for_delay(figures, config):
            probably = "probably " if figures.busy is None else ""
            return f"{probably}max_queue_delay ({delay_ms:g} ms) ends before {name} is reached"
    return "a batch contains what has arrived when an instance becomes idle"


def waits_for_delay(figures: Figures, config: pb.ModelConfig) -> bool:
    """Return whether the mean queue time is about the delay, and not a wait for busy instances.

    Parameters
    ----------
    figures : Figures
    config : ModelConfig
    """
    if figures.busy is not None and figures.busy >= NOT_BUSY * max(1, instances_of(config)):
        return False
    delay_ms = queue_delay_ns(config) / 1e6
    return bool(delay_ms) and figures.queue_ms is not None and 0.3 * delay_ms <= figures.queue_ms <= 1.3 * delay_ms


def queue(figures: Figures, config: pb.ModelConfig | None) -> str:
    """Say what the queue time consists of, as far as averages tell.

    Parameters
    ----------
    figures : Figures
    config : ModelConfig or None
    """
    waited = figures.queue_ms
    if waited is None:
        return "The figures have no queue time"
    if is_mostly_unknown(figures):
        return f"{waited:.2f} ms, without the waits inside of the model's time, as for the steps of an ensemble"
    inside = "" if figures.in_server is None else (
        f"; {figures.in_server:.1f} requests are in the server on average (Little's law), of which "
        f"{(figures.rate or 0) * waited / 1e3:.1f} wait"
    )  # fmt: skip
    delay_ms = 0.0 if config is None else queue_delay_ns(config) / 1e6
    part = f"{waited:.2f} ms, {waited / (waited + (figures.compute_ms or 0) or 1):.0%} of queue and compute{inside}"
    if delay_ms:
        certain = max(0.0, waited - delay_ms)
        part += f". At most {min(delay_ms, waited):.2f} ms are max_queue_delay, at least {certain:.2f} ms other waits"
    return part


def copies(figures: Figures) -> str:
    """Say that the copies of tensors take most of an execution; empty otherwise.

    Parameters
    ----------
    figures : Figures
    """
    parts = {"input": figures.input_ms or 0.0, "output": figures.output_ms or 0.0}
    name, ms = max(parts.items(), key=lambda pair: pair[1])
    if not figures.compute_ms or ms < MOST * figures.compute_ms or is_mostly_unknown(figures):
        return ""
    why = (
        "copying inputs, from the request to the device, takes longer than the model: smaller datatypes, or shared "
        "memory of the device, help more than a faster model"
        if name == "input" else
        "copying outputs takes longer than the model; backends that start work on a device and do not wait for it "
        "count that wait here, too"
    )  # fmt: skip
    return f"**Copies**: compute {name} takes {ms:.2f} of {figures.compute_ms:.2f} ms of an execution: {why}"
