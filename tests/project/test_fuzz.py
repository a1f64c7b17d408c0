"""The corpus of the fuzzing targets, and a few mutations of it that are the same in every run."""

from __future__ import annotations

import random

import pytest

from tools.fuzz.corpus import inputs_of
from tools.fuzz.engines import mutate, try_input
from tools.fuzz.targets import TARGETS, open_target

MUTATIONS = 40


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_corpus_causes_no_unexpected_error(target: str) -> None:
    inputs = inputs_of(target)
    choice = random.Random(target)
    with open_target(target) as run:
        for data in inputs.values():
            try_input(run, data)
        for _ in range(MUTATIONS):
            try_input(run, mutate(list(inputs.values()), choice))


def test_unexpected_error_names_its_input() -> None:
    def fail(data: bytes) -> None:
        raise ValueError("unexpected")

    with pytest.raises(ValueError, match="unexpected") as caught:
        try_input(fail, b"\0x")
    assert caught.value.__notes__ == ["the input is b'\\x00x'"]
