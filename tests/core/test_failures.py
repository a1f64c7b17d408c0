"""Tracebacks of public classes end where the package was called."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Self

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_tracebacks


def refuse() -> Any:
    raise InvalidArgumentError("refused")


@with_short_tracebacks
class Public:
    """A class whose members all raise errors."""

    def method(self) -> None:
        refuse()

    @classmethod
    def class_method(cls) -> None:
        refuse()

    @property
    def value(self) -> Any:
        return refuse()

    @value.setter
    def value(self, value: object) -> None:
        refuse()

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value) if name == "value" else refuse()

    def __getattr__(self, name: str) -> Any:
        refuse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        refuse()


def leave() -> None:
    with Public():
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda: Public().method(),
        Public.class_method,
        lambda: Public().value,
        lambda: setattr(Public(), "value", 1),
        lambda: setattr(Public(), "other", 1),
        lambda: Public().other,
        leave,
    ],
    ids=["method", "class method", "property", "setter", "attribute", "missing attribute", "block"],
)
def test_tracebacks_omit_members_of_public_classes(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    names = {frame.name for frame in traceback.extract_tb(caught.value.__traceback__)}
    assert names <= {"test_tracebacks_omit_members_of_public_classes", "<lambda>", "leave"}
