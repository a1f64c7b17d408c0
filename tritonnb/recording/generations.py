"""Generations: requests that a model answers token by token, the steps that compute the tokens, and their times.

With iterative sequences (continuous batching) each step is an execution, and the lane of a generation is its batch
slot. Otherwise a batch contains whole generations (static batching): a step ends with a response, the lane is the place
in the batch, and a generation that ends early leaves its place idle until the end of the batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tritonnb.core.events import BatchExecuted, Event, ResponseSent
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.batches import Batch, RequestRecord
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.quantiles import quantile

_PERCENTILES = (50, 99)


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation.

    Attributes
    ----------
    serial : int
        Of its request.
    model, instance : str
    lane : int
        Its batch slot, or its place in a static batch.
    arrived_ns : int
        When its request was accepted.
    steps : tuple of (int, int)
        Begin and end of each step; the first step reads the prompt, and each makes a token.
    free_ns : int
        When the next generation could take its place.
    """

    serial: int
    model: str
    instance: str
    lane: int
    arrived_ns: int
    steps: tuple[tuple[int, int], ...]
    free_ns: int

    @property
    def end_ns(self) -> int:
        """The time of its last token."""
        return self.steps[-1][1]

    @property
    def idle_ns(self) -> int:
        """The time for which its slot was kept unused."""
        return self.free_ns - self.end_ns

    def __repr__(self) -> str:
        tokens, latency_ms = pluralize(len(self.steps), "token"), (self.end_ns - self.arrived_ns) / 1e6
        return f"<Generation {self.serial}: {tokens} in slot {self.lane} of {self.instance}; {latency_ms:.2f} ms>"


def generations_of(
    events: Sequence[Event],
    configs: Mapping[str, pb.ModelConfig],
    executed: Iterable[tuple[Batch, Sequence[RequestRecord]]],
) -> list[Generation]:
    """Return the generations of a recording, in the order of their first steps; empty if there are none."""
    arrived: dict[int, int] = {}
    batches: dict[int, list[Batch]] = defaultdict(list)
    for batch, requests in executed:
        for request in requests:
            arrived.setdefault(request.serial, request.queued_ns)
            batches[request.serial].append(batch)
    responses: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, ResponseSent) and event.outcome == "success":
            responses[event.serial].append(event.time_ns)
    # A generation of one token is known as such by the others of its batch.
    generating = {own[0].number for serial, own in batches.items() if len(responses[serial]) > 1}
    # The loop of the server sees a response that was sent during an execution before the end of that execution.
    seen_ns = {event.batch: event.time_ns for event in events if isinstance(event, BatchExecuted)}
    generations = []
    for serial, own in batches.items():
        first = own[0]
        lane = (first.slots or range(len(first.requests)))[first.requests.index(serial)]
        times = responses[serial]
        config = configs.get(first.model)
        if config is not None and config.sequence_batching.iterative_sequence:
            steps = tuple([(batch.exec_start_ns, batch.exec_end_ns) for batch in own])
            free_ns = own[-1].exec_end_ns
        elif times and first.number in generating and len(own) == 1:
            is_late = times[-1] > seen_ns.get(first.number, first.exec_end_ns)
            ends = times if is_late else [min(time_ns, first.exec_end_ns) for time_ns in times]
            steps = tuple(zip([first.exec_start_ns, *ends], ends, strict=False))
            free_ns = max(first.exec_end_ns, ends[-1])
        else:
            continue
        generations.append(Generation(serial, first.model, first.instance, lane, arrived[serial], steps, free_ns))
    return sorted(generations, key=lambda generation: generation.steps[0])


def token_times_of(generations: list[Generation]) -> TokenTimes:
    """Return the times at which the tokens were computed; generations of one token are left out."""
    several = [generation for generation in generations if len(generation.steps) > 1]
    columns = [
        (generation.arrived_ns, generation.steps[0][1], generation.end_ns, len(generation.steps))
        for generation in several
    ]
    return TokenTimes(*(zip(*columns, strict=True) if columns else [()] * 4))


def idle_share(generations: list[Generation]) -> float:
    """Return the share (0 to 1) of the time in slots, or in places of batches, in which nothing was computed."""
    kept = sum(generation.free_ns - generation.steps[0][0] for generation in generations)
    return sum(generation.idle_ns for generation in generations) / kept if kept else 0.0


@dataclass(frozen=True)
class TokenTimes:
    """Begin, first token, end and number of tokens of generations.

    Attributes
    ----------
    begin_ns, first_ns, end_ns : sequence of int
        When each was sent, when its first token arrived, and when it was complete (monotonic clock).
    tokens : sequence of int
        Number of tokens of each, 2 or more.

    Examples
    --------
    >>> ms = 1_000_000
    >>> times = TokenTimes(begin_ns=[0, 0], first_ns=[5 * ms, 7 * ms], end_ns=[25 * ms, 27 * ms], tokens=[5, 5])
    >>> times.summary()["tokens"], times.summary()["time_to_first_token_p50_ms"]
    (10, 6.0)
    >>> times.verdict()
    '10 tokens, 370 tokens/s; time to first token p50 6 ms, time per output token p50 5.0 ms.'
    """

    begin_ns: Sequence[int]
    first_ns: Sequence[int]
    end_ns: Sequence[int]
    tokens: Sequence[int]

    @property
    def count(self) -> int:
        """Number of generations."""
        return len(self.tokens)

    @property
    def to_first_ms(self) -> list[float]:
        """Time to first token (TTFT) of each generation, sorted: the queue, and the step that reads the prompt."""
        return sorted((first - begin) / 1e6 for begin, first in zip(self.begin_ns, self.first_ns, strict=True))

    @property
    def per_token_ms(self) -> list[float]:
        """Time per output token (TPOT) of each generation, sorted: from the first token to the end, by later tokens."""
        times = zip(self.first_ns, self.end_ns, self.tokens, strict=True)
        return sorted((end - first) / 1e6 / (tokens - 1) for first, end, tokens in times)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all generations, from the time when the first was sent until the last was complete."""
        span_ns = max(self.end_ns) - min(self.begin_ns) if self.count else 0
        return sum(self.tokens) / span_ns * 1e9 if span_ns else 0.0

    def summary(self) -> dict[str, float]:
        """Return the key figures; empty without generations.

        Returns
        -------
        dict
            ``tokens``, ``tokens_per_second``, and the percentiles ``time_to_first_token_p50_ms``, ``..._p99_ms``,
            ``time_per_output_token_p50_ms``, ``..._p99_ms``.
        """
        if not self.count:
            return {}
        times = {"time_to_first_token": self.to_first_ms, "time_per_output_token": self.per_token_ms}
        percentiles = {
            f"{name}_p{percent}_ms": quantile(values, percent / 100)
            for name, values in times.items()
            for percent in _PERCENTILES
        }
        return {"tokens": sum(self.tokens), "tokens_per_second": self.tokens_per_second, **percentiles}

    def verdict(self) -> str:
        """Return the key figures in one sentence."""
        figures = self.summary()
        return (
            f"{figures['tokens']:,} tokens, {figures['tokens_per_second']:.0f} tokens/s; time to first token p50 "
            f"{figures['time_to_first_token_p50_ms']:.0f} ms, time per output token p50 "
            f"{figures['time_per_output_token_p50_ms']:.1f} ms."
        )
