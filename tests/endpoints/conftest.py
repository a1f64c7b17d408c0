"""Fixtures of the tests of the endpoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.endpoints.http1_peer import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()
