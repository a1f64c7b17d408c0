"""The output names of a model, and a warning if the model returns others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Self

from tritonnb.core.suggestions import did_you_mean

logger = logging.getLogger(__name__)


class DeclaredOutputs(tuple[str, ...]):
    """The names of the outputs in a model's configuration.

    Other outputs that the model returns are dropped, as on Triton. That is logged once, since the client gets a
    response that lacks an output, and no error.

    Parameters
    ----------
    names : sequence of str
    model : str
    others : sequence of str, optional
        Names that the model may return, too, such as those of its states.
    """

    model: str
    others: Sequence[str]
    is_reported: bool

    def __new__(cls, names: Iterable[str], model: str, others: Sequence[str] = ()) -> Self:
        """Create the tuple of the names."""
        outputs = super().__new__(cls, names)
        outputs.model, outputs.others, outputs.is_reported = model, others, False
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
