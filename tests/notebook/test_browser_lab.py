"""JupyterLab runs without our widgets: if this fails, the other browser tests cannot pass."""

from __future__ import annotations

from collections.abc import Callable

import tritonnb
from tests.notebook.browser import NotebookPage


def test_cell_runs_in_a_kernel_that_has_this_checkout(notebook: Callable[..., NotebookPage]) -> None:
    page = notebook("import tritonnb; print(6 * 7)", "tritonnb.__version__")
    page.run_all()
    page.output(0).get_by_text("42").wait_for()
    page.output(1).get_by_text(tritonnb.__version__).wait_for()
    assert page.errors == []
