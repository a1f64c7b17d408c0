"""The simulator as a web page: its code in the browser. `docs.sitegen.playground` builds it."""
