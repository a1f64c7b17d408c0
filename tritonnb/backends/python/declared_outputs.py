"""The inputs and outputs of a model's configuration, and a warning if the model uses others.

Triton says nothing in these cases: the model gets None, or the client a response that differs from the metadata. So the
log does, once for each model instance and name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Self

from tritonnb.core.messages import Tensor
from tritonnb.core.shapes import fits, shape_text
from tritonnb.core.suggestions import did_you_mean
from tritonnb.core.texts import shown
from tritonnb.model_config.schema import TensorSpec

logger = logging.getLogger(__name__)


class DeclaredInputs:
    """The inputs of a model: what to say if it asks for another input and gets None.

    Parameters
    ----------
    names : sequence of str
        Of the configuration; a request may lack optional inputs.
    model : str
    """

    def __init__(self, names: Sequence[str], model: str) -> None:
        self._names = names
        self._model = model
        self._reported: set[str] = set()
        self.hint = ""

    def report(self, name: object, present: Iterable[str]) -> None:
        """Set ``hint``, and log it if it has not been logged, unless the input is optional."""
        if name in self._names:
            # Only a model that fails has not expected it.
            self.hint = (
                self.hint or f"get_input_tensor_by_name returned None: the request lacks optional input '{name}'"
            )
            return
        # `present` may have controls, which are not among the configured inputs.
        known = list(dict.fromkeys([*self._names, *present]))
        listed = ", ".join(map(repr, known)) or "none"
        similar = did_you_mean(name, known) if isinstance(name, str) else ""
        only = f"; did you mean '{known[0]}'?" if len(known) == 1 else ""
        self.hint = f"get_input_tensor_by_name expected an input ({listed}), got {shown(name)}{similar or only}"
        # Once for each name: a model asks again with every batch.
        if shown(name) not in self._reported:
            self._reported.add(shown(name))
            logger.warning("model '%s': %s", self._model, self.hint)


class DeclaredOutputs(tuple[str, ...]):
    """The names of the outputs in a model's configuration.

    Other outputs that the model returns are dropped, as on Triton. That is logged once, since the client gets a
    response that lacks an output, and no error.

    Parameters
    ----------
    names : sequence of str
    model : str
    others : sequence of str, optional
        Other names that the model may return, such as the names of its states.
    """

    model: str
    others: Sequence[str]
    is_reported: bool
    has_differed: bool

    def __new__(cls, names: Iterable[str], model: str, others: Sequence[str] = ()) -> Self:
        """Create the tuple of the names."""
        outputs = super().__new__(cls, names)
        outputs.model, outputs.others = model, others
        outputs.is_reported = outputs.has_differed = False
        return outputs

    def report(self, returned: Iterable[str]) -> None:
        """Log that outputs are dropped, if it has not been logged."""
        dropped = [name for name in returned if name not in self and name not in self.others]
        if not dropped or self.is_reported:
            return
        self.is_reported = True
        declared = ", ".join(map(repr, self)) or "none"
        logger.warning(
            "model '%s': returned output '%s' is dropped: expected the outputs of the configuration (%s)%s",
            self.model,
            dropped[0],
            declared,
            did_you_mean(dropped[0], self) or (f"; did you mean '{self[0]}'?" if len(self) == 1 else ""),
        )

    def check(self, output: Tensor, spec: TensorSpec, is_batching: bool) -> None:
        """Log that an output differs from its declaration, if none has been logged: Triton passes it on as it is."""
        dims = spec.dims if spec.reshape is None else spec.reshape
        expected = (-1, *dims) if is_batching else dims
        problem = ""
        if output.datatype is not spec.datatype:
            problem = f"expected {spec.datatype.name}, got {output.datatype.name}"
        elif not fits(output.array.shape, expected):
            problem = f"expected shape {shape_text(expected)}, got {shape_text(output.array.shape)}"
            # The most frequent mistake in a model that batches, so it has its own words.
            if is_batching and fits(output.array.shape, dims):
                problem += ": the batch dimension is missing"
        if problem:
            self.has_differed = True
            logger.warning("model '%s': returned output '%s' differs: %s", self.model, output.name, problem)
