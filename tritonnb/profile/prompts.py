"""Prompts for a load: texts to continue, and how many tokens to generate for each."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.json_types import Json
from tritonnb.model_config.schema import ModelSpec
from tritonnb.simulation.arrivals import require_positive, require_seed

#: What is asked without texts of your own.
_SUBJECTS = (
    "json", "threading.Lock", "asyncio.Queue", "pathlib.Path", "the statistics module", "argparse", "a decorator",
    "random.shuffle", "itertools.groupby", "a context manager", "textwrap.wrap", "unittest.TestCase", "email.message",
)  # fmt: skip


class Prompt(dict[str, list[Any]]):
    """The inputs of one generation, by name: with a batch dimension, and including those that a model may lack."""

    @classmethod
    def of(cls, text: str, tokens: int, sampling: Json) -> Prompt:
        """The inputs that ask for a number of tokens after a text."""
        options = {"max_tokens": tokens, "ignore_eos": True, **sampling}
        return cls(text_input=[[text]], stream=[[True]], sampling_parameters=[[json.dumps(options)]])

    def tensors_for(self, spec: ModelSpec) -> dict[str, np.ndarray]:
        """The inputs that a model has, each with one element, in the model's shape.

        Raises
        ------
        InvalidArgumentError
            If the model has no input ``text_input``.
        """
        if "text_input" not in spec.inputs:
            names = ", ".join(map(repr, spec.inputs))
            raise InvalidArgumentError(
                f"prompts for model '{spec.name}' expected the input 'text_input', got a model with {names}"
            )
        rows = (1,) if spec.max_batch_size > 0 else ()
        return {
            name: np.array(value, tensor.datatype.numpy).reshape(*rows, *(1 for _ in tensor.dims))
            for name, value in self.items()
            if (tensor := spec.inputs.get(name)) is not None
        }


@with_short_traceback
def prompts(
    texts: Sequence[str] | None = None,
    *,
    count: int = 64,
    tokens: float = 48,
    spread: float = 1.0,
    most: int = 400,
    seed: int = 0,
    **sampling: Any,
) -> list[Prompt]:
    """Make inputs for `load`: prompts for a model that generates text, such as ``tiny_gpt``.

    The model has the input ``text_input`` of Triton's vLLM backend. The inputs ``stream`` and ``sampling_parameters``
    are sent if it has them. With ``sampling_parameters`` the lengths of the generations have a log-normal distribution,
    as those of chats do: most are short, a few are long. The model is asked not to end earlier (``ignore_eos``).

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
    list of Prompt
        Dictionaries of the inputs, for the parameter ``inputs`` of `load`.

    Raises
    ------
    InvalidArgumentError
        If a number is not positive, the seed is not an integer, or the list of texts is empty.

    Examples
    --------
    >>> [request] = prompts(["Once"], count=1, tokens=5, spread=0)
    >>> request["text_input"], request["sampling_parameters"]
    ([['Once']], [['{"max_tokens": 5, "ignore_eos": true, "seed": 0}']])
    """
    require_positive(count=count, tokens=tokens, most=most)
    require_seed(seed)
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
        Prompt.of(texts[number % len(texts)], min(most, max(1, round(length))), {"seed": seed + number, **sampling})
        for number, length in enumerate(lengths)
    ]
