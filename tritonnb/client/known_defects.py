"""Known defects of released Triton servers that users see as slowness, wrong figures or lost responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tritonnb.core.protobuf import model_config_pb2 as pb

#: The release 24.10 is version 2.51, and with few exceptions each month has another minor version.
_VERSION = re.compile(r"2\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect of Triton.

    Attributes
    ----------
    name, text : str
        ``text`` says what users see, and what helps.
    first, last : int
        Minor versions 2.N of the first and the last release that is known to have it.
    releases : str
        The same as names of containers, and the release that mends it.
    source : str
        Issue or pull request.
    applies : callable
        Whether the configuration of a model meets the condition.
    without : range, optional
        Minor versions between the first and the last that do not have it.
    """

    name: str
    text: str
    first: int
    last: int
    releases: str
    source: str
    applies: Callable[[pb.ModelConfig], bool]
    without: range = range(0)

    def concerns(self, version: str) -> bool:
        """Return whether a version has the defect; without a version it may be, and other servers have none.

        Examples
        --------
        >>> [DEFECTS[0].concerns(version) for version in ("2.51.0", "2.75.0", "", "2025.3")]
        [True, False, True, False]
        """
        match = _VERSION.match(version)
        if match is None:
            return not version
        minor = int(match[1])
        return self.first <= minor <= self.last and minor not in self.without

    def __str__(self) -> str:
        return f"{self.text} ({self.releases}; {self.source})"


def _policies(config: pb.ModelConfig) -> Iterable[pb.ModelQueuePolicy]:
    batching = config.dynamic_batching
    return (batching.default_queue_policy, *batching.priority_queue_policy.values())


def _has_timeout(config: pb.ModelConfig) -> bool:
    return any(policy.default_timeout_microseconds for policy in _policies(config))


def _may_drift(config: pb.ModelConfig) -> bool:
    """The default policy decides whether batches are formed ahead; a delay leaves payloads that can be merged."""
    batching, groups = config.dynamic_batching, config.instance_group
    # Without a count, a server with several GPUs creates several instances: it cannot be excluded.
    single = bool(groups) and sum(max(1, group.count) * max(1, len(group.gpus)) for group in groups) == 1
    several = not single or any(group.kind in (pb.ModelInstanceGroup.KIND_AUTO, pb.ModelInstanceGroup.KIND_GPU)
                                and not group.gpus for group in groups)  # fmt: skip
    timeout, delay = batching.default_queue_policy.default_timeout_microseconds, batching.max_queue_delay_microseconds
    return bool(timeout and delay and several)


DEFECTS = (
    Defect(
        "waiting_consumer_drift",
        "the throughput decays over minutes while instances idle, because a counter of waiting instances drifts when "
        "batches are merged; only loading the model again helps: remove default_timeout_microseconds of the "
        "default_queue_policy or max_queue_delay_microseconds, or upgrade",
        37, 71, "23.08 to 26.07, fixed in 26.08", "server #8870, core #509", _may_drift,
    ),
    Defect(
        "late_timeouts",
        "while all instances are busy, requests whose queue timeout has expired are answered up to 0.5 s late, and "
        "before 24.04 only when an instance becomes idle: a client waits longer than the timeout",
        0, 74, "up to 26.10, not examined in 26.11", "server #7512, #6796, core #333", _has_timeout,
    ),
    Defect(
        "lost_order",
        "preserve_ordering has no effect: several instances answer in the order in which they complete",
        61, 71, "25.09 to 26.07, fixed in 26.08", "core #449, #520",
        lambda config: bool(config.dynamic_batching.preserve_ordering),
    ),
    Defect(
        "cached_answer_holds_back_others",
        "with preserve_ordering and a response cache, an answer of the cache leaves a place in the order that nothing "
        "fills: later requests are executed and never answered",
        0, 74, "up to 25.08 and 26.08 to 26.10, fixed in 26.11", "release notes of 26.11",
        lambda config: bool(config.dynamic_batching.preserve_ordering and config.response_cache.enable),
        range(61, 72),
    ),
    Defect(
        "swapped_statistics",
        "durations in the statistics of PyTorch 2 archives are swapped: compute_infer shows about 1.8e19 ns",
        69, 72, "26.05 to 26.08, fixed in 26.09", "server #8874",
        lambda config: config.platform == "torch_aoti" or config.default_model_filename.endswith(".pt2"),
    ),
    Defect(
        "silent_stream_cancellation",
        "a gRPC stream whose client reads slowly may be cancelled without an error",
        0, 74, "before 26.11", "release notes of 26.11", lambda config: bool(config.model_transaction_policy.decoupled),
    ),
)  # fmt: skip


def known_defects(config: pb.ModelConfig, version: str = "") -> list[Defect]:
    """Return the defects that a model meets on a version of Triton.

    Parameters
    ----------
    config : ModelConfig
    version : str, optional
        As in the server metadata, such as ``2.51.0``; by default unknown, so that every release counts.

    Examples
    --------
    >>> config = pb.ModelConfig()
    >>> config.dynamic_batching.default_queue_policy.default_timeout_microseconds = 1000
    >>> [defect.name for defect in known_defects(config, "2.51.0")]
    ['late_timeouts']
    """
    return [defect for defect in DEFECTS if defect.concerns(version) and defect.applies(config)]
