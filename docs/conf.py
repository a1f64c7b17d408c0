"""Sphinx configuration of the documentation site: `make docs` builds it into ``build/site``."""

from __future__ import annotations

import sys
from pathlib import Path

from numpydoc.xref import DEFAULT_LINKS
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tritonnb import compiled  # noqa: E402 -- the repository's root is on the path now

compiled.interpret()  # compiled modules have no docstrings

from docs.sitegen import hosts, notebooks, reference, surprises  # noqa: E402
from tritonnb.core.version import VERSION  # noqa: E402

GENERATED = ROOT / "docs" / "generated"
notebooks.write_pages(GENERATED / "tutorials")
reference.write_pages(GENERATED)
surprises.write_fragments(GENERATED / "surprises")
hosts.write_table(GENERATED / "hosts.md")

project = "tritonnb"
author = "The tritonnb authors"
project_copyright = author
version = release = VERSION
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "myst_nb"]
exclude_patterns = ["figures"]
nitpicky = False

# Markdown and notebooks. Notebooks are executed by `docs.sitegen.notebooks`, not by Sphinx.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"
# Cells that print escape codes, and Pygments lexers that IPython brings.
suppress_warnings = ["mystnb.unknown_mime_type"]

# Docstrings: numpydoc, with links to the types of parameters; `name` in a docstring is a Python object.
default_role = "py:obj"
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
# Terms of Python's and NumPy's documentation, which are not part of this site, are not links.
numpydoc_xref_aliases = {term: f"``{term}``" for term in DEFAULT_LINKS}

# Everything that a page needs is in the site: it works without a network.
html_theme = "furo"
html_title = f"tritonnb {VERSION}"
html_theme_options = {
    "source_repository": "https://github.com/tritonnb/tritonnb/",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs" / "search_scorer.js")
html_copy_source = False
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    """Leave out members that Matplotlib adds to its subclasses: their docstrings link to its documentation."""
    app.connect("autodoc-skip-member", _is_matplotlibs)


def _is_matplotlibs(_app: Sphinx, _kind: str, _name: str, member: object, _skip: bool, _options: object) -> bool | None:
    return True if str(getattr(member, "__module__", "")).startswith("matplotlib.") else None
