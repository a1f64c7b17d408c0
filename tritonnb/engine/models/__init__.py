"""Loaded models: validating, scheduling and answering their requests."""
