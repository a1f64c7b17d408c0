"""Prompts for a load: texts to continue, and how many tokens to generate for each."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
from tritonnb.simulation.arrivals import require_positive

#: What is asked without texts of your own.
_SUBJECTS = (
    "json", "threading.Lock", "asyncio.Queue", "pathlib.Path", "the statistics module", "argparse", "a decorator",
    "random.shuffle", "itertools.groupby", "a context manager", "textwrap.wrap", "unittest.TestCase", "email.message",
)  # fmt: skip


def prompts(
    texts: Sequence[str] | None = None,
    *,
    count: int = 64,
    tokens: float = 48,
    spread: float = 1.0,
    most: int = 400,
    seed: int = 0,
    **sampling: Any,
) -> list[dict[str, list[Any]]]:
    """Make inputs for `load`: prompts for a model with the tensors of Triton's vLLM backend, such as ``tiny_gpt``.

    The lengths of the generations have a log-normal distribution, as those of chats do: most are short, a few are long.
    The model is asked not to end earlier (``ignore_eos``).

    Parameters
    ----------
    texts : sequence of str, optional
        The prompts, used in turn; by default short questions about Python.
    count : int, optional
        Number of different inputs.
    tokens : float, optional
        Mean number of tokens to generate.
    spread : float, optional
        Standard deviation of the logarithm of that number; 0 for equal lengths.
    most : int, optional
        No generation is longer.
    seed : int, optional
        Of the lengths; generation ``n`` has the seed ``seed + n``.
    **sampling
        More sampling parameters: ``temperature=0.8``, ``top_k=20``, …

    Returns
    -------
    list of dict
        For the parameter ``inputs`` of `load`.

    Raises
    ------
    InvalidArgumentError
        If a number is not positive, or the list of texts is empty.

    Examples
    --------
    >>> [request] = prompts(["Once"], count=1, tokens=5, spread=0)
    >>> request["text_input"], request["sampling_parameters"]
    ([['Once']], [['{"max_tokens": 5, "ignore_eos": true, "seed": 0}']])
    """
    require_positive(count=count, tokens=tokens, most=most)
    if spread < 0:
        raise InvalidArgumentError(f"spread must not be negative, got {spread}")
    if texts is None:
        texts = [f"Question: what is {subject}?\nAnswer:" for subject in _SUBJECTS]
    if isinstance(texts, str) or not texts:
        raise InvalidArgumentError(f"texts expected a list of at least one prompt, got {texts!r}")
    rng = random.Random(seed)
    # The mean of a log-normal distribution is exp(mu + sigma² / 2).
    lengths = [rng.lognormvariate(math.log(tokens) - spread**2 / 2, spread) for _ in range(count)]
    return [
        _inputs(texts[number % len(texts)], min(most, max(1, round(length))), {"seed": seed + number, **sampling})
        for number, length in enumerate(lengths)
    ]


def _inputs(text: str, tokens: int, sampling: Json) -> dict[str, list[Any]]:
    options = {"max_tokens": tokens, "ignore_eos": True, **sampling}
    return {
        "text_input": [[text]],
        "stream": [[True]],
        "sampling_parameters": [[json.dumps(options)]],
    }
