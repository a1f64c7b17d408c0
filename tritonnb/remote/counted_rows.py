"""The rows of requests, from what a server counted: the trace of a request has them only with the level ``TENSORS``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tritonnb.telemetry.difference import difference
from tritonnb.telemetry.statistics_entry import StatisticsEntry

#: The name and the version of a model.
ModelVersion = tuple[str, int]


@dataclass(frozen=True, slots=True)
class CountedRows:
    """The rows and the requests that a server executed during a recording.

    Attributes
    ----------
    rows, requests : int
        Of the requests that succeeded, without responses from the cache.
    batch_sizes : tuple of int
        The sizes of the batches, in rows.
    """

    rows: int
    requests: int
    batch_sizes: tuple[int, ...]

    @classmethod
    def between(cls, after: StatisticsEntry, before: StatisticsEntry) -> Self:
        """What was counted between two readings of the statistics."""
        new = difference(after, before)
        sizes = tuple([entry["batch_size"] for entry in new["batch_stats"]])
        return cls(new["inference_count"], new["inference_stats"]["compute_infer"]["count"], sizes)

    @property
    def per_request(self) -> int | None:
        """The rows of each request; None if they are not known.

        A request has at least one row: with as many rows as requests, each has one. More rows are the same for each
        request if the mean and the sizes of all batches are multiples of it.

        Examples
        --------
        >>> CountedRows(rows=200, requests=200, batch_sizes=(1, 2)).per_request
        1
        >>> CountedRows(rows=600, requests=200, batch_sizes=(3, 6)).per_request
        3
        >>> CountedRows(rows=400, requests=200, batch_sizes=(1, 3)).per_request is None
        True
        """
        mean, rest = divmod(self.rows, self.requests)
        return None if rest or any(size % mean for size in self.batch_sizes) else mean


def counted_rows(
    after: Sequence[StatisticsEntry], before: Sequence[StatisticsEntry]
) -> Mapping[ModelVersion, CountedRows]:
    """What was counted of each model version; nothing of one that was loaded in between, and so began at 0 again."""
    earlier = {(entry["name"], int(entry["version"])): entry for entry in before}
    later = {(entry["name"], int(entry["version"])): entry for entry in after}
    counts = {key: CountedRows.between(later[key], earlier[key]) for key in later.keys() & earlier.keys()}
    return {key: count for key, count in counts.items() if 0 < count.requests <= count.rows}
