"""Fuzzing: everything that reads bytes from outside, with generated input.

``python -m tools.fuzz TARGET --seconds N``. A target is a function of bytes that raises an exception if the code under
test does anything that is not documented. `tools.fuzz.targets` lists them; `tools/fuzz/corpus` has the seeds of each
target and the input of every defect that was found. ``tests/project/test_fuzz.py`` runs the corpus.
"""
