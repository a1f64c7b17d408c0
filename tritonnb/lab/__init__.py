"""Everything that answers a question about serving: simulation, analysis, prediction, load, traces, figures, teaching.

The server never imports this package (`tests/project/test_layers.py`): a reader of the server may ignore it.
"""
