"""Fixtures for the tests of the notebook kit."""

from __future__ import annotations

import pytest

from tests.notebook.accessibility import download_axe


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    source = download_axe(tmp_path_factory.mktemp("axe"))
    if source is None:
        pytest.skip("needs axe-core from the npm registry")
    return source
