"""Steps of `make docs` before and after Sphinx: execute notebooks, write reference pages, check links."""
