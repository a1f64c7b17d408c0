"""Triton's Python backend: models written as ``class TritonPythonModel``."""
