"""Fixtures for the tests of the notebook kit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.notebook.accessibility import download_axe
from tests.notebook.view_page import ViewPage


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    source = download_axe(tmp_path_factory.mktemp("axe"))
    if source is None:
        pytest.skip("needs axe-core from the npm registry")
    return source


@pytest.fixture(scope="module")
def shared_page(browser: Any) -> Iterator[Any]:
    """A page for all tests of a module."""
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture
def view(shared_page: Any) -> Iterator[ViewPage]:
    """A batch view in the shared page; errors in the page fail the test."""
    view = ViewPage(shared_page)
    yield view
    assert view.errors == []
