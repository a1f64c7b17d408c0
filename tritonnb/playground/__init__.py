"""The simulator as a web page: what the page runs in the browser. `docs.sitegen.playground` builds it."""
