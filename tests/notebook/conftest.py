"""Fixtures of `tests.notebook.browser`, for every test of the notebook kit."""

from tests.notebook.browser import browser, lab, notebook

__all__ = ["browser", "lab", "notebook"]
