"""The input tensors that a load sends: generated from the metadata of the model, given, or made of prompts.

They are created and validated before the first request is sent, and used in turn.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.client.array_requests import make_request
from tritonnb.core.arguments import require_positive
from tritonnb.core.datatypes import zeros
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.json_types import Json
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.shapes import fits
from tritonnb.engine.models.validation import RequestValidator
from tritonnb.model_config.schema import ModelSpec, TensorSpec

Tensors = dict[str, np.ndarray]
Inputs = str | Mapping[str, npt.ArrayLike] | Sequence[Mapping[str, npt.ArrayLike]]
Shapes = Mapping[str, Sequence[int]]
#: Returns the next example with the given number of rows; None keeps the rows of the example.
NextExample = Callable[[int | None], Tensors]

#: Number of different random examples, and the limit of their total size in bytes.
_EXAMPLES, _BYTES = 16, 64_000_000
#: Random integers are below this: valid as class, character and token indices of most models.
_INTEGERS = 100
#: What is asked without texts of your own.
_SUBJECTS = (
    "json", "threading.Lock", "asyncio.Queue", "pathlib.Path", "the statistics module", "argparse", "a decorator",
    "random.shuffle", "itertools.groupby", "a context manager", "textwrap.wrap", "unittest.TestCase", "email.message",
)  # fmt: skip


def examples(spec: ModelSpec, inputs: Inputs, shapes: Shapes, seed: int) -> NextExample:
    """Create examples for a model, which are used in turn.

    Parameters
    ----------
    spec : ModelSpec
    inputs : str, mapping or sequence of mappings
        ``"random"``, ``"zero"``, the tensors of one request by name, or several of these.
    shapes : mapping of str to sequence of int
        The shape to use for an input of variable dimensions, without the batch dimension.
    seed : int
        Seed of random tensors.

    Raises
    ------
    InvalidArgumentError
        If they do not fit the model; with Triton's message if Triton would reject the request.
    """
    if isinstance(inputs, str):
        return _generated(spec, inputs, shapes, seed)
    several = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not several:
        raise InvalidArgumentError("inputs expected at least one example, got an empty list")
    checked = [_checked(spec, example) for example in several]
    if spec.max_batch_size == 0:
        return _in_turn(len(checked), lambda number, rows: checked[number])
    return _in_turn(len(checked), lambda number, rows: _with_rows(checked[number], rows))


def _in_turn(count: int, make: Callable[[int, int | None], Tensors]) -> NextExample:
    """Return the examples one after the other; ``make(number, rows)`` is called once for each combination."""
    numbers, made = cycle(range(count)), cache(make)
    return lambda rows: made(next(numbers), rows)


def _checked(spec: ModelSpec, inputs: Mapping[str, npt.ArrayLike]) -> Tensors:
    """Validate an example; return the arrays as the model receives them."""
    request = make_request(spec, -1, inputs.tensors_for(spec) if isinstance(inputs, Prompt) else inputs)
    arrays = {name: tensor.array for name, tensor in request.inputs.items()}
    RequestValidator(spec).check(request)
    return arrays


def _with_rows(example: Tensors, rows: int | None) -> Tensors:
    if rows is None:
        return example
    return {name: array.take(range(rows), axis=0, mode="wrap") for name, array in example.items()}


# --- generated from the metadata ------------------------------------------------------------------


def _generated(spec: ModelSpec, kind: str, shapes: Shapes, seed: int) -> NextExample:
    if kind not in ("random", "zero"):
        raise InvalidArgumentError(f"inputs expected 'random', 'zero', a dict of arrays or a list, got '{kind}'")
    if unknown := set(shapes) - set(spec.inputs):
        raise InvalidArgumentError(
            f"shapes expected inputs of model '{spec.name}' ({', '.join(map(repr, spec.inputs))}), got '{min(unknown)}'"
        )
    tensors = [tensor for tensor in spec.inputs.values() if not tensor.optional]
    dims = {tensor.name: _example_dims(spec, tensor, shapes) for tensor in tensors}
    batching = spec.max_batch_size > 0

    def make(number: int, rows: int | None) -> Tensors:
        rng = np.random.default_rng((seed % 2**64, number))  # NumPy refuses a seed below 0
        example: Tensors = {}
        for tensor in tensors:
            shape = (rows or 1, *dims[tensor.name]) if batching else dims[tensor.name]
            example[tensor.name] = zeros(tensor.datatype, shape) if kind == "zero" else _random(tensor, shape, rng)
        return example

    size = sum(math.prod(dims[tensor.name]) * (tensor.datatype.itemsize or 12) for tensor in tensors)
    fitting = _BYTES // (max(1, spec.max_batch_size) * max(1, size))
    return _in_turn(1 if kind == "zero" else max(1, min(_EXAMPLES, fitting)), make)


def _example_dims(spec: ModelSpec, tensor: TensorSpec, shapes: Shapes) -> tuple[int, ...]:
    if tensor.shape_tensor:
        raise InvalidArgumentError(
            f"input '{tensor.name}' of model '{spec.name}' is a shape tensor, which cannot be generated: give inputs="
        )
    dims = tuple(shapes.get(tensor.name, tensor.dims))
    if not fits(dims, tensor.dims):
        raise InvalidArgumentError(
            f"shapes for input '{tensor.name}' of model '{spec.name}' expected {list(tensor.dims)} (without the batch "
            f"dimension), got {list(dims)}"
        )
    if min(dims, default=1) < 0:
        example = [16 if dim < 0 else dim for dim in dims]
        raise InvalidArgumentError(
            f"input '{tensor.name}' of model '{spec.name}' has variable dimensions {list(dims)}: "
            f"give the shape to send, such as shapes={{'{tensor.name}': {example}}}"
        )
    return dims


def _random(tensor: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    datatype = tensor.datatype
    if datatype.variable_size:
        letters = rng.integers(ord("a"), ord("z") + 1, (*shape, 8), np.uint8)
        strings = np.empty(shape, object)
        for place in np.ndindex(shape):
            strings[place] = letters[place].tobytes()
        return strings
    if datatype.numpy.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if datatype.values_dtype.kind == "f":
        return datatype.from_values(rng.random(shape))
    return rng.integers(0, _INTEGERS, shape).astype(datatype.numpy)


class Prompt(dict[str, list[Any]]):
    """The inputs of one generation, by name: with a batch dimension, and including those that a model may lack.

    Examples
    --------
    >>> from tritonnb.core.protobuf import model_config_pb2 as pb
    >>> config = pb.ModelConfig(name="m", input=[{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}])
    >>> prompt = Prompt.from_text("Hello", tokens=2, sampling={"temperature": 0})
    >>> prompt["sampling_parameters"]
    [['{"max_tokens": 2, "ignore_eos": true, "temperature": 0}']]
    >>> prompt.tensors_for(ModelSpec.from_config(config))
    {'text_input': array(['Hello'], dtype=object)}
    """

    @classmethod
    def from_text(cls, text: str, tokens: int, sampling: Json) -> Prompt:
        """Return the inputs that set the number of tokens to generate.

        Parameters
        ----------
        text : str
        tokens : int
            Number of tokens to generate.
        sampling : dict
            Other parameters of the sampling.
        """
        options = {"max_tokens": tokens, "ignore_eos": True, **sampling}
        return cls(text_input=[[text]], stream=[[True]], sampling_parameters=[[json.dumps(options)]])

    def tensors_for(self, spec: ModelSpec) -> dict[str, np.ndarray]:
        """Return the inputs that a model has, each with one element, in the model's shape.

        Parameters
        ----------
        spec : ModelSpec

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
@with_checked_types
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
        Prompt.from_text(
            texts[number % len(texts)], min(most, max(1, round(length))), {"seed": seed + number, **sampling}
        )
        for number, length in enumerate(lengths)
    ]
