"""The messages of errors that users make."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tritonnb as tnb

FORMS = "a ModelConfig, the text of a config.pbtxt, JSON, a dict, or the path of a file"


BATCHING = "max_batch_size: 3 dynamic_batching { }"


def text_of(mistake: Callable[[], object]) -> str:
    """The error's text; it is of one line and alone."""
    with pytest.raises((tnb.TritonError, TypeError, AttributeError)) as caught:
        mistake()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert "\n" not in str(caught.value)
    return str(caught.value)
