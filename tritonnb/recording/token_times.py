"""Times of the tokens of generations: until the first one, and from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritonnb.telemetry.quantiles import quantile

_PERCENTILES = (50, 99)


@dataclass(frozen=True)
class TokenTimes:
    """Begin, first token, end and number of tokens of generations.

    Attributes
    ----------
    begin_ns, first_ns, end_ns : sequence of int
        When each was sent, when its first token arrived, and when it was complete (monotonic clock).
    tokens : sequence of int
        Number of tokens of each, 2 or more.
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
        """Tokens of all generations, over the time from the first one sent to the last one complete."""
        span_ns = max(self.end_ns) - min(self.begin_ns) if self.count else 0
        return sum(self.tokens) / span_ns * 1e9 if span_ns else 0.0

    def summary(self) -> dict[str, float]:
        """The key figures; empty without generations.

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
        """The key figures in one sentence."""
        figures = self.summary()
        return (
            f"{figures['tokens']:,} tokens, {figures['tokens_per_second']:.0f} tokens/s; time to first token p50 "
            f"{figures['time_to_first_token_p50_ms']:.0f} ms, time per output token p50 "
            f"{figures['time_per_output_token_p50_ms']:.1f} ms."
        )
