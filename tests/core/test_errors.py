"""The status codes of errors, and their HTTP statuses."""

from __future__ import annotations

import pytest

from tritonnb.core import errors
from tritonnb.core.errors import Status, TritonError


@pytest.mark.parametrize(
    ("status", "http"),
    [
        (Status.INTERNAL, 500),
        (Status.NOT_FOUND, 404),
        (Status.UNAVAILABLE, 503),
        (Status.UNSUPPORTED, 501),
        (Status.INVALID_ARG, 400),
        (Status.ALREADY_EXISTS, 400),
        (Status.UNKNOWN, 400),
        (Status.CANCELLED, 400),
    ],
)
def test_each_status_code_has_its_http_status(status: Status, http: int) -> None:
    assert status.http == http


def test_codes_with_the_same_http_status_are_distinct() -> None:
    assert len(Status) == 8


def test_there_is_one_exception_for_each_status() -> None:
    family = {subclass.default_status for subclass in TritonError.__subclasses__()}
    assert family == set(Status)


def test_error_status_can_override_the_default_of_its_class() -> None:
    assert errors.InternalError("x", Status.CANCELLED).status is Status.CANCELLED
