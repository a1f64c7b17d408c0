"""What `make docs` does before and after Sphinx: execute notebooks, write reference pages, check links."""
