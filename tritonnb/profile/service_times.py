"""How long a live model takes for batches of each size, found by asking it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.profile.examples import Inputs, Shapes
from tritonnb.profile.load import load

if TYPE_CHECKING:
    from tritonnb.model_handle import ModelHandle

#: Batches of each size; the first ones are left out, since models warm up.
_BATCHES, _WARM_UP = 12, 3


def service_times(
    model: ModelHandle, *, inputs: Inputs = "random", shapes: Shapes | None = None, seed: int = 0
) -> dict[int, float]:
    """Measure a model: milliseconds by batch size (medians), for powers of two and the largest.

    A stateless model gets one request of so many rows after the other; a stateful one, which takes one
    row a request, as many sequences at once.

    Parameters
    ----------
    model : ModelHandle
    inputs, shapes, seed
        As for `load`.

    Returns
    -------
    dict of int to float
        For `tritonnb.table`.

    Raises
    ------
    InvalidArgumentError
        If the model answered nothing but errors.
    """
    limit = max(1, model.served.spec.max_batch_size)
    stateful = model.served.config.HasField("sequence_batching")
    found: dict[int, list[float]] = defaultdict(list)
    for size in [*(2**power for power in range(limit.bit_length()) if 2**power < limit), limit]:
        shared = {"inputs": inputs, "shapes": shapes, "seed": seed}
        asked = (
            {"clients": size, "requests": size * _BATCHES, "sequence_length": _BATCHES}
            if stateful
            else {"clients": 1, "requests": _BATCHES, "size": size}
        )
        result = load(model, **asked, **shared).wait()  # type: ignore[arg-type]
        if result.failed == result.requests:
            raise InvalidArgumentError(f"model '{model.name}' cannot be measured: {next(iter(result.errors), '')}")
        assert result.recording is not None
        for batch in result.recording.batches[_WARM_UP:]:
            found[batch.size].append(batch.compute_ns / 1e6)
    return {size: statistics.median(times) for size, times in sorted(found.items())}
